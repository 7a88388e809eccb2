"""The last way of administering stays, whichever route would take it, and however many try at once."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from fastllm_control.access import VERBS
from fastllm_control.repositories import principals
from tests.fakes.control_plane import PASSWORD, Answer, ControlPlane


class Removal(NamedTuple):
    """A call that takes the way of the person `ada` or of the service account `bot`, who hold a role each."""

    method: str
    path: str
    body: object = None

    async def send(self, plane: ControlPlane, token: str, keys: dict[str, str]) -> Answer:
        return await plane.call(self.method, self.path.format(**keys), self.body, token=token)


ADA = {
    "role taken": Removal("DELETE", "/admin/principals/ada/roles", {"role": "of-ada"}),
    "deleted": Removal("DELETE", "/admin/principals/ada"),
    "role deleted": Removal("DELETE", "/admin/roles/of-ada"),
    "permission dropped": Removal("DELETE", "/admin/roles/of-ada/permissions", {"verb": "key:create"}),
    "models dropped": Removal(
        "DELETE", "/admin/roles/of-ada/permissions", {"verb": "model:invoke", "resource": "model/*"}
    ),
}
BOT = {
    "role taken": Removal("DELETE", "/admin/principals/bot/roles", {"role": "of-bot"}),
    "deleted": Removal("DELETE", "/admin/principals/bot"),
    "role deleted": Removal("DELETE", "/admin/roles/of-bot"),
    "key revoked": Removal("DELETE", "/admin/keys/{bot}"),
}


class Two(NamedTuple):
    """Two control planes on one database, and nobody left in it who administers but ada and bot."""

    first: ControlPlane
    second: ControlPlane
    session: str
    keys: dict[str, str]

    async def ways(self) -> frozenset[str]:
        async with self.first.services.database.read() as session:
            return await principals.ways_of_administering(session, self.first.clock.now())


@pytest.fixture
async def two(database_url: str) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ControlPlane.start(database_url))
        second = await stack.enter_async_context(ControlPlane.start(database_url, admin="other"))
        everything = [(verb, "model/*" if verb == "model:invoke" else "*") for verb in sorted(VERBS)]
        for name, kind in (("ada", "user"), ("bot", "service_account")):
            await first.principal(name, await first.role(f"of-{name}", *everything), kind=kind)
        await first.call("PUT", "/admin/principals/ada/password", {"password": PASSWORD})
        key = await first.call("POST", "/admin/keys", {"principal_id": "bot", "name": "k", "scope": "admin"})
        for name in ("root", "other"):
            gone = await first.call("DELETE", f"/admin/principals/{name}", token=key.json["key"])
            assert gone.status == 200, gone.body
        yield Two(first, second, key.json["key"], {"bot": key.json["id"]})


@pytest.mark.parametrize("name", ADA)
async def test_no_route_takes_the_last_person(two: Two, name: str) -> None:
    cookie = await two.first.log_in("ada")
    assert (await two.first.call("DELETE", f"/admin/keys/{two.keys['bot']}", cookie=cookie)).status == 200
    removal = ADA[name]
    before = (await two.first.call("GET", "/admin/audit?limit=1", cookie=cookie)).rows
    answer = await two.first.call(removal.method, removal.path, removal.body, cookie=cookie)
    assert (answer.status, answer.error["code"]) == (409, "last_administrator")
    assert (await two.first.call("GET", "/admin/audit?limit=1", cookie=cookie)).rows == before
    assert await two.ways() == {"access", "everything", "every model"}


@pytest.mark.parametrize("name", BOT)
async def test_no_route_takes_the_last_service_account(two: Two, name: str) -> None:
    assert (await two.first.call("DELETE", "/admin/principals/ada", token=two.session)).status == 200
    answer = await BOT[name].send(two.first, two.session, two.keys)
    assert (answer.status, answer.error["code"]) == (409, "last_administrator")
    assert await two.ways() == {"access", "everything", "every model"}


async def test_what_only_changes_the_way_is_no_loss(two: Two) -> None:
    """A successor is as good as the key before it, a name is none of the way, another password is one."""
    assert (await two.first.call("DELETE", "/admin/principals/ada", token=two.session)).status == 200
    rotated = await two.first.call("POST", f"/admin/keys/{two.keys['bot']}/rotate", {}, token=two.session)
    assert rotated.status == 201
    key = rotated.json["key"]
    for path, name in (("/admin/principals/bot", "bot-2"), ("/admin/roles/of-bot", "of-bot-2")):
        assert (await two.first.call("PATCH", path, {"name": name}, token=key)).status == 200
    # The old key is revoked already, by the rotation: revoking it again takes nothing.
    assert (await two.first.call("DELETE", f"/admin/keys/{two.keys['bot']}", token=key)).status == 200
    answer = await two.first.call("DELETE", f"/admin/keys/{rotated.json['id']}", token=key)
    assert answer.error["code"] == "last_administrator"


async def test_a_key_within_its_grace_stands_in_for_none_that_stays(two: Two) -> None:
    """What time does is nobody's call: afterwards it refuses nothing, so that the way back stays open."""
    assert (await two.first.call("DELETE", "/admin/principals/ada", token=two.session)).status == 200
    rotate = f"/admin/keys/{two.keys['bot']}/rotate"
    made = await two.first.call("POST", rotate, {"grace_seconds": 3600}, token=two.session)
    assert made.status == 201
    # The old key proves for an hour yet that it is bot; then nobody could.
    last = await two.first.call("DELETE", f"/admin/keys/{made.json['id']}", token=two.session)
    assert last.error["code"] == "last_administrator"
    # A key of three months may take the place of one without end: that is how it should be.
    until = (two.first.clock.now() + datetime.timedelta(days=90)).isoformat()
    body = {"principal_id": "bot", "name": "k", "scope": "admin", "expires_at": until}
    assert (await two.first.call("POST", "/admin/keys", body, token=two.session)).status == 201
    gone = await two.first.call("DELETE", f"/admin/keys/{made.json['id']}", token=two.session)
    assert gone.status == 200
    two.first.clock.advance(91 * 86_400)
    assert await two.ways() == frozenset()


@pytest.mark.parametrize("bot", BOT)
@pytest.mark.parametrize("ada", ["role taken", "deleted", "permission dropped"])
async def test_two_removals_at_once_through_two_control_planes(two: Two, ada: str, bot: str) -> None:
    answers = await asyncio.gather(
        ADA[ada].send(two.first, two.session, two.keys), BOT[bot].send(two.second, two.session, two.keys)
    )
    statuses = sorted(answer.status for answer in answers)
    # The second to come is refused for what it would take, or has just lost the right to try.
    assert statuses in ([200, 401], [200, 403], [200, 409]), [answer.body for answer in answers]
    assert await two.ways() == {"access", "everything", "every model"}
