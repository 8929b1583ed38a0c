"""Pausing, reclaiming and idleness of real sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import Conflict, NotFound, SandboxLost, SandkastenError
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Swept, UpdateRequest
from sandkasten_runtime.backends.local.backend import LocalBackend
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.images.host_image import HostImages
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


class MovedClock(SystemClock):
    ahead_s = 0.0

    def boottime(self) -> float:
        return super().boottime() + self.ahead_s


class Site:
    """One data directory with one engine per simulated process."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.clock = MovedClock()
        self.engines: list[Engine] = []
        self.engine = self.open()

    def open(self, policy: Policy | None = None) -> Engine:
        backend = LocalBackend(self.data_dir)
        self.engines.append(
            Engine(
                backends={backend.name: backend},
                default_backend=backend.name,
                store=DirectoryStore(self.data_dir / "ledger"),
                images=HostImages(),
                policy=policy or Policy(),
                clock=self.clock,
            )
        )
        return self.engines[-1]

    async def aclose(self) -> None:
        for info in await self.engine.list():
            await self.engine.destroy(info.id)
        for engine in self.engines:
            await engine.aclose()

    def group(self, the_id: str, controller: str) -> Path:
        return Path("/sys/fs/cgroup", controller, "sandkasten", the_id)


@pytest.fixture
async def site(tmp_path):
    opened = Site(tmp_path)
    yield opened
    await opened.aclose()


@pytest.fixture
async def box(site):
    return (await site.engine.create(CreateRequest())).id


async def until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not await look():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.05)


async def gone(engine: Engine, the_id: str) -> bool:
    return (await engine.get(the_id)).status == "lost"


# ---- pausing


@pytest.mark.promise("P31")
async def test_nothing_inside_runs_while_it_is_paused(site, box):
    engine = site.engine
    await engine.exec_start(box, ExecRequest(("sh", "-c", "while :; do :; done")))
    info = await engine.pause(box)
    assert info.status == "paused"
    before = (await engine.usage(box)).cpu_usec
    await asyncio.sleep(0.2)
    assert (await engine.usage(box)).cpu_usec == before
    with pytest.raises(Conflict, match="is paused"):
        await engine.exec(box, ExecRequest("echo no"))
    assert (await engine.stats(box)).usage.pids is not None
    assert (await engine.resume(box)).status == "running"

    async def works() -> bool:
        return (await engine.usage(box)).cpu_usec > before

    await until(works, "it runs again")


@pytest.mark.promise("P31")
async def test_pause_and_resume_succeed_twice_and_the_shell_remembers(site, box):
    engine = site.engine
    await engine.exec(box, ExecRequest("cd /tmp; here=7"))
    for _ in range(3):
        await engine.pause(box)
        await engine.pause(box)
        await engine.resume(box)
        await engine.resume(box)
        assert (await engine.exec(box, ExecRequest("echo $here $PWD"))).stdout == b"7 /tmp\n"


# Says that it has begun, and ends when it is told to.
HELD = "echo begun >/tmp/begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo done"


async def begun(engine: Engine, box: str) -> None:
    async def said() -> bool:
        seen = await engine.exec(box, ExecRequest(("cat", "/tmp/begun")))
        return seen.stdout == b"begun\n"

    await until(said, "the command has begun")


async def let_go(engine: Engine, box: str) -> None:
    await engine.exec(box, ExecRequest(("touch", "/tmp/go")))


@pytest.mark.promise("P31")
@pytest.mark.parametrize("of", few(["a process", "the shell"]))
async def test_a_deadline_does_not_count_the_time_it_was_paused(site, box, of):
    engine = site.engine
    # A busy machine may need all of it before and after the pause: then a longer one.
    for deadline_s in (3, 10, 25):
        await engine.exec(box, ExecRequest("rm -f /tmp/begun /tmp/go; here=7"))
        command = HELD if of == "the shell" else ("sh", "-c", HELD)
        running = asyncio.create_task(
            engine.exec(box, ExecRequest(command, timeout_seconds=deadline_s))
        )
        await begun(engine, box)
        await engine.pause(box)
        await asyncio.sleep(deadline_s + 0.5)
        await engine.resume(box)
        await let_go(engine, box)
        result = await asyncio.wait_for(running, PATIENCE_S)
        if not result.timed_out:
            break
    assert (result.stdout, result.status, result.exit_code) == (b"done\n", "completed", 0)
    assert result.duration_ms >= deadline_s * 1000
    assert (await engine.exec(box, ExecRequest("echo $here"))).stdout == b"7\n"


async def test_a_deadline_still_ends_a_command_after_a_pause(site, box):
    """The counterpart: the clock continues where it stopped."""
    engine = site.engine
    started = await engine.exec_start(box, ExecRequest("sleep 600", timeout_seconds=1))
    await engine.pause(box)
    await engine.resume(box)
    assert (await engine.exec_get(box, started.exec_id, wait_s=PATIENCE_S)).timed_out


