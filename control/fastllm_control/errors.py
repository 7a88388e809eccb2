"""What the admin API can refuse, as exceptions.

    ApiError
    ├── Invalid          400  shape and values; names the field
    ├── Unauthenticated  401
    ├── Forbidden        403
    ├── NotFound         404
    ├── Conflict         409
    ├── TooLarge         413
    ├── TooMany          429  carries how long to wait
    └── Unavailable      503  the database is away

Services raise them; `dispatch` and `failures` turn them into
`{"error":{"code","message","field","request_id"}}`.
Anything else that is raised is a 500 `internal_error` whose cause is in the log line with that request id.
"""

from __future__ import annotations


class ApiError(Exception):
    """A refusal. `code` is stable and for programs, `message` says what would be right."""

    status = 500

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


class Invalid(ApiError):
    status = 400


class Unauthenticated(ApiError):
    status = 401


class Forbidden(ApiError):
    status = 403


class NotFound(ApiError):
    status = 404


class Conflict(ApiError):
    status = 409


class TooLarge(ApiError):
    status = 413


class TooMany(ApiError):
    status = 429

    def __init__(self, code: str, message: str, retry_after_seconds: int) -> None:
        super().__init__(code, message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(ApiError):
    status = 503
