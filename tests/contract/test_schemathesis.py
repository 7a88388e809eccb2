"""The OpenAPI document against a real control plane, by requests made from it: right ones and wrong ones.

`FASTLLM_API_EXAMPLES` is how many examples each operation gets beside those at the edges of each field, and
`FASTLLM_API_SEED` where they begin. Longer than in the suite:

    FASTLLM_API_EXAMPLES=300 FASTLLM_API_SEED=7 .venv/bin/pytest tests/contract/test_schemathesis.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest
import requests

from fastllm_control.api.everything import OPERATIONS
from tests.contract.stock import furnish
from tests.fakes.control_plane import PROXY_TOKEN, ControlPlane
from tests.fakes.database import TestDatabases
from tests.fakes.served import served

if TYPE_CHECKING:
    from tests.contract.made import Case, Made

LONGEST_ANSWER_SECONDS = 20.0
_REQUIRED = {f"{one.method} {one.path}": one.requires for one in OPERATIONS}


class Stage(NamedTuple):
    """`words` are the ids that stand for words in paths."""

    plane: ControlPlane
    words: dict[str, str]
    session: requests.Session


@pytest.fixture(scope="module")
def stage(databases: TestDatabases, migrated_template: str) -> Iterator[Stage]:
    name = databases.create(template=migrated_template)
    with served(databases.url(name), furnish) as (plane, words), requests.Session() as session:
        session.trust_env = False
        yield Stage(plane, words, session)
    databases.drop(name)


@pytest.fixture(scope="module")
def made() -> Made:
    # Here, because collecting the suite should not wait for it in every process that takes part.
    from tests.contract.made import Made

    return Made()


@pytest.mark.parametrize("operation", _REQUIRED)
def test_answers_are_what_the_document_says(operation: str, stage: Stage, made: Made) -> None:
    token = PROXY_TOKEN if _REQUIRED[operation] == "proxy" else stage.plane.admin_key
    sent = 0

    def call(case: Case) -> None:
        nonlocal sent
        sent += 1
        for name, value in (case.path_parameters or {}).items():
            if isinstance(value, str):
                case.path_parameters[name] = stage.words.get(value, value)
        case.call_and_validate(
            base_url=stage.plane.url,
            session=stage.session,
            headers={"authorization": f"Bearer {token}"},
            checks=made.checks,
            timeout=LONGEST_ANSWER_SECONDS,
        )

    made.run(operation, call)
    assert sent, "no request was made"
