from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from fastllm_control.leash import die_with_parent
from tests.fakes.process_table import is_running, wait_until_gone

_PARENT = """
import signal, subprocess, sys
from fastllm_control.leash import die_with_parent
child = subprocess.Popen(["sleep", "60"], preexec_fn=die_with_parent(signal.SIGTERM))
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_goes_with_its_parent_however_that_ends(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.send_signal(number)
        parent.wait(10)
        assert wait_until_gone([child]) == []


def test_a_child_of_a_living_parent_is_left_alone() -> None:
    done = subprocess.run(["true"], preexec_fn=die_with_parent(signal.SIGKILL), check=False)
    assert done.returncode == 0


def test_a_child_forked_too_late_does_not_stay() -> None:
    hold = die_with_parent(signal.SIGKILL)
    assert hold is not None
    middle = os.fork()
    if middle == 0:
        hold()  # its parent is the one that made the promise: it lives on
        grandchild = os.fork()
        if grandchild == 0:
            hold()  # its parent is another process: it ends here
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1]) == 127


def test_it_is_refused_off_the_main_thread() -> None:
    answers: list[Callable[[], None] | RuntimeError | None] = []

    def attempt() -> None:
        try:
            answers.append(die_with_parent(signal.SIGTERM))
        except RuntimeError as error:
            answers.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert isinstance(answers[0], RuntimeError)
