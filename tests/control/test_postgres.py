from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import shutil
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from fastllm_control.postgres import EmbeddedPostgres, PortTaken, free_ports, is_free, is_taken
from fastllm_control.postgres_install import Account, PostgresError, install_for, wheel_install
from tests.fakes.postgres_process import PostgresProcess
from tests.fakes.process_table import command_line, family, is_running, uid_of

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    one = EmbeddedPostgres(tmp_path / "data", durable=False)
    yield one
    one.stop()


def ask(url: str, statement: str) -> Any:
    """One value from the database, over a connection of its own."""

    async def run() -> Any:
        connection = await asyncpg.connect(url.replace("+asyncpg", ""))
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


def is_deserted(folder: Path, within_seconds: float = 10.0) -> bool:
    """Whether no process of a server on `folder` is left: each of them holds this lock."""
    deadline = time.monotonic() + within_seconds
    with (folder / "postgres.running").open("ab") as running:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            else:
                return True
    return False


def wait_until_noticed(server: EmbeddedPostgres, within_seconds: float = 5.0) -> None:
    deadline = time.monotonic() + within_seconds
    while server.pid is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def modes_above(folder: Path) -> dict[Path, tuple[int, int, int]]:
    found = {path: path.stat() for path in folder.resolve().parents}
    return {path: (status.st_mode, status.st_uid, status.st_gid) for path, status in found.items()}


