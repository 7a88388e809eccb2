"""Who is calling and what they may do: the closed list of permissions, and the actor of one call."""

from __future__ import annotations

from typing import Literal, get_args
from uuid import UUID

import msgspec

Verb = Literal[
    "model:invoke", "key:create", "key:revoke", "access:write", "config:read", "config:write", "usage:read"
]
VERBS: frozenset[str] = frozenset(get_args(Verb))

Requirement = Verb | Literal["public", "any_principal", "session", "proxy"]
"""What an operation asks of its caller: a permission; nothing; any valid key; a logged-in person or an
admin key whatever it may do; or the proxy token."""


class Permission(msgspec.Struct, frozen=True):
    """`resource` is `model/<frontend name>` or `model/*` for `model:invoke`, `*` for all other verbs."""

    verb: Verb
    resource: str = "*"


class Actor(msgspec.Struct, frozen=True):
    """The principal behind one call. `via` is how it proved itself; `address` is the peer's, for audit.

    The actor of the command line and of jobs has no id.
    """

    name: str
    via: Literal["session", "key", "proxy", "command", "job", "anonymous"]
    principal_id: UUID | None = None
    permissions: frozenset[Permission] = frozenset()
    session_id: UUID | None = None
    request_id: str = ""
    address: str = ""

    def may(self, verb: Verb) -> bool:
        """Whether some permission carries `verb`, on whatever resource."""
        return self.via in ("command", "job") or any(held.verb == verb for held in self.permissions)
