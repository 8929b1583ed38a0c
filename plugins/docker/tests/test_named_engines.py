"""Several Docker Engines of one installation: one on a socket, one over TCP with certificates."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from plugins.docker.tests.site import IMAGE, crash, freeze, revive, sh, until
from sandkasten.errors import (
    BackendUnavailable,
    InvalidConfiguration,
    InvalidRequest,
    QuotaExceeded,
    UnsupportedByBackend,
)
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from tests.daemon.process import ask, running
from tests.engine.injections import Events
from tests.engines import lent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten_runtime.engine.engine import Engine
    from tests.engines.engine import Engine as Dockerd
    from tests.engines.reached import Reached

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.promise("P119")]


@pytest.fixture
def west(docker_engine: Reached) -> Reached:
    return docker_engine


@pytest.fixture
def east() -> Reached:
    return lent.engine("remote", "busybox")


def entry(docker_engine: Reached, **more: Any) -> dict[str, Any]:
    """Return the entry of an engine in the settings."""
    certificates = {"cert_path": docker_engine.certificates} if docker_engine.certificates else {}
    return {"host": docker_engine.host, "workspace_mode": "volume", **certificates, **more}


@asynccontextmanager
async def opened(
    data: Path,
    *,
    keep: bool = False,
    flags: dict[str, str] | None = None,
    events: Events | None = None,
    **docker_engines: Any,
) -> AsyncIterator[Engine]:
    """Open an installation with these engines. The one without a name does not exist."""
    environ = {
        "HOME": str(data),
        "DOCKER_HOST": f"unix://{data}/nowhere.sock",
        "SANDKASTEN_DEFAULT_IMAGE": IMAGE,
        "SANDKASTEN_POOL_ONESHOT_SPARES": "0",
        "SANDKASTEN_DOCKER_ENGINES": json.dumps(docker_engines),
    }
    settings = load({"data_dir": str(data), **(flags or {})}, environ, data.parent)
    instance = await open_engine(settings, events=events)
    try:
        yield instance
    finally:
        try:
            for info in () if keep else await instance.list(all=True):
                await instance.destroy(info.id)
            for space in () if keep else await instance.workspaces.list():
                await instance.workspaces.delete(space.name)
        finally:
            await instance.aclose()


def on(backend: str, session_key: str | None = None, **more: Any) -> CreateRequest:
    return CreateRequest(SandboxOptions(backend=backend, **more), session_key=session_key)


def has(docker_engine: Reached, sandbox_id: str) -> bool:
    return sandbox_id in docker_engine.docker("ps", "--format", "{{.Names}}").split()


async def test_a_request_that_names_an_engine_gets_a_sandbox_there(
    west: Reached, east: Reached, data: Path
):
    flags = {"backend": "docker/west"}
    async with opened(data, flags=flags, west=entry(west), east=entry(east)) as sand:
        assert (await sand.create(CreateRequest())).backend == "docker/west"
        infos = {name: await sand.create(on(f"docker/{name}")) for name in ("west", "east")}
        for name, docker_engine, other in (("west", west, east), ("east", east, west)):
            info = infos[name]
            assert info.backend == f"docker/{name}"
            assert has(docker_engine, info.id)
            assert not has(other, info.id)
            assert (await sh(sand, info.id, "echo $((6*7))")).stdout == b"42\n"
        # The engine of backends.docker.* is another one, and is away.
        with pytest.raises(BackendUnavailable) as caught:
            await sand.create(on("docker"))
        assert caught.value.details["backend"] == "docker"
        for info in infos.values():
            await sand.destroy(info.id)
        assert not has(west, infos["west"].id)
        assert not has(east, infos["east"].id)


async def test_an_unknown_engine_or_label_is_refused_with_the_nearest_name(
    west: Reached, data: Path
):
    async with opened(data, west=entry(west, labels={"zone": "eu"})) as sand:
        for backend, hint in (
            ("docker/wset", "did you mean docker/west?"),
            ("docker/zone=eo", "did you mean zone=eu?"),
            ("docker/zone", "write docker/zone=VALUE"),
            ("docker/zone=", "write docker/KEY=VALUE"),
            ("docker/zone=eu,zone=eu", "write docker/KEY=VALUE"),
            ("docker/../west", "did you mean docker/west?"),
        ):
            with pytest.raises(InvalidRequest) as caught:
                await sand.create(on(backend))
            assert caught.value.hint.startswith(hint), caught.value
            assert caught.value.details["field"] == "backend"


async def test_an_error_of_an_engine_has_its_name_and_reason_and_doctor_its_address(data: Path):
    events = Events()
    hosts = {
        "west": f"unix://{data}/west.sock",
        "east": "tcp://127.0.0.1:9",
        "south": "ssh://nobody@127.0.0.1:9",
    }
    docker_engines: dict[str, Any] = {
        name: {"host": host, "labels": {"zone": "eu"}, "insecure": True}
        for name, host in hosts.items()
    }
    async with opened(data, events=events, **docker_engines) as sand:
        for backend, reason in (
            ("docker/west", "the Docker Engine west does not answer: .*No such file or directory"),
            ("docker/east", "the Docker Engine east does not answer: .*Connect call failed"),
            ("docker/south", "the Docker Engine south does not answer: ssh to … failed"),
            ("docker/zone=eu", "west"),
            ("docker", "the Docker Engine does not answer: .*No such file or directory"),
        ):
            with pytest.raises(BackendUnavailable, match=reason) as caught:
                await sand.create(on(backend))
            text = (
                f"{caught.value} {caught.value.details} {[str(item) for item in sand.degraded()]}"
            )
            assert ".sock" not in text
            assert "127.0.0.1" not in text
            assert caught.value.hint
        reports = {item.name: item.reason for item in await sand.backends()}
        away = {
            item["backend"]: item["reason"] for name, item in events.seen if name == "backend.away"
        }
        for reasons in (reports, away):
            assert "west.sock" in str(reasons["docker/west"])
            assert "127.0.0.1" in str(reasons["docker/east"])
            assert "127.0.0.1" in str(reasons["docker/south"])
        assert "nowhere.sock" in str(reports["docker"])


async def test_a_hint_about_a_named_engine_names_its_own_settings(data: Path):
    west = {"host": "tcp://127.0.0.1:9", "cert_path": f"{data}/absent"}
    async with opened(data, west=west) as sand:
        with pytest.raises(InvalidConfiguration) as caught:
            await sand.create(on("docker/west"))
        assert caught.value.hint == (
            "check backends.docker.engines.west.tls_ca, tls_cert and tls_key (or cert_path)"
        )
        assert caught.value.details["setting"] == "backends.docker.engines.west.tls_ca"
        [report] = [item for item in await sand.backends() if item.name == "docker/west"]
        assert (report.ready, report.remedy) == (False, caught.value.hint)


async def test_a_label_takes_the_first_engine_with_room_in_the_order_of_the_settings(
    west: Reached, east: Reached, data: Path
):
    docker_engines: dict[str, Any] = {
        "west": entry(west, labels={"zone": "eu", "disk": "ssd"}, max_sandboxes=1),
        "east": entry(east, labels={"zone": "eu"}, max_sandboxes=1),
    }
    async with opened(data, **docker_engines) as sand:
        # At once: neither has a row yet when the other one is chosen.
        first, second = await asyncio.gather(
            sand.create(on("docker/zone=eu", session_key="mine")),
            sand.create(on("docker/zone=eu")),
        )
        assert {first.backend, second.backend} == {"docker/west", "docker/east"}
        with pytest.raises(QuotaExceeded, match="west has 1 of 1 sandboxes"):
            await sand.create(on("docker/zone=eu,disk=ssd"))
        with pytest.raises(QuotaExceeded, match="west has 1 of 1 sandboxes"):
            await sand.create(on("docker/west"))
        with pytest.raises(QuotaExceeded, match="west: .* has 1 of 1 .*; east: .* has 1 of 1"):
            await sand.create(on("docker/zone=eu"))
        reports = {item.name: item for item in await sand.backends()}
        full = reports["docker/west"]
        assert (full.ready, full.sandboxes, full.max_sandboxes) == (True, 1, 1)
        assert full.labels == {"zone": "eu", "disk": "ssd"}
        assert full.features == reports["docker"].features
        assert not reports["docker"].ready
        # A session that exists stays where it is.
        assert (await sand.create(on("docker/zone=eu", session_key="mine"))).id == first.id
        await sand.destroy(first.id if first.backend == "docker/west" else second.id)
        assert (await sand.create(on("docker/zone=eu"))).backend == "docker/west"


async def test_a_named_workspace_is_on_one_engine_and_requests_go_there(
    west: Reached, east: Reached, data: Path
):
    docker_engines: dict[str, Any] = {
        "west": entry(west, labels={"zone": "eu"}),
        "east": entry(east),
    }
    async with opened(data, **docker_engines) as sand:
        info = await sand.create(on("docker/east", workspace_id="notes"))
        await sh(sand, info.id, "echo kept > a")
        await sand.destroy(info.id)
        with pytest.raises(UnsupportedByBackend) as caught:
            await sand.create(on("docker/west", workspace_id="notes"))
        assert "volume of backend docker/east" in caught.value.message
        assert "request backend docker/east" in caught.value.hint
        with pytest.raises(UnsupportedByBackend, match="docker/east, which does not have zone=eu"):
            await sand.create(on("docker/zone=eu", workspace_id="notes"))
        # A request that names no engine follows the workspace.
        again = await sand.create(on("docker", workspace_id="notes"))
        assert again.backend == "docker/east"
        assert (await sh(sand, again.id, "cat a")).stdout == b"kept\n"
        await sand.destroy(again.id)
        await sand.workspaces.copy("notes", "copy")
        async with sand.workspace_files.lent("copy") as lender:
            assert (await sand.files.read(lender, "a")).data == b"kept\n"


@pytest.mark.long(reason="`make test` has an engine that is killed, below")
async def test_an_engine_that_hangs_leaves_the_others_alone(
    live_restore_docker: Dockerd, east: Reached, data: Path
):
    near = live_restore_docker.reached
    docker_engines: dict[str, Any] = {
        "west": entry(near, labels={"zone": "eu"}),
        "east": entry(east, labels={"zone": "eu"}),
    }
    async with opened(data, **docker_engines) as sand:
        info = await sand.create(on("docker/zone=eu"))
        assert info.backend == "docker/west"
        await sh(sand, info.id, "X=kept")
        freeze(live_restore_docker)
        other = await sand.create(on("docker/zone=eu"))
        assert other.backend == "docker/east"
        assert (await sh(sand, other.id, "echo here")).stdout == b"here\n"
        assert "docker/west" in [item.details["backend"] for item in sand.degraded()]
        revive(live_restore_docker)
        assert (await sh(sand, info.id, "echo $X")).stdout == b"kept\n"


async def test_sandboxes_of_an_engine_that_left_the_settings_are_kept_there(
    west: Reached, east: Reached, data: Path
):
    async with opened(data, keep=True, west=entry(west), east=entry(east)) as sand:
        info = await sand.create(on("docker/west"))
        doomed = await sand.create(on("docker/west"))
        await sh(sand, info.id, "X=kept")
    async with opened(data, keep=True, east=entry(east)) as sand:
        await sand.recover()
        await sand.sweep()
        [shown] = [item for item in await sand.list() if item.id == info.id]
        assert shown.status == "running"
        with pytest.raises(BackendUnavailable, match="west is not in the settings") as caught:
            await sh(sand, info.id, "echo $X")
        assert "backends.docker.engines" in caught.value.hint
        with pytest.raises(BackendUnavailable, match="west is not in the settings"):
            await sand.destroy(doomed.id)
        assert (await sand.create(on("docker/east"))).backend == "docker/east"
    async with opened(data, west=entry(west), east=entry(east)) as sand:
        await sand.recover()
        await sand.sweep()
        assert (await sh(sand, info.id, "echo $X")).stdout == b"kept\n"

        async def removed() -> bool:
            return not has(west, doomed.id)

        # The watch may be removing it, and then a sweep leaves it alone.
        await until(removed)


async def test_an_engine_and_the_daemon_are_killed_during_a_command_and_nothing_is_lost(
    live_restore_docker: Dockerd, east: Reached, data: Path
):
    near = live_restore_docker.reached
    docker_engines: dict[str, Any] = {
        "west": entry(near, labels={"zone": "eu"}, max_sandboxes=5),
        "east": entry(east, labels={"zone": "eu"}),
    }
    environ = {
        "SANDKASTEN_DEFAULT_IMAGE": IMAGE,
        "SANDKASTEN_DOCKER_ENGINES": json.dumps(docker_engines),
        "SANDKASTEN_POOL_KINDS": f"{IMAGE} backend=docker/west",
    }
    async with running(data, environ=environ) as daemon, aiohttp.ClientSession() as http:

        async def asked(method: str, path: str, body: object = None) -> tuple[int, Any]:
            return await ask(http, method, f"{daemon.url}/v1/sessions{path}", body)

        async def made(backend: str) -> dict[str, Any]:
            status, answer = await asked("POST", "", {"backend": backend})
            assert status == 201, answer
            document: dict[str, Any] = answer
            return document

        async def said(session: dict[str, Any], command: str) -> str:
            status, answer = await asked("POST", f"/{session['id']}/exec", {"cmd": command})
            return str(answer["stdout"] if status == 200 else answer["code"])

        async def pooled() -> bool:
            document = await made("docker/west")
            await asked("DELETE", f"/{document['id']}")
            return bool(document["acquire_source"] == "pool")

        first, other = await made("docker/zone=eu"), await made("docker/east")
        assert (first["backend"], other["backend"]) == ("docker/west", "docker/east")
        await until(pooled)
        for document in (first, other):
            assert await said(document, "X=kept; echo begun > /workspace/mark") == ""
        running_command = asyncio.create_task(said(first, "sleep 600"))
        crash(live_restore_docker)
        assert await running_command == "BACKEND_UNAVAILABLE"
        assert (await made("docker/zone=eu"))["backend"] == "docker/east"
        assert await said(other, "echo $X") == "kept\n"
        async with http.get(f"{daemon.url}/metrics") as reply:
            metrics = await reply.text()
        assert 'sandkasten_backend_up{backend="docker/west"} 0.0' in metrics
        assert 'sandkasten_backend_max_sandboxes{backend="docker/west"} 5.0' in metrics
        assert 'sandkasten_sessions{backend="docker/east",state="running"}' in metrics
        await daemon.kill()
        await daemon.start()
        assert await said(other, "echo $X") == "kept\n"
        status, answer = await asked("POST", f"/{first['id']}/exec", {"cmd": "true"})
        assert (status, answer["details"]["backend"]) == (503, "docker/west")
        revive(live_restore_docker)

        async def answers() -> bool:
            return await said(first, "cat /workspace/mark") == "begun\n"

        await until(answers)
        for session in (await asked("GET", ""))[1]:
            assert (await asked("DELETE", f"/{session['id']}"))[0] < 300
