from __future__ import annotations

import subprocess
from pathlib import Path

from fastllm_control.log_files import LogFile


def test_last_words_are_those_since_it_was_opened(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "one.log")
    with log.open() as out:
        out.write(b"old\n")
    with log.open() as out:
        out.write(b"".join(b"line %d\n" % number for number in range(20)))
    assert log.last_words(2) == "line 18\nline 19"
    assert "old" not in log.last_words(100)
    assert log.last_words(100).startswith("line 0\n")


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert "No such file" in LogFile(tmp_path / "none.log").last_words()


def test_a_writer_goes_on_in_a_file_that_started_over(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "one.log", limit_bytes=100)
    with log.open() as out, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out) as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"x" * 200 + b"\n")
        writer.stdin.flush()
        while log.path.stat().st_size < 201:
            pass
        log.trim()
        assert log.path.stat().st_size == 0
        writer.stdin.write(b"more\n")
        writer.stdin.close()
        assert writer.wait(10) == 0
    assert log.path.read_bytes() == b"more\n"
    assert log.last_words() == "more"
    assert (tmp_path / "one.log.old").stat().st_size == 201


def test_a_short_file_is_left_alone(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "one.log", limit_bytes=100)
    log.path.write_bytes(b"x" * 100)
    log.trim()
    assert log.path.stat().st_size == 100
    assert not (tmp_path / "one.log.old").exists()
