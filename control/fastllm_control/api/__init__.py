"""The admin API, one module a domain: decode → one service call → encode. Each exports its `ROUTES`."""
