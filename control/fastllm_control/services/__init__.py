"""Use cases, one module a domain. They take a `Transaction`, go through repositories, never commit."""
