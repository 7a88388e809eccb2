"""Commands that open the database and do one thing. Each module has `run(arguments, environ) -> int`."""