async def test_a_pause_by_another_process_is_visible_to_all(site, box):
    mine, other = site.engine, site.open()
    running = asyncio.create_task(mine.exec(box, ExecRequest(HELD, shell="a")))
    await begun(mine, box)
    assert (await mine.exec(box, ExecRequest("echo ok"))).stdout == b"ok\n"
    await other.pause(box)
    assert await mine._handles.peek(box).channel.wait_closed(PATIENCE_S)
    with pytest.raises(Conflict, match="is paused"):
        await mine.exec(box, ExecRequest("echo no"))
    with pytest.raises(Conflict, match="is paused"):
        await mine.files.list(box, "/workspace")
    assert [one.status for one in await mine.list()] == ["paused"]
    assert not running.done()
    third = site.open()
    await third.resume(box)
    await let_go(third, box)
    assert (await asyncio.wait_for(running, PATIENCE_S)).stdout == b"done\n"
    assert (await mine.exec(box, ExecRequest("echo ok"))).stdout == b"ok\n"


async def test_a_waiting_call_fails_with_the_pause(site, box):
    engine = site.engine
    started = await engine.exec_start(box, ExecRequest(("sleep", "600")))
    waiting = asyncio.create_task(engine.exec_get(box, started.exec_id, wait_s=PATIENCE_S))
    await asyncio.sleep(0.2)
    await site.open().pause(box)
    with pytest.raises(Conflict, match="is paused"):
        await asyncio.wait_for(waiting, PATIENCE_S)
    await engine.resume(box)
    assert (await engine.exec_get(box, started.exec_id)).status == "running"


MAKER = """
import sys, time
from sandkasten import Sandbox
box = Sandbox(data_dir=sys.argv[1])
box.exec("kept=9")
box.pause()
print(box.id, flush=True)
time.sleep(600)
"""


def paused_by_one_that_was_killed(data_dir: Path) -> str:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    with maker:
        assert maker.stdout is not None
        the_id = maker.stdout.readline().strip()
        maker.send_signal(signal.SIGKILL)
        maker.wait(PATIENCE_S)
    return the_id


@pytest.mark.promise("P31")
async def test_a_paused_sandbox_survives_kill_9_and_another_process_resumes_it(site):
    the_id = await asyncio.to_thread(paused_by_one_that_was_killed, site.data_dir)
    assert await site.engine.sweep() == Swept()
    assert (await site.engine.get(the_id)).status == "paused"
    await site.engine.resume(the_id)
    assert (await site.engine.exec(the_id, ExecRequest("echo $kept"))).stdout == b"9\n"


@pytest.mark.promise("P31")
async def test_an_interrupted_pause_is_finished_by_the_reaper(site, box):
    """A process was killed after it wrote the row and before it used the freezer."""
    store = DirectoryStore(site.data_dir / "ledger")
    row = await store.get(box)
    assert row is not None
    await store.put(replace(row, state=State.PAUSED))
    other = site.open()
    frozen = site.group(box, "freezer") / "freezer.state"
    assert frozen.read_text() == "THAWED\n"
    assert await other.sweep() == Swept()
    assert frozen.read_text() == "FROZEN\n"
    await other.resume(box)
    assert (await other.exec(box, ExecRequest("echo ok"))).stdout == b"ok\n"


@pytest.mark.promise("P31")
async def test_a_paused_sandbox_is_destroyed_with_everything_in_it(site, box):
    engine = site.engine
    await engine.exec(box, ExecRequest("sleep 600 & sleep 600 & setsid sleep 600 &"))
    await engine.pause(box)
    await site.open().destroy(box)
    assert not site.group(box, "freezer").exists()
    assert not site.group(box, "memory").exists()
    assert not (site.data_dir / "cells" / box).exists()
    with pytest.raises(NotFound):
        await engine.resume(box)


@pytest.mark.promise("P31")
async def test_the_reaper_ends_a_paused_sandbox_at_its_lifetime(site):
    info = await site.engine.create(CreateRequest(SandboxOptions(lifetime_seconds=300)))
    await site.engine.pause(info.id)
    site.clock.ahead_s = 301
    assert await site.open().sweep() == Swept(expired=(info.id,))
    assert not (site.data_dir / "cells" / info.id).exists()


async def test_the_lifetime_counts_during_a_pause(site):
    """Resumed after its end, it ends itself without a sweep."""
    # A busy machine may need all of it to pause: then a longer one.
    for lifetime_s in (3, 10, 30):
        info = await site.engine.create(CreateRequest(SandboxOptions(lifetime_seconds=lifetime_s)))
        with suppress(NotFound, SandboxLost):
            await site.engine.pause(info.id)
            break
    await asyncio.sleep(lifetime_s + 0.2)
    # Either it ends before it has answered, or right after.
    with suppress(NotFound, SandboxLost):
        await site.engine.resume(info.id)
    await until(lambda: gone(site.engine, info.id), "it has ended")


