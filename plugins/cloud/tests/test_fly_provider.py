"""Fly as a provider, against a server that is made from the facts of its API: requests are checked,
machines run, and answers are late, wrong, cut or missing.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import BackendUnavailable, Busy, InvalidImage, SandboxLost
from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten.model.retries import Backoff
from sandkasten_cloud.fly import fly_provider
from sandkasten_cloud.fly.fly_options import FlyOptions
from sandkasten_cloud.fly.fly_provider import FlyProvider
from sandkasten_cloud.provider import LABEL_ID, LABEL_OWNER, MachineOrder
from tests.cloud.fly_server import APP, TOKEN, FlyServer
from tests.patience import PATIENCE_S
from tests.platform_choice import image_named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.promise("P117")

SHOW = "GET /v1/apps/{app_name}/machines/{machine_id}"
WAIT = "GET /v1/apps/{app_name}/machines/{machine_id}/wait"
CREATE = "POST /v1/apps/{app_name}/machines"
LIST = "GET /v1/apps/{app_name}/machines"
DELETE = "DELETE /v1/apps/{app_name}/machines/{machine_id}"
ECHO = """
import socket
server = socket.create_server(("0.0.0.0", 8484))
while True:
    server.accept()[0].sendall(open("/run/secret", "rb").read())
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlyServer]:
    monkeypatch.setattr(fly_provider, "_BACKOFF", Backoff(0.001, 0.01))
    with FlyServer([Path(layer) for layer in image_named("debian").layers]) as opened:
        yield opened
    assert opened.violations == []


def options(server: FlyServer, **other: Any) -> FlyOptions:
    values: dict[str, Any] = {
        "app": APP,
        "api_url": server.url,
        "api_token": TOKEN,
        "address": server.host,
    }
    return FlyOptions(**{"timeout_s": PATIENCE_S, **values, **other})


@asynccontextmanager
async def opened(
    server: FlyServer, owner: str = "me", **other: object
) -> AsyncIterator[FlyProvider]:
    provider = FlyProvider(options(server, **other), owner)
    try:
        yield provider
    finally:
        await provider.aclose()


def order(sandbox_id: SandboxId, *command: str, owner: str = "me") -> MachineOrder:
    return MachineOrder(
        sandbox_id=sandbox_id,
        image="registry.fly.io/sandboxes:debian",
        cpus=1.0,
        memory_bytes=512 << 20,
        disk_bytes=500 << 20,
        lifetime_s=3600.0,
        network="full",
        env={},
        files={"/run/secret": b"secret"},
        command=command or ("sleep", "infinity"),
        port=8484,
        labels={LABEL_OWNER: owner, LABEL_ID: sandbox_id},
    )


async def _heard(provider: FlyProvider, machine_id: str) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            stream = await provider.connect(machine_id)
            try:
                if heard := await stream.receive(6):
                    return heard
            finally:
                await stream.aclose()


async def test_a_machine_is_made_reached_found_and_removed(server: FlyServer):
    sandbox_id = new_sandbox_id()
    async with opened(server) as provider:
        assert (await provider.check()).ready
        machine_id = await provider.start(order(sandbox_id, "python3", "-c", ECHO))
        assert await _heard(provider, machine_id) == b"secret"
        assert await provider.find(sandbox_id) == machine_id
        async with opened(server, "another") as other:
            assert await other.find(sandbox_id) is None
            assert await other.machines() == {}
        await provider.stop(machine_id)
        await provider.stop(machine_id)
        await provider.stop("unknown")
        assert await provider.machines() == {}
        with pytest.raises(SandboxLost):
            await provider.connect(machine_id)
    assert server.live == []


async def test_a_machine_whose_metadata_was_changed_from_inside_is_found(server: FlyServer):
    sandbox_id = new_sandbox_id()
    async with opened(server) as provider, opened(server, "another") as other:
        machine_id = await provider.start(order(sandbox_id))
        for owner in ("another", ""):
            metadata = {"sandkasten_owner": owner, "sandkasten_id": new_sandbox_id()}
            server.records[machine_id].config["metadata"] = metadata
            assert await provider.machines() == {sandbox_id: machine_id}
            assert await provider.find(sandbox_id) == machine_id
            # Another installation does not find it either.
            assert await other.machines() == {}


async def test_an_id_with_a_path_is_not_put_into_a_url(server: FlyServer):
    async with opened(server) as provider:
        machine_id = await provider.start(order(new_sandbox_id()))
        record = server.records[machine_id]
        for wrong in ("..", ".", "", "../../other", "a/../b", "x" * 200):
            record.id = wrong
            assert await provider.machines() == {}
            for request in (provider.stop(wrong), provider.connect(wrong)):
                with pytest.raises(BackendUnavailable, match="not valid"):
                    await request
    machines = f"/v1/apps/{APP}/machines"
    assert {line.partition(" ")[2] for line in server.requests} <= {
        machines,
        f"{machines}/{machine_id}/wait",
    }


