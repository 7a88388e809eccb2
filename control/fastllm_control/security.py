"""How callers prove who they are: passwords, random tokens, and how fast anybody may guess.

Nothing here knows of HTTP or of tables.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from fastllm_control.errors import TooMany

SESSION_COOKIE = "fastllm_session"


def new_token() -> str:
    """256 random bits as URL-safe text."""
    return secrets.token_urlsafe(32)


def token_digest(token: str) -> bytes:
    """SHA-256 of a session's or the proxies' token (API keys: `fastllm_shared.keys`); one of 256 random bits
    needs no salt and no slow hash."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Passwords:
    """Argon2id (RFC 9106's second choice: 64 MiB, 3 passes), off the event loop, two at a time at most.

    A name that does not exist is verified against a hash of nothing, so that it takes the same time.
    """

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher(time_cost=3, memory_cost=64 * 1024, parallelism=2)
        self._nobody = self._hasher.hash(new_token())
        self._slots = asyncio.Semaphore(2)

    async def hash(self, password: str) -> str:
        """The encoded hash, salt and parameters included."""
        async with self._slots:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether `password` is the one whose hash is `stored`; `None` is never right, but takes as long."""
        async with self._slots:
            right = await asyncio.to_thread(self._matches, stored or self._nobody, password)
        return right and stored is not None

    def _matches(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False


class ProxyTokens:
    """The tokens that proxies may prove themselves with: one, or two while rotating."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = tuple(token_digest(token) for token in tokens)

    def __contains__(self, token: str) -> bool:
        given = token_digest(token)
        # All are compared, each in constant time, so that the time tells nothing.
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        return True in matches

    def __repr__(self) -> str:
        return f"ProxyTokens(<{len(self._digests)}>)"


class _Failures(msgspec.Struct):
    count: int
    last_at: float


class LoginThrottle:
    """Makes guessing slow: after `free` failures each further attempt must wait, twice as long each time.

    Counted per name and per address, and forgotten after `forget_seconds` without a failure. A name is
    never locked: the wait is at most `longest_seconds`, and an address from which that very name logged
    in before does not wait for what others do to the name. `clock` is monotonic seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        free: int = 5,
        longest_seconds: float = 30.0,
        forget_seconds: float = 900.0,
        remembered: int = 10_000,
    ) -> None:
        self._clock = clock
        self._free = free
        self._longest = longest_seconds
        self._forget = forget_seconds
        self._remembered = remembered
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, name: str, address: str) -> None:
        """Before verifying. Counts the attempt as failed, so that many at once are no way around it.

        Raises `TooMany`.
        """
        subjects = self._subjects(name, address)
        wait = max(self._wait_of(subject) for subject in subjects)
        if wait > 0:
            raise TooMany("too_many_attempts", "too many login attempts: wait a little", math.ceil(wait))
        now = self._clock()
        for subject in (("name", name), ("address", address)):
            past = self._failures.pop(subject, None)
            count = 0 if past is None or now - past.last_at > self._forget else past.count
            self._failures[subject] = _Failures(count + 1, now)
            self._bound(self._failures)

    def succeeded(self, name: str, address: str) -> None:
        """After verifying: the attempt was right after all."""
        self._failures.pop(("name", name), None)
        self._failures.pop(("address", address), None)
        self._known.pop((name, address), None)
        self._known[(name, address)] = None
        self._bound(self._known)

    def _subjects(self, name: str, address: str) -> tuple[tuple[str, str], ...]:
        by_address = ("address", address)
        return (by_address,) if (name, address) in self._known else (("name", name), by_address)

    def _wait_of(self, subject: tuple[str, str]) -> float:
        past = self._failures.get(subject)
        if past is None or past.count < self._free:
            return 0.0
        since = self._clock() - past.last_at
        pause = min(2.0 ** min(past.count - self._free, 30), self._longest)
        return 0.0 if since > self._forget else pause - since

    def _bound(
        self, table: OrderedDict[tuple[str, str], _Failures] | OrderedDict[tuple[str, str], None]
    ) -> None:
        while len(table) > self._remembered:
            table.popitem(last=False)
