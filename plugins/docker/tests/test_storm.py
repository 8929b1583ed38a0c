"""Repeated `kill -9` of the daemon with live docker sessions.

Nothing acknowledged is lost, and after all sessions are destroyed nothing is left.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from plugins.docker.tests.site import LONG, environment, left, nothing_left, until
from tests.daemon.process import running
from tests.daemon.storm import Kept, Storm
from tests.engines import stock
from tests.engines.engine import Engine

pytestmark = pytest.mark.promise("P58")

# For each way into a sandbox: while the first is made, and when sessions live.
EARLY, LATER = (3, 7) if LONG else (1, 2)
RELAY = "--relay"


class DockerStorm(Storm):
    """After each start every session is as it was acknowledged."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.kept: list[Kept] = []

    async def before_the_first(self, kills: int) -> None:
        """Killed while it probes the engine."""
        for _ in range(kills):
            making = asyncio.create_task(self.ask("POST", "/v1/sessions", {}))
            await asyncio.sleep(self._random.uniform(0.02, 0.8))
            await self.daemon.kill()
            self.report.kills += 1
            await making
            await self.daemon.start()

    async def _kill(self, kills: int) -> None:
        for _ in range(kills):
            await super()._kill(1)
            for session in self.kept:
                path = f"/v1/sessions/{session.id}/exec"
                state = await self.told("POST", path, {"cmd": "echo $$ $PWD $MARK"})
                expected = f"{session.pid} /workspace/d m-{session.pid}\n"
                if state is None or state["stdout"] != expected:
                    self.report.unexpected.append(f"{session.id}: the shell is {state}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An engine that sees our mounts: sessions have volumes of exact size, on loop devices."""
    place = Path(tmp_path_factory.mktemp("shared"))
    with Engine(shares=place) as docker_engine:
        stock.put(docker_engine.reached, "busybox")
        yield docker_engine, place


@pytest.mark.long(reason="`make test` has a storm on `local`")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["volume", "bind"] if LONG else ["bind"])
async def test_no_session_is_lost_and_nothing_is_left_when_the_daemon_is_killed(
    shared, mode, monkeypatch, capsys
):
    docker_engine, place = shared
    data = place / mode
    for name, value in environment(docker_engine.reached, mode, backend="docker").items():
        monkeypatch.setenv(name, value)
    assert left(docker_engine.reached, data) == []
    async with running(data) as daemon, aiohttp.ClientSession() as http:
        storm = DockerStorm(daemon, http, seed=int(os.environ.get("SANDKASTEN_SEED", "7")))
        await storm.before_the_first(EARLY)
        storm.kept = sessions = await storm.prepared(2)
        await storm.blow(sessions, LATER, workers=2)
        with capsys.disabled():
            sys.stdout.write(f"\n{mode}: {storm.report}\n")
        assert storm.report.kills >= EARLY + LATER
        assert await storm.check(sessions) == []
        # Of all who were killed, nobody is still in there.
        ids = [session.id for session in sessions]

        async def alone() -> bool:
            return await asyncio.to_thread(relays, docker_engine, ids) <= len(sessions)

        await until(alone)
        for session in await storm.told("GET", "/v1/sessions?status=running&limit=1000"):
            assert await storm.ask("DELETE", f"/v1/sessions/{session['id']}")
        assert await nothing_left(docker_engine.reached, data) == []


def relays(docker_engine: Engine, ids: list[str]) -> int:
    """Return processes that relay a connection to a daemon, dead or alive."""
    listings = [docker_engine.docker("top", the_id, "-eo", "pid,args") for the_id in ids]
    return sum(line.count(RELAY) for text in listings for line in text.splitlines())