async def test_what_fly_says_is_repeated_in_one_line_that_is_short(server: FlyServer):
    hostile = "no image\x1b[31m\r\n{'level': 'error'}\u202e" + "x" * 100_000
    server.fail(CREATE, "status", status=422, message=hostile)
    async with opened(server) as provider:
        with pytest.raises(InvalidImage) as raised:
            await provider.start(order(new_sandbox_id()))
    assert "no image [31m {'level': 'error'} xx" in raised.value.message
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 400


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (200, '[{"id": "m1", "name": 7}]'),
        (200, '[{"id": "m1", "config": ["services"]}]'),
        (200, '[{"id": "m1", "config": {"services": {"ports": 1}}}]'),
        (200, '[{"id": "m1", "config": {"services": [{"ports": [null]}]}}]'),
        (200, "[null]"),
        (200, '{"machines": []}'),
        (200, DEEP),
        (500, DEEP),
        (500, '[{"error": "trouble"}]'),
    ],
)
async def test_a_list_of_another_form_is_a_named_error(server: FlyServer, status, content):
    server.fail(LIST, "answer", status=status, content=content, times=99)
    async with opened(server) as provider:
        for request in (provider.machines, lambda: provider.start(order(new_sandbox_id()))):
            with pytest.raises(BackendUnavailable, match="Fly does not answer as it") as raised:
                await request()
            assert len(raised.value.message) < 400


@pytest.mark.parametrize(
    "content",
    [
        '{"state": []}',
        '{"state": "started", "config": [], "private_ip": null}',
        '{"state": "started", "private_ip": {"host": "elsewhere"}}',
        '{"state": "started", "config": {"metadata": ["sandkasten_port"]}}',
        '{"state": "stopped", "events": {"request": 1}}',
        '{"state": "stopped", "events": [{"request": {"exit_event": ["oom"]}}]}',
        '{"state": "stopped", "events": [{"request": {"MonitorEvent": "none"}}]}',
    ],
)
async def test_a_machine_of_another_form_is_a_named_error(server: FlyServer, content):
    server.fail(SHOW, "answer", status=200, content=content, times=99)
    async with opened(server) as provider:
        with pytest.raises(BackendUnavailable, match="Fly does not answer as it"):
            await provider.connect("m1")
        server.fail(CREATE, "answer", status=200, content='{"id": ["m1"]}', times=99)
        with pytest.raises(BackendUnavailable, match="Fly does not answer as it"):
            await provider.start(order(new_sandbox_id()))


async def test_a_machine_is_reached_at_its_private_address(server: FlyServer):
    async with opened(server, reach="private") as provider:
        machine_id = await provider.start(order(new_sandbox_id(), "python3", "-c", ECHO))
        record = server.records[machine_id]
        assert "services" not in record.config
        await asyncio.to_thread(server.call, server.private_network(record, 8484))
        assert await _heard(provider, machine_id) == b"secret"
        record.private_ip = "elsewhere.example"
        with pytest.raises(BackendUnavailable, match="address"):
            await provider.connect(machine_id)


async def test_asked_twice_there_is_one_machine(server: FlyServer):
    sandbox_id = new_sandbox_id()
    async with opened(server) as first, opened(server) as second:
        machine_ids = await asyncio.gather(
            first.start(order(sandbox_id)), second.start(order(sandbox_id))
        )
    assert machine_ids[0] == machine_ids[1]
    assert len(server.records) == 1


async def test_machines_of_one_app_have_ports_of_their_own(server: FlyServer):
    async with opened(server) as provider:
        await asyncio.gather(*(provider.start(order(new_sandbox_id())) for _ in range(4)))
    ports = {machine.config["services"][0]["ports"][0]["port"] for machine in server.live}
    assert len(ports) == 4


@pytest.mark.parametrize("how", ["cut", "half", "status"])
async def test_a_create_whose_answer_is_lost_makes_one_machine(server: FlyServer, how):
    server.fail(CREATE, how, done=True)
    sandbox_id = new_sandbox_id()
    async with opened(server) as provider:
        machine_id = await provider.start(order(sandbox_id))
        assert await provider.find(sandbox_id) == machine_id
    assert [machine.id for machine in server.records.values()] == [machine_id]


@pytest.mark.parametrize("how", ["cut", "half", "status"])
async def test_a_create_that_failed_is_tried_again(server: FlyServer, how):
    server.fail(CREATE, how, times=2)
    async with opened(server) as provider:
        machine_id = await provider.start(order(new_sandbox_id()))
    assert [machine.id for machine in server.records.values()] == [machine_id]


@pytest.mark.parametrize("how", ["cut", "half", "status", "hang"])
async def test_an_outage_is_a_named_error_and_what_was_made_is_found(server: FlyServer, how):
    server.fail(CREATE, how, done=True, times=99)
    sandbox_id = new_sandbox_id()
    timeout_s = 0.2 if how == "hang" else PATIENCE_S
    async with opened(server, timeout_s=timeout_s) as provider:
        with pytest.raises(BackendUnavailable, match="Fly") as raised:
            await provider.start(order(sandbox_id))
        assert "try again" in raised.value.hint
    assert len(server.records) == 1
    async with opened(server) as provider:
        machine_id = await provider.find(sandbox_id)
        assert machine_id is not None
        await provider.stop(machine_id)
    assert server.live == []