@pytest.mark.promise("P31")
async def test_the_idle_time_does_not_count_during_a_pause(site):
    said = b""
    # A busy machine may need all of it before and after the pause: then a longer one.
    for ttl_s in (2, 8, 25):
        with suppress(SandkastenError):
            info = await site.engine.create(
                CreateRequest(SandboxOptions(ttl_seconds=ttl_s, lifetime_seconds=600))
            )
            await site.engine.pause(info.id)
            await asyncio.sleep(ttl_s + 1)
            await site.engine.resume(info.id)
            said = (await site.engine.exec(info.id, ExecRequest("echo ok"))).stdout
            break
    assert said == b"ok\n"


async def test_a_sandbox_without_the_v1_freezer_is_paused_by_v2(tmp_path):
    site = Site(tmp_path)
    backend = site.engine._handles.backend("local")
    assert isinstance(backend, LocalBackend)
    hybrid = backend._sandboxes.hierarchies
    backend._sandboxes.hierarchies = type(hybrid)(
        {name: where for name, where in hybrid.v1.items() if name != "freezer"}, hybrid.v2
    )
    try:
        info = await site.engine.create(CreateRequest())
        assert not site.group(info.id, "freezer").exists()
        await site.engine.pause(info.id)
        frozen = site.group(info.id, "unified") / "cgroup.events"
        assert "frozen 1" in frozen.read_text()
        await site.engine.resume(info.id)
        assert (await site.engine.exec(info.id, ExecRequest("echo ok"))).stdout == b"ok\n"
        await site.engine.pause(info.id)
    finally:
        await site.aclose()


# ---- memory


@pytest.mark.promise("P31")
async def test_reclaim_releases_the_page_cache_and_keeps_the_files(site, box):
    engine = site.engine
    await engine.exec(box, ExecRequest("head -c 60000000 /dev/zero >big; sync"))
    before = (await engine.usage(box)).memory_bytes
    freed = await engine.reclaim(box)
    after = (await engine.usage(box)).memory_bytes
    assert freed > 40 * MIB
    assert after < before - 40 * MIB
    assert (await engine.exec(box, ExecRequest("wc -c <big"))).stdout == b"60000000\n"
    await engine.pause(box)
    assert await engine.reclaim(box) > 0


async def test_an_idle_sandbox_releases_memory_when_configured(site, box):
    engine = site.open(Policy(reclaim_after_s=100))
    await engine.exec(box, ExecRequest("head -c 60000000 /dev/zero >big; sync"))
    await engine.sweep()
    before = (await engine.usage(box)).memory_bytes
    site.clock.ahead_s = 50
    await engine.sweep()
    assert (await engine.usage(box)).memory_bytes > before - 20 * MIB
    site.clock.ahead_s = 160
    await engine.sweep()
    assert (await engine.usage(box)).memory_bytes < before - 40 * MIB


# ---- idleness


async def soon_idle(site: Site, the_id: str) -> None:
    """Not from its creation, because a busy machine may take longer than that between two calls."""
    await site.engine.update(the_id, UpdateRequest(ttl_seconds=1))


@pytest.mark.promise("P30")
async def test_an_idle_shell_does_not_count_as_work(site):
    info = await site.engine.create(CreateRequest(SandboxOptions(ttl_seconds=600)))
    await site.engine.exec(info.id, ExecRequest("true"))
    await site.engine.exec(info.id, ExecRequest("true", shell="second"))
    await soon_idle(site, info.id)
    await until(lambda: gone(site.engine, info.id), "idle shells keep nothing alive")


@pytest.mark.promise("P30")
async def test_listing_and_measuring_do_not_count_as_activity(site):
    info = await site.engine.create(CreateRequest(SandboxOptions(ttl_seconds=1)))
    await site.engine.aclose()

    async def look() -> bool:
        other = site.engine
        await other.list()
        try:
            await other.usage(info.id)
        except (NotFound, SandboxLost):
            return True
        return await gone(other, info.id)

    await until(look, "it ends although somebody looks all the time")


LIVING: dict[str, str | tuple[str, ...]] = {
    "background job": "sleep 4 &",
    "daemon": "setsid sleep 4 >/dev/null 2>&1 &",
    "orphan": "(sleep 4 & exec sleep 0.1)",
    "left by a program": ("sh", "-c", "sleep 4 >/dev/null 2>&1 &"),
}


