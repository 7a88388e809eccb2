"""SQL and nothing else, one module a domain."""
