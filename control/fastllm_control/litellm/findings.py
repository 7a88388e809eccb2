"""What is said about a file that is taken over. Never a value: any of them may be a secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from fastllm_control.litellm.reasons import reason_for


class Finding(Struct, frozen=True):
    """One field that was not carried, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class Report:
    """What is found on the way. `errors` are what makes the whole impossible."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.warnings: list[str] = []
        self.errors: list[Finding] = []

    def not_carried(self, path: str, reason: str) -> None:
        self.findings.append(Finding(path, reason))

    def warn(self, path: str, sentence: str) -> None:
        self.warnings.append(f"{path}: {sentence}")

    def fail(self, path: str, reason: str) -> None:
        self.errors.append(Finding(path, reason))


class Fields:
    """A mapping of the file, field by field: what nobody took is reported by `close`."""

    def __init__(self, value: object, path: str, report: Report) -> None:
        self.path = path
        self._report = report
        if value is not None and not isinstance(value, Mapping):
            report.fail(path, "a mapping is expected here")
            value = {}
        self._left: dict[str, Any] = {str(key): entry for key, entry in (value or {}).items()}

    def take(self, name: str) -> Any:
        """The field's value; `None` when it is not there. It no longer counts as left over."""
        return self._left.pop(name, None)

    def mapping(self, name: str) -> dict[str, Any]:
        """A field that is a mapping; an error for anything else."""
        value = self.take(name)
        if value is not None and not isinstance(value, Mapping):
            self._report.fail(self.at(name), "a mapping is expected here")
        return {str(key): entry for key, entry in value.items()} if isinstance(value, Mapping) else {}

    def add(self, others: Mapping[str, Any]) -> None:
        """More fields, where they are not there yet."""
        self._left = {**others, **self._left}

    def at(self, name: str) -> str:
        """The field's path."""
        return within(self.path, name)

    def close(self) -> None:
        """Report every field that is left, but for those that say nothing."""
        for name, value in self._left.items():
            if value is not None:
                self._report.not_carried(self.at(name), reason_for(name))
        self._left = {}

    def rest(self) -> dict[str, Any]:
        """The fields that nobody took, with their values; they no longer count as left over."""
        left, self._left = self._left, {}
        return left


def within(path: str, name: str) -> str:
    """The path of a field; a name is written so that it cannot pass for something else."""
    shown = name if name.isprintable() and len(name) <= 200 else ascii(name[:200])
    return f"{path}.{shown}" if path else shown