@pytest.mark.promise("P30")
async def test_a_running_child_counts_as_work_until_it_ends(site):
    async def lived_for(what: str) -> float:
        info = await site.engine.create(CreateRequest(SandboxOptions(ttl_seconds=600)))
        began = time.monotonic()
        await site.engine.exec(info.id, ExecRequest(LIVING[what]))
        await soon_idle(site, info.id)
        await until(lambda: gone(site.engine, info.id), f"{what}: it ends when its child has ended")
        return time.monotonic() - began

    # At once: each only waits for the clock.
    lived = dict(zip(LIVING, await asyncio.gather(*map(lived_for, LIVING)), strict=True))
    assert {what: seconds for what, seconds in lived.items() if seconds < 3} == {}


async def test_a_connection_closed_by_its_peer_does_not_count_as_work(site):
    info = await site.engine.create(CreateRequest(SandboxOptions(ttl_seconds=600)))
    server = (
        "import socket,time; s=socket.create_server(('127.0.0.1',7777)); "
        "open('/tmp/up','w'); c,_=s.accept(); time.sleep(2)"
    )
    await site.engine.exec_start(info.id, ExecRequest(("/usr/bin/python3", "-c", server)))
    held = await site.engine.exec(
        info.id,
        ExecRequest(
            "while ! [ -e /tmp/up ]; do sleep 0.05; done; exec 7<>/dev/tcp/127.0.0.1/7777;"
            "cat /proc/net/tcp"
        ),
    )
    assert b" 01 " in held.stdout, "the idle shell holds one end"
    await soon_idle(site, info.id)
    await until(lambda: gone(site.engine, info.id), "it ends after the server")


async def test_a_stream_to_a_port_inside_counts_as_work(site):
    info = await site.engine.create(CreateRequest(SandboxOptions(ttl_seconds=600)))
    server = (
        "import socket,os; s=socket.create_server(('127.0.0.1',7777)); "
        "open('/tmp/up','w'); c,_=s.accept(); s.close(); c.recv(1)"
    )
    await site.engine.exec_start(info.id, ExecRequest(("/usr/bin/python3", "-c", server)))
    await site.engine.exec(info.id, ExecRequest("while ! [ -e /tmp/up ]; do sleep 0.05; done"))
    async with site.engine.connect(info.id, 7777):
        await soon_idle(site, info.id)
        await asyncio.sleep(2.5)
        assert not await gone(site.engine, info.id)
    await until(lambda: gone(site.engine, info.id), "it ends after the stream")


@pytest.mark.promise("P30")
async def test_a_sleeping_daemon_does_not_outlive_the_lifetime(site):
    began = time.monotonic()
    info = await site.engine.create(CreateRequest(SandboxOptions(ttl_seconds=600)))
    await site.engine.exec(info.id, ExecRequest("setsid sleep 600 >/dev/null 2>&1 &"))
    # It counts from the creation, which may be long ago on a busy machine.
    lifetime = 5 + int(time.monotonic() - began)
    await site.engine.update(info.id, UpdateRequest(ttl_seconds=1, lifetime_seconds=lifetime))
    await until(lambda: gone(site.engine, info.id), "the lifetime ends it")


# ---- the command line


def cli(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandkasten_server.cli", "--data-dir", str(site.data_dir), *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ},
        check=False,
    )


@pytest.mark.timeout(600)
async def test_pause_and_resume_work_from_the_command_line(site, box):
    await site.engine.exec(box, ExecRequest("head -c 30000000 /dev/zero >big; sync"))
    done = await asyncio.to_thread(cli, site, "pause", box[:12], "--reclaim", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["id"], answer["status"]) == (0, box, "paused")
    assert answer["reclaimed_bytes"] > 10 * MIB
    refused = await asyncio.to_thread(cli, site, "exec", box, "echo no")
    assert refused.returncode == 125
    assert f"error: sandbox {box} is paused\nhint: resume it first" in refused.stderr
    (listed,) = json.loads((await asyncio.to_thread(cli, site, "ls", "--json")).stdout)
    assert listed["status"] == "paused"
    assert listed["memory_bytes"] > 0
    stats = json.loads((await asyncio.to_thread(cli, site, "stats", box, "--json")).stdout)
    assert (stats["processes"], stats["usage"]["pids"] > 0) == (None, True)
    assert (await asyncio.to_thread(cli, site, "stats", box)).returncode == 0
    done = await asyncio.to_thread(cli, site, "resume", box)
    assert (done.returncode, done.stdout) == (0, f"{box}\n")
    assert (await asyncio.to_thread(cli, site, "exec", box, "echo ok")).stdout == "ok\n"
    said = await asyncio.to_thread(cli, site, "pause", box, "--reclaim")
    assert (said.returncode, said.stdout) == (0, f"{box}\n")
    assert said.stderr.endswith("released\n")
