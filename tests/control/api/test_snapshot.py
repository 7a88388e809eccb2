"""The proxies' channel, over a real socket."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastllm_control.app import build_app
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import SNAPSHOT_CONTENT_TYPE, Snapshot, decode_snapshot
from tests.fakes.control_plane import PROXY_TOKEN, Answer, ControlPlane


async def poll(
    plane: ControlPlane, etag: str | None = None, wait: float | str = 0, encoding: str = "identity"
) -> Answer:
    headers = {"accept-encoding": encoding} | ({} if etag is None else {"if-none-match": etag})
    return await plane.call("GET", f"/snapshot?wait={wait}", token=PROXY_TOKEN, headers=headers)


def snapshot_in(answer: Answer) -> Snapshot:
    assert answer.status == 200, answer.body
    return decode_snapshot(answer.body)


async def newest(plane: ControlPlane, at_least: int) -> Answer:
    """Poll as a proxy does until a version is there."""
    etag: str | None = None
    async with asyncio.timeout(10):
        while True:
            answer = await poll(plane, etag, wait=5)
            etag = answer.headers["etag"]
            if answer.status == 200 and snapshot_in(answer).version >= at_least:
                return answer


async def settled(plane: ControlPlane) -> Answer:
    """The answer for everything that was written so far."""
    made = await plane.call("POST", "/admin/snapshots/rebuild")
    assert made.version is not None
    return await newest(plane, made.version)


async def test_a_proxy_gets_everything_and_then_only_what_is_newer(plane: ControlPlane) -> None:
    made = await plane.call("POST", "/admin/principals", {"name": "team-a"})
    assert made.version is not None
    answer = await newest(plane, made.version)
    snapshot = snapshot_in(answer)
    assert snapshot.version == made.version
    assert answer.headers["content-type"] == SNAPSHOT_CONTENT_TYPE
    assert answer.headers["etag"] == f'"{made.version}"'
    assert "team-a" in {principal.name for principal in snapshot.principals}
    again = await poll(plane, answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]


async def test_a_new_key_reaches_waiting_polls_well_within_a_second(plane: ControlPlane) -> None:
    holder = await plane.principal("team-a")
    latencies = []
    for _ in range(5):
        key_before = await plane.key_of(holder, "invoke")
        etag = (await newest_with(plane, key_before)).headers["etag"]
        polls = [asyncio.create_task(poll(plane, etag, wait=30)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in polls)
        key = await plane.key_of(holder, "invoke")
        answered = time.perf_counter()
        for answer in await asyncio.gather(*polls):
            assert digest_of(key) in {entry.digest for entry in snapshot_in(answer).keys}
        latencies.append(time.perf_counter() - answered)
    assert max(latencies) < 0.5, latencies


async def newest_with(plane: ControlPlane, key: str) -> Answer:
    etag: str | None = None
    async with asyncio.timeout(10):
        while True:
            answer = await poll(plane, etag, wait=5)
            etag = answer.headers["etag"]
            if answer.status == 200 and digest_of(key) in {
                entry.digest for entry in snapshot_in(answer).keys
            }:
                return answer


async def test_a_revoked_key_leaves_the_snapshot(plane: ControlPlane) -> None:
    key = await plane.key_of(await plane.principal("team-a"), "invoke")
    etag = (await newest_with(plane, key)).headers["etag"]
    listed = await plane.call("GET", "/admin/keys")
    (row,) = [row for row in listed.rows if row["principal"] == "team-a"]
    waiting = asyncio.create_task(poll(plane, etag, wait=30))
    assert (await plane.call("DELETE", f"/admin/keys/{row['id']}")).status == 200
    assert digest_of(key) not in {entry.digest for entry in snapshot_in(await waiting).keys}


async def test_a_poll_without_news_ends_in_time(plane: ControlPlane) -> None:
    etag = (await settled(plane)).headers["etag"]
    started = time.monotonic()
    answer = await poll(plane, etag, wait=0.2)
    assert answer.status == 304
    assert 0.15 < time.monotonic() - started < 2


async def test_what_is_no_content_makes_no_version(plane: ControlPlane) -> None:
    etag = (await settled(plane)).headers["etag"]
    assert (await plane.call("GET", "/admin/principals")).version is None
    assert (
        await plane.call("PUT", "/admin/principals/root/password", {"password": "another password"})
    ).status == 200
    assert (await poll(plane, etag, wait=0.7)).status == 304


async def test_a_client_that_is_ahead_is_not_given_something_older(plane: ControlPlane) -> None:
    """Behind a load balancer the next control plane may not have built yet what the last one served."""
    await settled(plane)
    assert (await poll(plane, '"9999999999999999"')).status == 304


async def test_an_unknown_tag_gets_everything(plane: ControlPlane) -> None:
    await settled(plane)
    for etag in ("*", '"x"', 'W/"0"', "", '"1", "2"'):
        assert (await poll(plane, etag)).status == 200, etag


async def test_it_is_compressed_for_those_who_take_it(plane: ControlPlane) -> None:
    await plane.principal("a name that repeats" * 10)
    plain = await settled(plane)
    for accepted, packed in [
        ("gzip", True),
        ("gzip, deflate", True),
        ("br;q=1, gzip;q=0.5", True),
        ("*", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("br", False),
    ]:
        answer = await poll(plane, encoding=accepted)
        assert (answer.headers.get("content-encoding") == "gzip") is packed, accepted
        assert (int(answer.headers["content-length"]) < len(plain.body)) is packed
        assert answer.body == plain.body  # the client has unpacked it


async def test_only_the_proxy_token_opens_it(plane: ControlPlane) -> None:
    for token in (None, "", "x" * 21, "proxy-token-for-testS"):
        answer = await plane.call("GET", "/snapshot", token=token)
        assert answer.status in (401, 403)
        assert answer.json["error"]["code"]


async def test_the_proxy_token_opens_nothing_else(plane: ControlPlane) -> None:
    for method, path in [("GET", "/admin/snapshots"), ("POST", "/admin/snapshots/rebuild")]:
        assert (await plane.call(method, path, token=PROXY_TOKEN)).status == 403


async def test_a_wait_that_is_none_is_refused(plane: ControlPlane) -> None:
    for wait in ("-1", "61", "x", "nan", ""):
        answer = await poll(plane, wait=wait)
        assert (answer.status, answer.error["field"]) == (400, "wait"), wait


async def test_waiting_polls_are_let_go_when_the_process_is_told_to_end(plane: ControlPlane) -> None:
    etag = (await settled(plane)).headers["etag"]
    waiting = asyncio.create_task(poll(plane, etag, wait=60))
    await asyncio.sleep(0.05)
    plane.services.stopping.set()
    async with asyncio.timeout(5):
        assert (await waiting).status == 304


async def test_versions_are_listed_with_what_made_them(plane: ControlPlane) -> None:
    first = await plane.call("POST", "/admin/principals", {"name": "team-a"})
    assert first.version is not None
    await newest(plane, first.version)
    second = await plane.call("POST", "/admin/principals", {"name": "team-b"})
    assert second.version is not None
    await newest(plane, second.version)
    rows = await recorded(plane, second.version)
    assert [row["version"] for row in rows] == sorted((row["version"] for row in rows), reverse=True)
    by_version = {row["version"]: row for row in rows}
    events = by_version[second.version]["events"]
    assert [(event["action"], event["target_name"]) for event in events] == [("principal.create", "team-b")]
    assert len(by_version[second.version]["hash"]) == 64
    # Whatever was published in between, no audit event is lost and none is listed twice.
    listed = [event["id"] for row in rows for event in row["events"]]
    assert len(listed) == len(set(listed))
    page = await plane.call("GET", "/admin/snapshots?limit=1")
    following = await plane.call("GET", f"/admin/snapshots?limit=1&after={page.json['next']}")
    assert [page.rows[0], following.rows[0]] == rows[:2]


async def recorded(plane: ControlPlane, version: int) -> list[dict[str, Any]]:
    """The list of versions once `version` is written down, which happens after it is served."""
    async with asyncio.timeout(10):
        while True:
            rows = (await plane.call("GET", "/admin/snapshots")).rows
            if any(row["version"] == version for row in rows):
                return rows
            await asyncio.sleep(0.02)


async def test_a_rebuild_makes_a_version_that_says_so(plane: ControlPlane) -> None:
    before = snapshot_in(await settled(plane)).version
    asked = await plane.call("POST", "/admin/snapshots/rebuild")
    assert asked.status == 200
    assert asked.version is not None
    assert asked.version > before
    assert asked.json["snapshot_version"] == before
    assert asked.json["dropped"] == []
    rows = await recorded(plane, asked.version)
    assert rows[0]["events"][0]["action"] == "snapshot.rebuild"


PROVIDER = {"name": "gpu-1", "api_base": "http://127.0.0.1:9/v1", "upstream_api_key": "sk-canary"}


async def ask(plane: ControlPlane, peer: str | None, scheme: str = "http") -> tuple[int, bytes]:
    """`GET /snapshot` as it arrives from `peer`, through the whole application but the socket."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": scheme,
        "path": "/snapshot",
        "raw_path": b"/snapshot",
        "query_string": b"",
        # A forwarding header is not to make a stranger a neighbour.
        "headers": [
            (b"host", b"control"),
            (b"authorization", f"Bearer {PROXY_TOKEN}".encode()),
            (b"x-forwarded-for", b"127.0.0.1"),
        ],
        "client": None if peer is None else (peer, 40000),
        "server": ("127.0.0.1", 4001),
        "state": {},
    }
    await build_app(plane.services)(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


PEERS = [
    ("192.0.2.7", "http", 403),
    ("10.0.0.7", "http", 403),
    ("::ffff:10.0.0.7", "http", 403),
    ("fd00::7", "http", 403),
    ("a name", "http", 403),
    ("192.0.2.7", "https", 200),
    ("127.0.0.1", "http", 200),
    ("127.9.9.9", "http", 200),
    ("::1", "http", 200),
    ("::ffff:127.0.0.1", "http", 200),
    (None, "http", 200),
]


async def test_credentials_leave_this_machine_over_tls_only(plane: ControlPlane) -> None:
    assert (await plane.call("POST", "/admin/providers?force=true", PROVIDER)).status == 201
    await settled(plane)
    for peer, scheme, status in PEERS:
        found, body = await ask(plane, peer, scheme)
        assert found == status, (peer, scheme)
        assert (b"sk-canary" in body) is (status == 200)
        if status == 403:
            assert b"plaintext_refused" in body
            assert b"--allow-plaintext-snapshot" in body


async def test_without_a_credential_plain_http_will_do(plane: ControlPlane) -> None:
    bare = {name: value for name, value in PROVIDER.items() if name != "upstream_api_key"}
    assert (await plane.call("POST", "/admin/providers?force=true", bare)).status == 201
    await settled(plane)
    assert (await ask(plane, "192.0.2.7"))[0] == 200


async def test_an_operator_may_allow_it(database_url: str) -> None:
    async with ControlPlane.start(database_url, settings={"allow_plaintext_snapshot": True}) as plane:
        assert (await plane.call("POST", "/admin/providers?force=true", PROVIDER)).status == 201
        await settled(plane)
        status, body = await ask(plane, "192.0.2.7")
        assert (status, b"sk-canary" in body) == (200, True)


async def test_what_lies_between_two_versions(plane: ControlPlane) -> None:
    versions = []
    for name in ("a", "b", "c"):
        body = {"name": name, "api_base": "http://127.0.0.1:9/v1", "upstream_api_key": f"canary-{name}"}
        versions.append((await plane.call("POST", "/admin/providers?force=true", body)).version)
    first, _, last = versions
    answer = await plane.call("GET", f"/admin/snapshots/{first}/diff/{last}")
    assert [(row["target_name"], row["version"]) for row in answer.rows] == [
        ("b", versions[1]),
        ("c", last),
    ]
    assert answer.rows[0]["changes"]["upstream_api_key"] == {"before": None, "after": "(set)"}
    assert b"canary" not in answer.body
    assert (await plane.call("GET", f"/admin/snapshots/{last}/diff/{first}")).rows == answer.rows
    assert (await plane.call("GET", f"/admin/snapshots/{last}/diff/{last}")).rows == []
    path = f"/admin/snapshots/{first}/diff/{last}?limit=1"
    page = await plane.call("GET", path)
    assert page.rows == answer.rows[:1]
    rest = await plane.call("GET", f"{path}&after={page.json['next']}")
    assert (rest.rows, rest.json["next"]) == (answer.rows[1:], None)


async def test_versions_that_never_were_have_no_diff(plane: ControlPlane) -> None:
    version = (await plane.call("POST", "/admin/roles", {"name": "r"})).version or 0
    made = (await plane.call("POST", "/admin/principals", {"name": "p"})).version or version
    for wrong in ("1", "x", "-1", "9" * 30):
        for path in (f"{wrong}/diff/{made}", f"{made}/diff/{wrong}"):
            answer = await plane.call("GET", f"/admin/snapshots/{path}")
            assert (answer.status, answer.error["code"]) == (404, "snapshot_not_found"), path
