"""The OpenAPI document against a real control plane, by requests made from it: right ones and wrong ones.

`FASTLLM_API_EXAMPLES` is how many examples each operation gets beside those at the edges of each field, and
`FASTLLM_API_SEED` where they begin. Longer than in the suite:

    FASTLLM_API_EXAMPLES=300 FASTLLM_API_SEED=7 .venv/bin/pytest tests/contract/test_schemathesis.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import CHECKS, load_all_checks

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import PERMISSION, document
from tests.contract.stock import furnish, widen
from tests.fakes.control_plane import PROXY_TOKEN, ControlPlane
from tests.fakes.database import TestDatabases
from tests.fakes.served import served

EXAMPLES = int(os.environ.get("FASTLLM_API_EXAMPLES", "3"))
SEED = int(os.environ.get("FASTLLM_API_SEED", "1"))
LONGEST_ANSWER_SECONDS = 20.0

load_all_checks()
_NAMES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "missing_required_header",
)
"""Not `positive_data_acceptance`: what a schema cannot say (a reference to nothing, a URL that is none) is
400 too. Not `ignored_auth`: the permissions have a test of their own."""

CHECKED = [check for check in CHECKS.get_by_names(list(_NAMES)) if not isinstance(check, type)]

schema = schemathesis.openapi.from_dict(widen(document(OPERATIONS)))
schema.config.seed = SEED
# Methods that a path does not take are tried elsewhere, each once.
schema.config.phases.coverage.unexpected_methods = set()


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


@schema.parametrize()
@hypothesis.seed(SEED)
@hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
def test_answers_are_what_the_document_says(case: schemathesis.Case[Any], stage: Stage) -> None:
    requires = case.operation.definition.raw[PERMISSION]
    token = PROXY_TOKEN if requires == "proxy" else stage.plane.admin_key
    for name, value in (case.path_parameters or {}).items():
        if isinstance(value, str):
            case.path_parameters[name] = stage.words.get(value, value)
    case.call_and_validate(
        base_url=stage.plane.url,
        session=stage.session,
        headers={"authorization": f"Bearer {token}"},
        checks=CHECKED,
        timeout=LONGEST_ANSWER_SECONDS,
    )
