"""Problems of a document, as they are shown."""

from __future__ import annotations

from fastllm_control.declared.problems import MAX_SHOWN, Broken, Lines, Problem


def test_a_problem_says_where_as_far_as_that_is_known() -> None:
    assert str(Problem("is odd", "roles[0].name", 3)) == "line 3, roles[0].name: is odd"
    assert str(Problem("is odd", "roles[0].name")) == "roles[0].name: is odd"
    assert str(Problem("is odd", line=3)) == "line 3: is odd"
    assert str(Problem("is odd")) == "is odd"


def test_the_line_of_what_the_text_does_not_have_is_that_of_what_is_around_it() -> None:
    lines = Lines({"": 1, "roles": 2, "roles[0]": 3, "roles[0].name": 4})
    paths = ("roles[0].name", "roles[0].permissions[1].verb", "roles[5].name", "pools", "roles[0].x[...]")
    assert [lines.line_of(path) for path in paths] == [4, 3, 2, 1, 3]
    assert Lines().line_of("roles[0].name") is None


def test_many_problems_are_shown_up_to_a_point_and_counted() -> None:
    broken = Broken([Problem("is odd", f"roles[{index}]") for index in range(MAX_SHOWN + 5)])
    assert broken.message.splitlines()[-1] == "and 5 more"
    assert (broken.status, broken.field, len(broken.problems)) == (400, "roles[0]", MAX_SHOWN + 5)
