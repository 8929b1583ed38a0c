"""dockerd is stopped or hangs: requests fail in time, nothing is lost, other backends continue."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from plugins.docker.tests.site import environment, freeze, nothing_left, revive, until
from tests.daemon.process import DaemonProcess, ask, running
from tests.engines.engine import Engine
from tests.patience import FAR_TOO_LATE_S

# Engines are stopped and started again, and daemons too.
pytestmark = [pytest.mark.timeout(300), pytest.mark.promise("P57")]
# Of one request to the engine: nobody gives up while a test lasts, or somebody soon does. What is
# asked of us may take a few of them.
PATIENT, IMPATIENT = "600", "2"


class Client:
    def __init__(self, daemon: DaemonProcess, http: aiohttp.ClientSession) -> None:
        self.daemon = daemon
        self.http = http

    async def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        return await ask(self.http, method, f"{self.daemon.url}/v1/sessions{path}", body)

    async def good(self, method: str, path: str, body: object = None):
        status, answer = await self(method, path, body)
        assert status < 300, answer
        return answer

    async def sh(self, the_id: str, command: str) -> str:
        return (await self.good("POST", f"/{the_id}/exec", {"cmd": command}))["stdout"]

    async def refused(self, method: str, path: str, body: object = None) -> None:
        began = time.monotonic()
        status, answer = await self(method, path, body)
        took_s = time.monotonic() - began
        assert status == 503, (method, path, answer)
        assert answer["code"] == "BACKEND_UNAVAILABLE"
        assert answer["retryable"] is True
        assert answer["hint"]
        assert took_s < FAR_TOO_LATE_S, f"{method} {path} took {took_s:.1f} s"


@pytest.mark.long(reason="`make test` has the shorter outage below")
async def test_an_unavailable_engine_affects_only_its_own_sessions(
    live_restore_docker, data, monkeypatch
):
    variables = environment(live_restore_docker.reached, docker_timeout_seconds=PATIENT)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with running(data) as daemon, aiohttp.ClientSession() as http:
        client = Client(daemon, http)
        far = {"backend": "docker"}
        kept_id = (await client.good("POST", "", far))["id"]
        doomed = (await client.good("POST", "", far))["id"]
        near = (await client.good("POST", "", {"backend": "local", "image": "host"}))["id"]
        assert await client.sh(kept_id, "cd /tmp; X=kept; echo $X") == "kept\n"
        await client.sh(near, "X=near")

        async def requests_are_refused() -> None:
            await asyncio.gather(
                client.refused("POST", "", far),
                client.refused("POST", f"/{kept_id}/exec", {"cmd": "true"}),
                client.refused("POST", f"/{kept_id}/fs/write", {"path": "/x", "content": "x"}),
                others_do_not_notice(),
            )
            assert (await client.good("GET", f"/{kept_id}"))["status"] == "running"

        async def others_do_not_notice() -> None:
            assert await client.sh(near, "echo $X") == "near\n"
            created = (await client.good("POST", "", {"backend": "local", "image": "host"}))["id"]
            await client.good("DELETE", f"/{created}")

        async def restarted(timeout_s: str) -> None:
            monkeypatch.setenv("SANDKASTEN_DOCKER_TIMEOUT_SECONDS", timeout_s)
            await daemon.kill()
            await daemon.start()

        async def answers() -> bool:
            status, answer = await client("POST", f"/{kept_id}/exec", {"cmd": "echo $X $PWD"})
            assert status in (200, 503), answer
            return status == 200 and answer["stdout"] == "kept /tmp\n"

        await asyncio.to_thread(freeze, live_restore_docker)
        waiting = asyncio.create_task(client.good("POST", "", far))
        await others_do_not_notice()
        assert not waiting.done()
        revive(live_restore_docker)
        await client.good("DELETE", f"/{(await waiting)['id']}")
        assert await answers()

        await restarted(IMPATIENT)
        await asyncio.to_thread(freeze, live_restore_docker)
        await requests_are_refused()
        revive(live_restore_docker)
        await until(answers)

        await asyncio.to_thread(live_restore_docker.stop)
        await requests_are_refused()
        await client.refused("DELETE", f"/{doomed}")
        # One that starts while it is away serves the others, and forgets nothing.
        await restarted(PATIENT)
        await requests_are_refused()

        await asyncio.to_thread(live_restore_docker.start)
        assert await answers()

        async def finished() -> bool:
            return await asyncio.to_thread(live_restore_docker.reached.containers) == [kept_id]

        async def told() -> bool:
            status, answer = await client("GET", f"/{doomed}")
            return status == 410 and "destroyed" in answer["message"]

        await until(finished)
        await until(told)
        new = (await client.good("POST", "", far))["id"]
        assert await client.sh(new, "echo new") == "new\n"
        for the_id in (kept_id, new, near):
            await client.good("DELETE", f"/{the_id}")
        assert await nothing_left(live_restore_docker.reached, data) == []


@pytest.mark.long(reason="`make test` has it without a daemon (test_restart)")
async def test_the_daemon_reports_sessions_that_died_with_their_engine(
    stoppable_docker, data, monkeypatch
):
    for name, value in environment(stoppable_docker.reached).items():
        monkeypatch.setenv(name, value)
    async with running(data) as daemon, aiohttp.ClientSession() as http:
        client = Client(daemon, http)
        dead = (await client.good("POST", "", {"backend": "docker"}))["id"]
        command = {"cmd": ["sleep", "600"], "background": True}
        started = await client.good("POST", f"/{dead}/exec", command)
        await asyncio.to_thread(Engine.restart, stoppable_docker)

        async def over() -> bool:
            return (await client("POST", f"/{dead}/exec", {"cmd": "true"}))[0] == 410

        await until(over)
        listed = await client.good("GET", "?status=running")
        assert [entry["id"] for entry in listed] == []
        ended = await client.good("GET", f"/{dead}/execs/{started['exec_id']}")
        assert (ended["status"], ended["exit_code"]) == ("lost", None)
        new = (await client.good("POST", "", {"backend": "docker"}))["id"]
        assert await client.sh(new, "echo new") == "new\n"
        await client.good("DELETE", f"/{new}")
        assert await nothing_left(stoppable_docker.reached, data) == []
