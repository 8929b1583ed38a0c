"""dockerd restarts under live sessions: survivors are found again, dead ones are reported."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from plugins.docker.tests.site import FAR, crash, nothing_left, opened, sh, until
from sandkasten.errors import SandboxLost, SandkastenError, SessionExpired
from sandkasten.model.commands.exec_values import ExecRequest
from tests.engines.engine import Engine
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten_runtime.engine.engine import Engine as Ours

# Engines are stopped and started again.
pytestmark = [pytest.mark.timeout(300), pytest.mark.promise("P57")]
# With the one our sockets are the runner's own, with the other all goes through the engine.
MODES = ("bind", "volume")
COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"


async def begun(
    stack: AsyncExitStack, data: Path, docker_engine: Engine
) -> list[tuple[Ours, str, str]]:
    """Create a session with state and a counting command in each mode."""
    sessions = []
    for mode in MODES:
        sand = await stack.enter_async_context(opened(data / mode, docker_engine.reached, mode))
        the_id = (await sand.create(FAR)).id
        await sh(sand, the_id, "mkdir d; cd d; X=kept; echo kept > /workspace/file")
        counting = await sand.exec_start(the_id, ExecRequest(("sh", "-c", COUNT)))
        await until(partial(_counted, sand, the_id, counting.exec_id, 1))
        sessions.append((sand, the_id, counting.exec_id))
    return sessions


async def _counted(sand: Ours, the_id: str, counting: str, more_than: int) -> bool:
    return len((await sand.exec_get(the_id, counting)).stdout.split()) > more_than


@pytest.mark.long(reason="`make test` restarts engines that keep nothing")
async def test_sessions_survive_an_engine_restart_with_live_restore(live_restore_docker, data):
    async with AsyncExitStack() as stack:
        sessions = await begun(stack, data, live_restore_docker)
        await asyncio.to_thread(live_restore_docker.restart)
        for sand, the_id, counting in sessions:
            output = await sh(sand, the_id, "echo $X $PWD")
            assert output.stdout == b"kept /workspace/d\n"
            assert (await sand.get(the_id)).status == "running"
            before = len((await sand.exec_get(the_id, counting)).stdout.split())
            await until(partial(_counted, sand, the_id, counting, before))
            result = await sand.exec_get(the_id, counting)
            assert result.status == "running"
            numbers = result.stdout.split()
            assert numbers == [str(n).encode() for n in range(1, len(numbers) + 1)]
            await sand.exec_signal(the_id, counting, signal.SIGKILL)
        _, the_id, _ = sessions[1]
        # A process that comes after it finds them too, and what it makes is like any other.
        later = await stack.enter_async_context(
            opened(data / "volume", live_restore_docker.reached)
        )
        assert (await sh(later, the_id, "echo $X")).stdout == b"kept\n"
        other = (await later.create(FAR)).id
        assert (await sh(later, other, "echo new")).stdout == b"new\n"
    assert await nothing_left(live_restore_docker.reached, *(data / mode for mode in MODES)) == []


async def _told_as_lost(sand: Ours, the_id: str) -> bool:
    """Until the engine is asked again, the last known state is shown and marked as such."""
    info = await sand.get(the_id)
    assert info.status == "lost" or any("does not answer" in warning for warning in info.warnings)
    return info.status == "lost"


@pytest.mark.parametrize("end", few([Engine.stop, crash]))
async def test_sessions_that_died_with_their_engine_are_lost_and_leave_nothing(
    stoppable_docker, data, end
):
    async with AsyncExitStack() as stack:
        sessions = await begun(stack, data, stoppable_docker)
        waiting = [
            asyncio.ensure_future(sh(sand, the_id, "sleep 600; true"))
            for sand, the_id, _ in sessions
        ]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(end, stoppable_docker)
        await asyncio.to_thread(stoppable_docker.start)
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, SandkastenError):
                assert isinstance(outcome, SandboxLost | SessionExpired) or outcome.retryable, (
                    outcome
                )
            else:
                assert not isinstance(outcome, BaseException), outcome
                assert (outcome.status, outcome.exit_code) == ("lost", None)
        for sand, the_id, counting in sessions:
            await until(partial(_told_as_lost, sand, the_id))
            with pytest.raises((SandboxLost, SessionExpired)):
                await sh(sand, the_id, "true")
            with pytest.raises((SandboxLost, SessionExpired)):
                await sand.exec_get(the_id, counting)
            other = (await sand.create(FAR)).id
            assert (await sh(sand, other, "cat file || echo new")).stdout == b"new\n"
            await sand.destroy(other)
            swept = await sand.sweep()
            assert (swept.dead, swept.failed) == ((the_id,), ())
            assert await sand.list(all=True) == []
        assert await nothing_left(stoppable_docker.reached, *(data / mode for mode in MODES)) == []