def test_first_start_makes_an_empty_database_in_utf_8(server: EmbeddedPostgres) -> None:
    url = server.start()
    assert url.startswith("postgresql+asyncpg://fastllm:")
    assert ask(url, "SELECT current_database() || ' ' || current_user") == "fastllm fastllm"
    assert ask(url, "SHOW server_encoding") == "UTF8"
    assert ask(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    assert ask(url, "SELECT lower('ÄÇ') < lower('ž')") is True


def test_data_and_password_outlive_a_restart(server: EmbeddedPostgres, tmp_path: Path) -> None:
    url = server.start()
    ask(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    server.stop()
    again = EmbeddedPostgres(tmp_path / "data", durable=False)
    try:
        second = again.start()
        assert ask(second, "SELECT answer FROM kept") == 42
        assert urlsplit(second).password == urlsplit(url).password
    finally:
        again.stop()


def test_it_listens_on_loopback_and_on_no_socket(server: EmbeddedPostgres) -> None:
    url = server.start()
    assert ask(url, "SHOW listen_addresses") == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        ask(url.replace("127.0.0.1", "127.0.0.2"), "SELECT 1")
    assert ask(url, "SHOW unix_socket_directories") == ""


def test_no_way_in_without_the_password(server: EmbeddedPostgres) -> None:
    url = server.start()
    password = urlsplit(url).password or ""
    assert len(password) == 48
    for wrong in (url.replace(password, "guess"), url.replace(f":{password}", "")):
        with pytest.raises(asyncpg.InvalidPasswordError):
            ask(wrong, "SELECT 1")
    stored = ask(url, "SELECT rolpassword FROM pg_authid WHERE rolname = 'fastllm'")
    assert stored.startswith("SCRAM-SHA-256$")


def test_the_password_is_private_and_in_no_process_list(server: EmbeddedPostgres) -> None:
    password = urlsplit(server.start()).password or ""
    assert stat.S_IMODE((server.data_dir / "postgres-password").stat().st_mode) == 0o600
    assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
    assert server.pid is not None
    shown = command_line(server.pid)
    assert "postgres" in shown
    assert password not in shown
    assert password not in server.log.path.read_text()


def test_what_the_server_says_can_be_read(server: EmbeddedPostgres) -> None:
    server.start()
    assert "database system is ready to accept connections" in server.log.path.read_text()


def test_a_large_log_is_put_aside(server: EmbeddedPostgres) -> None:
    server.log.path.parent.mkdir(parents=True)
    with server.log.path.open("wb") as log:
        log.truncate((16 << 20) + 1)
    server.start()
    assert server.log.path.stat().st_size < 1 << 20
    assert (server.data_dir / "logs" / "postgres.log.old").stat().st_size == (16 << 20) + 1


def test_stop_leaves_nothing_running_and_may_be_repeated(server: EmbeddedPostgres) -> None:
    server.start()
    pid = server.pid
    assert pid is not None
    running = family(pid)
    assert len(running) > 3
    server.stop()
    server.stop()
    assert server.pid is None
    assert not any(is_running(one) for one in running)
    assert not (server.folder / "postmaster.pid").exists()


def test_a_stopped_process_does_not_hold_up_stop(server: EmbeddedPostgres) -> None:
    server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(grace_seconds=0.2)
    assert is_deserted(server.data_dir)


def test_a_killed_postmaster_is_noticed_and_started_again(server: EmbeddedPostgres) -> None:
    url = server.start()
    ask(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until_noticed(server)
    assert server.start() == url, "whoever holds the address may keep it"
    assert ask(url, "SELECT answer FROM kept") == 42


def test_starting_twice_is_refused(server: EmbeddedPostgres) -> None:
    server.start()
    with pytest.raises(PostgresError, match="already runs"):
        server.start()
    assert server.pid is not None


def test_a_second_start_on_the_folder_is_refused_at_once(server: EmbeddedPostgres) -> None:
    url = server.start()
    second = EmbeddedPostgres(server.data_dir, durable=False)
    began = time.monotonic()
    with pytest.raises(PostgresError, match=rf"in use by another FastLLM \(pid {os.getpid()}\)"):
        second.start()
    assert time.monotonic() - began < 1
    second.stop()
    assert ask(url, "SELECT 1") == 1


def test_data_of_another_major_version_is_refused_untouched(server: EmbeddedPostgres) -> None:
    server.folder.mkdir(parents=True)
    (server.folder / "PG_VERSION").write_text("17\n")
    with pytest.raises(PostgresError, match=r"written by PostgreSQL 17, and .* carries PostgreSQL 18"):
        server.start()
    assert [path.name for path in server.folder.iterdir()] == ["PG_VERSION"]
    assert server.pid is None
    second = EmbeddedPostgres(server.data_dir)
    with pytest.raises(PostgresError, match="PostgreSQL 17"):
        second.start()  # and not "in use": the first has let go of the folder


def test_a_folder_that_is_no_database_is_refused_untouched(server: EmbeddedPostgres) -> None:
    server.folder.mkdir(parents=True)
    (server.folder / "notes.txt").write_text("mine")
    with pytest.raises(PostgresError, match="no Postgres data folder"):
        server.start()
    assert (server.folder / "notes.txt").read_text() == "mine"


def test_remains_of_a_torn_initdb_are_replaced(server: EmbeddedPostgres) -> None:
    torn = server.data_dir / "postgres.new"
    torn.mkdir(parents=True)
    (torn / "PG_VERSION").write_text("18\n")
    assert ask(server.start(), "SELECT 1") == 1
    assert not torn.exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path, durable=False, settings={"shared_buffers": "plenty"})
    with pytest.raises(PostgresError, match='invalid value for parameter "shared_buffers": "plenty"'):
        server.start()
    server.stop()
    assert is_deserted(tmp_path)


def test_a_port_taken_in_the_meantime_is_given_up_for_another(server: EmbeddedPostgres) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        server.port = other.getsockname()[1]
        server.launch()
        with pytest.raises(PortTaken):
            server.wait_ready()
        server.port = other.getsockname()[1]
        server.start()
        assert server.port != other.getsockname()[1]


def test_only_the_main_thread_may_start_it(server: EmbeddedPostgres) -> None:
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            server.start()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
    assert server.pid is None


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(is_free(port) for port in ports)


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        assert not is_free(one.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", ""])
def test_a_port_is_taken_while_somebody_listens_on_it(host: str) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        assert is_taken(one.getsockname()[1], host)
    assert not is_taken(free_ports(1)[0], host)


def test_a_port_of_an_address_that_is_not_ours_is_not_taken() -> None:
    assert not is_taken(free_ports(1)[0], "203.0.113.9")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    with PostgresProcess(tmp_path) as process:
        process.answer()
        assert not is_deserted(tmp_path, 0.05)
        process.send(number)
        process.wait()
        assert is_deserted(tmp_path)


def test_data_written_before_the_kill_is_there_after_it(tmp_path: Path) -> None:
    with PostgresProcess(tmp_path) as process:
        ask(process.answer()["url"], "CREATE TABLE kept AS SELECT 42 AS answer")
        process.send(signal.SIGKILL)
        process.wait()
    with PostgresProcess(tmp_path) as process:  # at once: the old server may still be going down
        assert ask(process.answer()["url"], "SELECT answer FROM kept") == 42
        assert process.finish() == 0
    assert is_deserted(tmp_path, 0.05)


def test_ctrl_c_stops_it_in_order(tmp_path: Path) -> None:
    with PostgresProcess(tmp_path) as process:
        process.answer()
        process.send(signal.SIGINT)
        assert process.wait() == 130
        assert is_deserted(tmp_path, 0.05)
    assert "database system is shut down" in (tmp_path / "logs" / "postgres.log").read_text()


def test_of_two_processes_on_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    with PostgresProcess(tmp_path) as first, PostgresProcess(tmp_path) as second:
        answers = [first.answer(), second.answer()]
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert len(refused) == 1
        winner = first if "url" in answers[0] else second
        assert f"in use by another FastLLM (pid {winner.pid})" in refused[0]


@pytest.mark.parametrize("delay_seconds", [0.0, 0.1, 0.25, 0.5])
def test_a_supervisor_killed_during_initdb_can_start_again(tmp_path: Path, delay_seconds: float) -> None:
    with PostgresProcess(tmp_path) as process:
        deadline = time.monotonic() + 20
        while not (tmp_path / "postgres.new").exists():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(delay_seconds)
        process.send(signal.SIGKILL)
        process.wait()
    with PostgresProcess(tmp_path) as process:
        assert ask(process.answer()["url"], "SELECT 1") == 1
    assert not (tmp_path / "postgres.new").exists()


@pytest.fixture
def plain_user() -> Iterator[tuple[Path, list[str]]]:
    """A folder that belongs to an ordinary user of this machine, and the arguments to become that user."""
    found = next((one for one in pwd.getpwall() if one.pw_uid not in (0, 65534)), None)
    if os.geteuid() != 0 or found is None:
        pytest.skip("needs root, to become one of the machine's other users")
    # Not below pytest's own folders, which are closed to other users.
    home = Path(tempfile.mkdtemp(prefix="fastllm-test-"))
    home.chmod(0o755)
    own = home / "own"
    own.mkdir(mode=0o700)
    os.chown(own, found.pw_uid, found.pw_gid)
    account = Account(found.pw_uid, found.pw_gid, switch=True)
    programs = install_for(account, wheel_install(), programs=home / "programs")
    yield own, ["--uid", str(found.pw_uid), "--gid", str(found.pw_gid), "--programs", str(programs.root)]
    shutil.rmtree(home)


def test_a_plain_user_starts_and_starts_again(plain_user: tuple[Path, list[str]]) -> None:
    own, become = plain_user
    uid = int(become[1])
    before = modes_above(own / "data")
    with PostgresProcess(own / "data", *become) as process:
        said = process.answer()
        ask(said["url"], "CREATE TABLE kept AS SELECT 42 AS answer")
        assert uid_of(said["postmaster"]) == uid
        os.kill(said["postmaster"], signal.SIGKILL)
        again = process.again()
        assert ask(again["url"], "SELECT answer FROM kept") == 42
        process.send(signal.SIGKILL)
        process.wait()
        assert is_deserted(own / "data")
    assert modes_above(own / "data") == before
    assert {path.stat().st_uid for path in (own / "data").rglob("*")} == {uid}


@as_root
def test_root_leaves_data_of_a_plain_user_theirs(plain_user: tuple[Path, list[str]]) -> None:
    own, become = plain_user
    with PostgresProcess(own / "data", *become) as process:
        process.answer()
    server = EmbeddedPostgres(own / "data", durable=False)
    try:
        server.start()
        assert server.pid is not None
        assert uid_of(server.pid) == int(become[1])
    finally:
        server.stop()


@as_root
def test_a_plain_user_is_refused_what_root_made(plain_user: tuple[Path, list[str]]) -> None:
    own, become = plain_user
    EmbeddedPostgres(own / "data", durable=False).stop()
    server = EmbeddedPostgres(own / "data", durable=False)
    server.start()
    server.stop()
    (own / "data").chmod(0o777)
    (own / "data" / "postgres.lock").chmod(0o666)
    (own / "data" / "postgres.running").chmod(0o666)
    with PostgresProcess(own / "data", *become) as process:
        assert "belongs to uid" in process.answer()["error"]


@as_root
def test_root_runs_it_as_nobody_in_a_folder_closed_to_others(tmp_path: Path) -> None:
    home = tmp_path / "closed"
    home.mkdir(mode=0o700)
    before = modes_above(home / "data")
    server = EmbeddedPostgres(home / "data", durable=False)
    try:
        url = server.start()
        assert server.pid is not None
        assert uid_of(server.pid) == pwd.getpwnam("nobody").pw_uid
        assert ask(url, "SELECT 1") == 1
    finally:
        server.stop()
    assert modes_above(home / "data") == before
    assert [path.name for path in home.iterdir()] == ["data"]
