"""What is wrong with a configuration file: said for all that was found together, each with line and field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fastllm_control.errors import Invalid

MAX_SHOWN = 20


class Problem(Struct, frozen=True):
    """`field` is a path in the document (`providers[0].name`), `line` counts from 1; `None` where nothing has
    lines or no line is to blame."""

    message: str
    field: str = ""
    line: int | None = None

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line is not None else []
        where += [self.field] if self.field else []
        return f"{', '.join(where)}: {self.message}" if where else self.message


class Broken(Invalid):
    """A document that cannot be applied. Its message is one line for each problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        shown = [str(problem) for problem in problems[:MAX_SHOWN]]
        if len(problems) > MAX_SHOWN:
            shown.append(f"and {len(problems) - MAX_SHOWN} more")
        super().__init__("invalid_document", "\n".join(shown), problems[0].field or None)
        self.problems = tuple(problems)


class Lines:
    """Where in a text each path of a document stands."""

    def __init__(self, by_path: Mapping[str, int] | None = None) -> None:
        self._by_path = by_path or {}

    def line_of(self, path: str) -> int | None:
        """The line of a path, or of the nearest thing around it that the text has; `None` without a text."""
        while path and path not in self._by_path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._by_path.get(path)

    def problem(self, field: str, message: str) -> Problem:
        return Problem(message, field, self.line_of(field))