async def test_fly_is_asked_again_when_it_says_so(server: FlyServer):
    server.fail(CREATE, "status", status=429, headers={"Retry-After": "0.01"}, times=5)
    async with opened(server) as provider:
        await provider.start(order(new_sandbox_id()))
    assert len(server.records) == 1


async def test_a_long_wait_is_the_callers(server: FlyServer):
    server.fail(LIST, "status", status=429, headers={"Retry-After": "600"})
    async with opened(server) as provider:
        with pytest.raises(Busy, match="rate") as raised:
            await provider.machines()
    assert raised.value.details["retry_after_s"] == 600
    assert raised.value.retryable


async def test_a_clock_that_differs_decides_nothing(server: FlyServer):
    server.clock_ahead_s = 10 * 365 * 86400
    late = {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}
    server.fail(LIST, "status", status=429, headers=late)
    sandbox_id = new_sandbox_id()
    async with opened(server) as provider:
        machine_id = await provider.start(order(sandbox_id))
        assert await provider.find(sandbox_id) == machine_id


async def test_a_token_that_expired_is_named(server: FlyServer):
    async with opened(server) as provider:
        machine_id = await provider.start(order(new_sandbox_id()))
        server.token = "another"
        for request in (
            provider.machines(),
            provider.connect(machine_id),
            provider.stop(machine_id),
            provider.start(order(new_sandbox_id())),
        ):
            with pytest.raises(BackendUnavailable, match="credentials") as raised:
                await request
            assert "FLY_API_TOKEN" in raised.value.hint
            assert TOKEN not in str(raised.value)
        readiness = await provider.check()
    assert not readiness.ready
    assert "FLY_API_TOKEN" in readiness.remedy
    assert len(server.records) == 1


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_machine_that_vanished_is_lost(server: FlyServer, forgets):
    sandbox_id = new_sandbox_id()
    server.forgets = forgets
    async with opened(server) as provider:
        machine_id = await provider.start(order(sandbox_id))
        await (await provider.connect(machine_id)).aclose()
        await asyncio.to_thread(server.vanish, machine_id)
        with pytest.raises(SandboxLost):
            await provider.connect(machine_id)
        assert await provider.find(sandbox_id) is None
        await provider.stop(machine_id)


@pytest.mark.parametrize("how", ["cut", "status"])
async def test_a_machine_is_reached_while_the_api_is_away(server: FlyServer, how):
    async with opened(server) as provider:
        machine_id = await provider.start(order(new_sandbox_id(), "python3", "-c", ECHO))
        assert await _heard(provider, machine_id) == b"secret"
        server.fail(SHOW, how, times=99)
        assert await _heard(provider, machine_id) == b"secret"


async def test_a_machine_that_does_not_start_says_why(server: FlyServer):
    server.fail(WAIT, "status", status=408, times=999)
    async with opened(server) as provider:
        with pytest.raises(BackendUnavailable, match="exit code 127") as raised:
            await provider.start(order(new_sandbox_id(), "/no/such/program"))
    assert "programs" in raised.value.hint


async def test_a_machine_whose_first_process_ends_is_not_charged(server: FlyServer):
    async with opened(server) as provider:
        machine_id = await provider.start(order(new_sandbox_id(), "sleep", "0.01"))
        async with asyncio.timeout(PATIENCE_S):
            while server.live:  # noqa: ASYNC110  (another thread)
                await asyncio.sleep(0.005)
        with pytest.raises(SandboxLost, match="exit code 0"):
            await provider.connect(machine_id)


async def test_a_removal_that_fails_is_an_error_and_can_be_repeated(server: FlyServer):
    async with opened(server) as provider:
        machine_id = await provider.start(order(new_sandbox_id()))
        server.fail(DELETE, "status", times=3)
        with pytest.raises(BackendUnavailable):
            await provider.stop(machine_id)
        server.records[machine_id].leased = True
        with pytest.raises(BackendUnavailable, match="lease"):
            await provider.stop(machine_id)
        server.records[machine_id].leased = False
        await provider.stop(machine_id)
    assert server.live == []


@pytest.mark.parametrize(
    ("changed", "reason", "remedy"),
    [
        ({"app": ""}, "backends.fly.app", "fly apps create"),
        ({"api_token": ""}, "token", "FLY_API_TOKEN"),
        ({"app": "nobody"}, "no app nobody", "fly apps create nobody"),
        ({"address": ""}, "address", "fly ips allocate"),
        ({"api_url": "http://127.0.0.1:1"}, "does not answer", "try again"),
    ],
)
async def test_what_is_missing_is_said_with_the_remedy(server: FlyServer, changed, reason, remedy):
    server.addresses[0]["shared"] = True
    async with opened(server, **changed) as provider:
        readiness = await provider.check()
    assert not readiness.ready
    assert reason in readiness.reason
    assert remedy in readiness.remedy
