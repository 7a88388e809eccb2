"""Requests made from the OpenAPI document by schemathesis. To import and to load, it takes seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import document
from tests.contract.stock import widen

Case = schemathesis.Case[Any]

EXAMPLES = int(os.environ.get("FASTLLM_API_EXAMPLES", "3"))
SEED = int(os.environ.get("FASTLLM_API_SEED", "1"))

_CHECKED = (
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


class Made:
    """The whole document, loaded once."""

    def __init__(self) -> None:
        load_all_checks()
        self.checks = [one for one in CHECKS.get_by_names(list(_CHECKED)) if not isinstance(one, type)]
        self._schema = schemathesis.openapi.from_dict(widen(document(OPERATIONS)))
        self._schema.config.seed = SEED
        # Methods that a path does not take are tried elsewhere, each once.
        self._schema.config.phases.coverage.unexpected_methods = set()

    def run(self, operation: str, call: Callable[[Case], None]) -> None:
        """`call` with every request that is made for an operation, such as `GET /admin/pools`."""
        settings = hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        found = self._schema.find_operation_by_label(operation)
        assert found is not None, f"the document has no {operation}"
        # `schema.parametrize()` does this for all operations at collection, in every process that takes part.
        build_operation_test(
            config=self._schema.config,
            operation=found,
            test_func=hypothesis.seed(SEED)(settings(call)),
            given_kwargs={},
            feedback=FeedbackSources(),
        )()
