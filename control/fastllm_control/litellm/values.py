"""Values of the file: references to the environment, figures, credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from fastllm_control.declared.document import SecretReference
from fastllm_control.forms import Price
from fastllm_control.litellm.findings import Report

_PREFIX = "os.environ/"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_PER_TOKEN = Decimal(10**12)
"""Money per token → micro-units per million tokens."""


class Values:
    """`environ` is the environment of the import; the file's own `environment_variables` add to it.

    `literals` holds the credentials that stand in the file itself, by the names that references to them have.
    """

    def __init__(self, environ: Mapping[str, str], own: Mapping[str, str], report: Report) -> None:
        self._environ = {**environ, **own}
        self._report = report
        self._names: dict[str, str] = {}
        self._own = frozenset(own)
        self.used: set[str] = set()

    @property
    def secrets(self) -> dict[str, str]:
        """What references stand for: the environment, and what stood in the file."""
        return {**self._environ, **{name: value for value, name in self._names.items()}}

    def plain(self, value: Any, path: str) -> Any:
        """A value that is no secret, references followed; `None` (and an error) for one that is not set."""
        if not isinstance(value, str) or not value.startswith(_PREFIX):
            return value
        name = value.removeprefix(_PREFIX)
        self.used.add(name)
        found = self._environ.get(name)
        if not found:
            self._report.fail(path, f"the environment variable {_shown(name)} is not set")
        return found or None

    def secret(self, value: Any, path: str) -> SecretReference | None:
        """A reference to a credential. One that stands in the file is kept apart, and warned of."""
        if value is None or value == "":
            return None
        if isinstance(value, str) and value.startswith(_PREFIX):
            name = value.removeprefix(_PREFIX)
            if not _VARIABLE.fullmatch(name):
                self._report.fail(path, "this is no name of an environment variable")
                return None
            self.used.add(name)
            return SecretReference(env=name)
        if isinstance(value, bool | Mapping | list):
            self._report.fail(path, "text is expected here")
            return None
        self._report.warn(path, "a secret stands in the file: it is stored encrypted; better name a variable")
        return SecretReference(env=self._names.setdefault(str(value), self._new_name()))

    def has(self, name: str) -> bool:
        """Whether a variable is set."""
        return bool(self._environ.get(name))

    def number(self, value: Any, path: str) -> Decimal | None:
        """A figure, also one that is written as text; reports what is none."""
        value = self.plain(value, path)
        if value is None:
            return None
        try:
            found = Decimal(str(value)) if not isinstance(value, bool) else Decimal("nan")
        except InvalidOperation:
            found = Decimal("nan")
        if found.is_finite():
            return found
        self._report.not_carried(path, "a figure is expected here")
        return None

    def fitting(self, value: Decimal | None, kind: Any, path: str) -> Any:
        """The figure, if it is one that `kind` allows; reports what is not."""
        if value is None:
            return None
        plain: int | float = (
            int(value) if value == value.to_integral_value() and abs(value) < 2**63 else float(value)
        )
        try:
            return msgspec.convert(plain, kind, strict=False)
        except msgspec.ValidationError as error:
            self._report.not_carried(path, f"out of range here: {error}")
            return None

    def price(self, value: Any, path: str) -> int | None:
        """Money per token as integer micro-units per million tokens."""
        found = self.number(value, path)
        if found is None:
            return None
        exact = found * _PER_TOKEN
        rounded = exact.to_integral_value()
        if rounded != exact:
            self._report.warn(path, f"rounded to {rounded} micro-units per million tokens")
        return self.fitting(rounded, Price, path)  # type: ignore[no-any-return]

    def leftover_variables(self) -> list[str]:
        """Names of the file's own variables that nothing refers to."""
        return sorted(self._own - self.used)

    def _new_name(self) -> str:
        number = len(self._names) + 1
        while (name := f"LITELLM_FILE_SECRET_{number}") in self._environ:
            number += 1
        return name


def _shown(name: str) -> str:
    return name if _VARIABLE.fullmatch(name) else "of that name"
