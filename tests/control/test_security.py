"""Passwords, tokens, and how fast anybody may guess: with a clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from argon2 import PasswordHasher
from argon2.profiles import RFC_9106_LOW_MEMORY

from fastllm_control.errors import TooMany
from fastllm_control.security import LoginThrottle, Passwords, ProxyTokens, new_token, token_digest

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


class Throttle:
    """A throttle with the clock at hand."""

    def __init__(self, **settings: float) -> None:
        self.now = 1000.0
        self.throttle = LoginThrottle(lambda: self.now, **settings)  # type: ignore[arg-type]

    def guess(self, name: str = "ada", address: str = "203.0.113.7") -> int:
        """How long it must wait, 0 if it may try; it then fails."""
        try:
            self.throttle.begin(name, address)
        except TooMany as refused:
            return refused.retry_after_seconds
        return 0

    def right(self, name: str = "ada", address: str = "203.0.113.7") -> None:
        self.throttle.begin(name, address)
        self.throttle.succeeded(name, address)


def test_waits_double_up_to_an_end() -> None:
    t = Throttle(longest_seconds=30)
    assert [t.guess() for _ in range(5)] == [0] * 5
    waits = []
    for _ in range(7):
        waits.append(t.guess())
        t.now += waits[-1] - 0.5
        assert t.guess() == 1
        t.now += 0.5
        assert t.guess() == 0
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_many_at_once_are_no_way_around_it() -> None:
    t = Throttle()
    assert [t.guess() == 0 for _ in range(50)].count(True) == 5


def test_what_is_refused_does_not_make_it_longer() -> None:
    t = Throttle()
    for _ in range(5):
        t.guess()
    first = t.guess()
    assert {t.guess() for _ in range(100)} == {first}


def test_names_are_counted_whatever_the_address_and_addresses_whatever_the_name() -> None:
    t = Throttle()
    assert [t.guess(address=f"198.51.100.{n}") for n in range(5)] == [0] * 5
    assert t.guess(address="198.51.100.99") > 0
    assert t.guess("bob") == 0
    assert [t.guess(f"user-{n}") for n in range(4)] == [0] * 4
    assert t.guess("somebody-else") > 0
    assert t.guess("somebody-else", "198.51.100.98") == 0


def test_an_owner_is_not_held_up_by_what_others_do_to_the_name() -> None:
    t = Throttle()
    t.right(address="192.0.2.1")
    for number in range(20):
        t.guess(address=f"198.51.100.{number}")
    assert t.guess(address="198.51.100.77") > 0
    t.right(address="192.0.2.1")


def test_one_who_knows_one_password_does_not_guess_another_any_faster() -> None:
    t = Throttle()
    tried = 0
    for _ in range(20):
        for _ in range(4):
            tried += t.guess("victim") == 0
        t.right("mallory")
    assert tried == 5


def test_failures_are_forgotten_after_a_while() -> None:
    t = Throttle(forget_seconds=900)
    for _ in range(5):
        t.guess()
    assert t.guess() > 0
    t.now += 901
    assert [t.guess() for _ in range(5)] == [0] * 5
    assert t.guess() > 0


def test_what_is_remembered_is_bounded() -> None:
    t = Throttle(remembered=10)
    for number in range(1000):
        t.guess(f"name-{number}", f"address-{number}")
        t.throttle.succeeded(f"name-{number}", f"address-{number}")
        t.guess(f"name-{number}", f"address-{number}")
    assert len(t.throttle._failures) <= 10
    assert len(t.throttle._known) <= 10


async def test_passwords() -> None:
    passwords = Passwords(CHEAP)
    stored = await passwords.hash("correct horse")
    assert stored.startswith("$argon2id$")
    assert stored != await passwords.hash("correct horse")
    assert await passwords.verify(stored, "correct horse")
    assert not await passwords.verify(stored, "correct horsf")
    assert not await passwords.verify(stored, "")


@pytest.mark.parametrize("stored", [None, "", "not a hash", "$argon2id$v=19$m=8,t=1,p=1$YWFhYWFhYWE$YWFh"])
async def test_what_is_no_hash_is_never_right(stored: str | None) -> None:
    assert not await Passwords(CHEAP).verify(stored, "")


async def test_a_name_without_a_password_costs_a_verification() -> None:
    class Counting(PasswordHasher):
        verified: tuple[str | bytes, ...] = ()

        def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002
            self.verified += (hash,)
            return super().verify(hash, password)

    counting = Counting(time_cost=1, memory_cost=8, parallelism=1)
    passwords = Passwords(counting)
    known = await passwords.hash("x")
    await passwords.verify(None, "x")
    await passwords.verify(known, "y")
    assert len(counting.verified) == 2
    assert counting.verified[0] != known


async def test_hashing_does_not_stop_the_loop_and_is_two_at_a_time() -> None:
    class Watching(PasswordHasher):
        running = most = 0

        def hash(self, password: str | bytes, *, salt: bytes | None = None) -> str:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                return super().hash(password, salt=salt)
            finally:
                self.running -= 1

    watching = Watching(time_cost=2, memory_cost=4096, parallelism=1)
    passwords = Passwords(watching)
    turns = 0
    hashing = asyncio.gather(*(passwords.hash("x") for _ in range(12)))
    while not hashing.done():
        await asyncio.sleep(0)
        turns += 1
    await hashing
    assert watching.most <= 2
    assert turns > 12


def test_the_parameters_are_those_of_the_rfc() -> None:
    hasher = Passwords()._hasher
    chosen = (hasher.time_cost, hasher.memory_cost, hasher.type)
    assert chosen == (
        RFC_9106_LOW_MEMORY.time_cost,
        RFC_9106_LOW_MEMORY.memory_cost,
        RFC_9106_LOW_MEMORY.type,
    )


def test_proxy_tokens_while_rotating() -> None:
    tokens = ProxyTokens(("new-token-of-proxies", "old-token-of-proxies"))
    assert "new-token-of-proxies" in tokens
    assert "old-token-of-proxies" in tokens
    for wrong in ("", "new", "new-token-of-proxies,old-token-of-proxies", "new-token-of-proxies ", "\udcff"):
        assert wrong not in tokens
    assert "token-of" not in repr(tokens)
    assert "" not in ProxyTokens(())


def test_tokens() -> None:
    made = {new_token() for _ in range(1000)}
    assert len(made) == 1000
    assert {len(token) for token in made} == {43}
    assert token_digest("a") != token_digest("b")
    assert len(token_digest("\udcff")) == 32
