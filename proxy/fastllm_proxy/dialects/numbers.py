"""Figures as engines report them: integers, floats, nulls, and sometimes nonsense. Nothing here raises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

MAX_COUNT: Final = 10**12
"""What is larger is no count of tokens but a fault, and would not fit where it is stored."""


def count(figures: Mapping[str, Any], *names: str) -> int | None:
    """The first usable figure under one of `names`; `None` is unknown."""
    for name in names:
        value = figures.get(name)
        if type(value) is int:
            if 0 <= value <= MAX_COUNT:
                return value
        elif type(value) is float and math.isfinite(value) and 0 <= value <= MAX_COUNT:
            return round(value)
    return None


def nested(figures: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside an object; empty if it is absent or something else."""
    value = figures.get(name)
    return value if isinstance(value, dict) else {}


def micros(value: object) -> int | None:
    """Currency units → micro-units, rounded half up."""
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        # By way of its text: 0.1 is meant as a tenth, not as the binary fraction beside it.
        amount = Decimal(repr(value)) * 1_000_000
        if 0 <= amount <= MAX_COUNT:
            return int(amount.to_integral_value(ROUND_HALF_UP))
    return None
