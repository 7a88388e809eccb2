from __future__ import annotations

from pathlib import Path

from fastllm_proxy.forms import Form
from fastllm_proxy.spool import Spools
from tests.fakes.log import CapturedLog
from tests.proxy.parts import exchange
from tests.proxy.rig import chat


def test_nothing_is_known_before_a_stage_has_found_it_out() -> None:
    fresh = exchange()
    assert (fresh.attempts, fresh.status) == (0, 0)
    for unknown in (
        "backend",
        "sent_at",
        "first_byte_at",
        "mirror",
        "usage",
        "refusal",
        "code",
        "affinity",
        "rule",
    ):
        assert getattr(fresh, unknown) is None


def test_forgetting_the_body_keeps_what_is_still_asked_for() -> None:
    released = []
    made = exchange(body=chat(stream=True))
    made.release_body = lambda: released.append(True)
    made.forget_body()
    made.forget_body()
    assert made.body == b""
    assert made.peek is not None
    assert (made.peek.model, made.peek.stream, made.peek.members) == ("assistant", True, {})
    assert released == [True, True]


async def test_forgetting_a_form_gives_its_disk_back(tmp_path: Path) -> None:
    spools = Spools(CapturedLog().log, str(tmp_path))
    made = exchange()
    made.form = Form(5, 0, await spools.open())
    assert spools.open_files == 1
    made.forget_body()
    made.forget_body()
    assert spools.open_files == 0
    spools.close()
