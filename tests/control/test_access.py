"""What an actor may do."""

from __future__ import annotations

from typing import get_args

import pytest

from fastllm_control.access import VERBS, Actor, Permission, Verb

READ: Verb = "config:read"


def test_an_actor_may_what_a_permission_says() -> None:
    actor = Actor("alice", "session", permissions=frozenset({Permission(READ)}))
    assert actor.may(READ)
    assert not actor.may("config:write")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_command_line_and_jobs_may_everything_and_strangers_nothing(verb: Verb) -> None:
    assert Actor("root", "command").may(verb)
    assert Actor("sweep", "job").may(verb)
    assert not Actor("x", "anonymous").may(verb)
    assert not Actor("x", "proxy").may(verb)


def test_the_list_is_closed() -> None:
    assert set(get_args(Verb)) == VERBS
    assert len(VERBS) == 7
