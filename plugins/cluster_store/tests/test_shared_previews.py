"""Previews at two daemons on one database: a link of one is valid at the other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sandkasten.errors import BackendUnavailable, QuotaExceeded, SessionNotFound
from sandkasten.model.access.preview_links import PreviewTarget, SandboxPreviews
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_cluster_store.postgres import postgres_previews
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from sandkasten_cluster_store.postgres.postgres_previews import PostgresPreviews, signing_key
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.previews.preview_access import Previews
from sandkasten_server.api.previews.preview_rules import PreviewRules
from tests.api.daemon_in_process import serving
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P98")


@pytest.fixture
async def daemons(replicas):
    """Return two daemons in this process."""
    async with AsyncExitStack() as stack:
        found = []
        for one in replicas:
            ports = await PostgresPreviews.open(one.shared.database)
            stack.push_async_callback(ports.aclose)
            previews = Previews(PreviewRules(), ports, SystemClock())
            found.append(await stack.enter_async_context(serving(one.engine, previews=previews)))
        yield found


class Site:
    """A port of a session, as a browser sees it at each daemon."""

    def __init__(self, the_id, port):
        self.path = f"/v1/sessions/{the_id}/previews"
        self.port = port
        self.host = f"{port}-{the_id.replace('_', '-')}.localhost"

    async def link(self, daemon, **body):
        made = await daemon.ask("POST", self.path, {"port": self.port, **body})
        assert made.status == 201, made.raw
        return made.json

    async def open(self, daemon, link):
        """Return the status of a link at a daemon; 303 if it is valid."""
        return (await self.get(daemon, "/" + link["url"].split("/", 3)[3])).status

    async def get(self, daemon, path="/", **headers):
        async with daemon.http.get(
            daemon.url + path, headers={"Host": self.host, **headers}, allow_redirects=False
        ) as found:
            return found


@pytest.fixture
async def site(daemons):
    made = await daemons[0].ask("POST", "/v1/sessions", {})
    return Site(made.json["id"], 8000)


@asynccontextmanager
async def eventually():
    """Bound a wait for a notice of the database."""
    async with asyncio.timeout(PATIENCE_S):
        yield


async def test_a_link_of_one_daemon_opens_the_port_at_another(daemons, replicas):
    one, other = daemons
    port = free_port()
    made = await replicas[0].engine.create(CreateRequest())
    site = Site(made.id, port)
    server = ("python3", "-m", "http.server", "--directory", "/etc", str(port))
    await replicas[0].engine.exec_start(made.id, ExecRequest(server))
    link = await site.link(one)
    answer = await site.get(other, "/" + link["url"].split("/", 3)[3])
    assert answer.status == 303
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    async with eventually():
        while (await site.get(other, "/hostname", Cookie=cookie)).status == 502:
            pass
    assert (await site.get(one, "/hostname", Cookie=cookie)).status == 200


async def test_links_that_one_daemon_revokes_end_at_another(daemons, site):
    one, other = daemons
    first, second = await site.link(one), await site.link(other)
    await other.ask("DELETE", f"{site.path}/{first['link_id']}")
    async with eventually():
        while await site.open(one, first) != 401:
            pass
    assert await site.open(one, second) == 303
    await one.ask("DELETE", site.path)
    # Without waiting for a notice: the new link is valid at both.
    third = await site.link(other)
    assert [await site.open(at, third) for at in (other, one)] == [303, 303]
    async with eventually():
        while await site.open(other, second) != 403:
            pass


async def test_a_link_made_after_a_revocation_is_valid_before_the_notice(daemons, site):
    one, other = daemons
    for _ in range(5):
        await one.ask("DELETE", site.path)
        assert await site.open(other, await site.link(one)) == 303


async def test_a_port_that_one_daemon_makes_public_is_public_at_another(daemons, site):
    one, other = daemons
    assert (await site.get(other)).status == 401
    await site.link(one, public=True)
    assert (await site.get(other)).status == 502
    await site.link(other, public=False)
    async with eventually():
        while (await site.get(one)).status != 401:
            pass


async def test_links_stay_valid_while_the_database_is_unavailable(daemons, site, replicas):
    one, other = daemons
    link = await site.link(one)
    assert await site.open(other, link) == 303
    await other.ask("POST", f"{site.path.removesuffix('previews')}exec", {"cmd": ["true"]})
    await replicas[1].shared.database.aclose()
    assert await site.open(other, link) == 303


async def test_what_was_said_about_ports_is_kept_and_ends_with_the_sandbox(replicas):
    engine, database = replicas[0].engine, replicas[0].shared.database
    the_id = SandboxId((await engine.create(CreateRequest())).id)
    target = PreviewTarget(the_id, 80)
    first = await PostgresPreviews.open(database)
    await first.publish(target, 100.0)
    await first.set_rules_of(the_id, SandboxPreviews(True, "own.example:${PORT}"))
    await first.revoke(the_id, "a" * 16, now=0.0, until=50.0)
    await first.aclose()

    again = await PostgresPreviews.open(database)
    assert again.key == first.key
    assert [again.is_public(target, now) for now in (99.0, 101.0)] == [True, False]
    assert again.public_until(target) == 100.0
    assert again.rules_of(the_id) == SandboxPreviews(True, "own.example:${PORT}")
    assert again.is_revoked(the_id, "a" * 16)
    await again.revoke(the_id, "b" * 16, now=60.0, until=90.0)
    # A link that has expired needs no entry.
    assert not again.is_revoked(the_id, "a" * 16)
    await again.revoke_all(the_id)
    assert (again.series(the_id), again.is_revoked(the_id, "b" * 16)) == (1, False)

    await engine.destroy(the_id)
    assert await database.fetch("SELECT 1 FROM previews WHERE sandbox_id = $1", the_id) == []
    assert await again.reload(the_id)
    assert not again.is_public(target, 0.0)
    with pytest.raises(SessionNotFound):
        await again.publish(target, None)
    await again.aclose()


async def test_revoked_links_and_public_ports_are_counted(replicas, monkeypatch):
    the_id = SandboxId((await replicas[0].engine.create(CreateRequest())).id)
    monkeypatch.setattr(postgres_previews, "MAX_REVOKED", 1)
    monkeypatch.setattr(postgres_previews, "MAX_PUBLIC", 1)
    ports = await PostgresPreviews.open(replicas[0].shared.database)
    await ports.revoke(the_id, "a" * 16, now=0.0, until=9.0)
    await ports.publish(PreviewTarget(the_id, 1), None)
    with pytest.raises(QuotaExceeded):
        await ports.revoke(the_id, "b" * 16, now=0.0, until=9.0)
    with pytest.raises(QuotaExceeded):
        await ports.publish(PreviewTarget(the_id, 2), None)
    await ports.aclose()


@pytest.fixture
async def impatient_ports(postgres_server, monkeypatch):
    """Return previews on a database with a short deadline, and what was read from it since."""
    database = await PostgresDatabase.open(postgres_server.url, schema="test", timeout_s=1.0)
    ports = await PostgresPreviews.open(database, reload_s=10 * PATIENCE_S)
    read = []
    fetch = database.fetch

    async def noted(sql, *values):
        read.append(values)
        return await fetch(sql, *values)

    monkeypatch.setattr(database, "fetch", noted)
    yield ports, read
    await ports.aclose()
    await database.aclose()


async def test_many_refused_requests_read_the_database_together(impatient_ports):
    ports, read = impatient_ports
    ids = [f"sbx_{number:032x}" for number in range(200)]
    assert not any(await asyncio.gather(*map(ports.reload, ids)))
    assert len(read) <= 2
    assert {one for (several,) in read for one in several} == {*ids}


async def test_refused_requests_wait_together_for_a_database_that_hangs(
    impatient_ports, open_postgres
):
    ports, read = impatient_ports
    other = await open_postgres()
    async with other.transaction() as connection:
        await connection.execute("LOCK TABLE previews IN ACCESS EXCLUSIVE MODE")
        found = await asyncio.gather(
            *(ports.reload("x") for _ in range(50)), return_exceptions=True
        )
    assert {type(one) for one in found} == {BackendUnavailable}
    assert len(read) <= 2
    assert not await ports.reload("x")


async def test_guesses_of_sandboxes_leave_the_database_to_others(daemons, replicas):
    daemon, other = daemons[0], replicas[1].shared.database
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND query LIKE '%FROM ledger%'"
    )
    async with other.transaction() as connection:
        await connection.execute("LOCK TABLE ledger IN ACCESS EXCLUSIVE MODE")
        sites = [Site(f"sbx_{number:032x}", 80) for number in range(30)]
        guesses = [asyncio.create_task(site.get(daemon)) for site in sites]
        async with eventually():
            while not (await other.fetch(waiting))[0][0]:
                pass
        assert await replicas[0].shared.database.fetch("SELECT 1")
        assert (await other.fetch(waiting))[0][0] <= 2
    assert {answer.status for answer in await asyncio.gather(*guesses)} == {404}


async def test_daemons_agree_on_a_signing_key(open_postgres):
    databases = [await open_postgres() for _ in range(3)]
    keys = {*await asyncio.gather(*(signing_key(one, "e2b") for one in databases))}
    assert [len(key) for key in keys] == [32]
    assert await signing_key(databases[0], "previews") not in keys
