"""SQLAlchemy models, one module a domain. `Base.metadata` is what migrations are compared with."""
