"""Refusals as answers, and foreign exceptions as refusals where they are not our own fault.

What is left unmapped is a 500: a defect of the program.
"""

from __future__ import annotations

import asyncpg
import msgspec
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.responses import Response

from fastllm_control.errors import ApiError, Conflict, Invalid, TooMany, Unauthenticated, Unavailable


class ErrorBody(msgspec.Struct, frozen=True):
    """`field` is the path of what is wrong in body, query or path; `request_id` is in the log line too."""

    code: str
    message: str
    field: str | None
    request_id: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody


def answer(status: int, code: str, message: str, request_id: str, field: str | None = None) -> Response:
    """An error in the admin API's one shape."""
    body = msgspec.json.encode(ErrorAnswer(ErrorBody(code, message, field, request_id)))
    return Response(body, status, {"cache-control": "no-store"}, "application/json")


def refused(error: ApiError, request_id: str) -> Response:
    """The answer to a refusal."""
    response = answer(error.status, error.code, error.message, request_id, error.field)
    if isinstance(error, Unauthenticated):
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, TooMany):
        response.headers["retry-after"] = str(error.retry_after_seconds)
    return response


def refusal_of(error: Exception) -> ApiError | None:
    """The refusal that an exception of the database or its driver amounts to, or `None`: a defect."""
    if isinstance(error, (OSError, PoolTimeout, InterfaceError)):  # TimeoutError is an OSError
        return _away()
    if not isinstance(error, DBAPIError):
        return None
    cause = error.orig.__cause__ if error.orig is not None else None
    state = str(getattr(cause, "sqlstate", None) or getattr(error.orig, "sqlstate", None) or "")
    if error.connection_invalidated or state[:2] in ("08", "53", "57") or state == "55P03":
        return _away()
    if state in ("40001", "40P01"):
        return _raced()
    if isinstance(cause, asyncpg.IntegrityConstraintViolationError):
        return _of_constraint(cause)
    if state[:2] == "22" or isinstance(cause, (asyncpg.DataError, ValueError)):
        return Invalid("invalid_value", "a value is out of the range that can be stored")
    return None


def _away() -> Unavailable:
    return Unavailable("database_unavailable", "the database cannot be reached now: try again in a moment")


def _raced() -> Conflict:
    return Conflict("concurrent_change", "somebody else changed the same rows just now: try again")


def _of_constraint(cause: asyncpg.IntegrityConstraintViolationError) -> ApiError:
    table, constraint = str(cause.table_name or ""), str(cause.constraint_name or "")
    # By the naming convention of tables/base.py a constraint's name ends in the columns it is about.
    field = constraint.partition(f"_{table}_")[2] or None
    if isinstance(cause, asyncpg.UniqueViolationError):
        return Conflict("already_exists", "another one with this value exists already", field)
    if isinstance(cause, asyncpg.ForeignKeyViolationError):
        return Conflict("in_use", "what this refers to is gone, or something still refers to it")
    if isinstance(cause, asyncpg.CheckViolationError) and not constraint:
        # A week was taken out of the default partition meanwhile: the rows are right, and have a home now.
        return _raced()
    return Invalid("invalid_value", "a value is not allowed", field)
