from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from fastllm_control.access import Actor
from fastllm_control.services.changes import apply, change_state, created, given
from fastllm_control.transaction import Change

PERSON = Actor(name="ada", via="session")


class Patch(Struct):
    name: str | UnsetType = UNSET
    price: int | UnsetType | None = UNSET


@dataclass
class Row:
    name: str = "a"
    price: int | None = 1
    state: str = "active"
    state_reason: str | None = None
    state_by: str | None = None
    state_at: datetime.datetime | None = None


def test_only_what_was_sent_is_given() -> None:
    assert given(Patch()) == {}
    assert given(Patch(price=None)) == {"price": None}
    assert given(Patch("b", 0)) == {"name": "b", "price": 0}


def test_only_what_differs_is_a_change() -> None:
    row = Row()
    assert apply(row, {"name": "a", "price": None}) == {"price": Change(1, None)}
    assert row.price is None
    assert apply(row, {"name": "a", "price": None}) == {}


def test_a_new_row_is_audited_without_its_empty_fields() -> None:
    assert created(Row(price=None), ("name", "price", "state")) == {
        "name": Change(None, "a"),
        "state": Change(None, "active"),
    }


def test_a_state_is_kept_with_who_and_why() -> None:
    row = Row()
    values: dict[str, Any] = {"state": "draining", "state_reason": "new driver", "name": "not looked at"}
    changes = change_state(PERSON, row, values)
    assert changes == {
        "state": Change("active", "draining"),
        "state_reason": Change(None, "new driver"),
    }
    assert (row.state_by, row.name) == ("ada", "a")
    assert row.state_at is not None


def test_a_new_state_forgets_the_old_reason_and_the_same_one_does_not() -> None:
    row = Row(state="draining", state_reason="new driver", state_by="bob")
    assert change_state(PERSON, row, {"state": "draining"}) == {}
    assert (row.state_reason, row.state_by) == ("new driver", "bob")
    assert change_state(PERSON, row, {"state": "active"}).keys() == {"state", "state_reason"}
    assert (row.state_reason, row.state_by) == (None, "ada")
    assert change_state(PERSON, row, {}) == {}
