"""When sandboxes pause instead of ending: `on_timeout: pause` of E2B.

The runner ends a sandbox at its lifetime and cannot pause it, so the daemon does: such a sandbox
has the longest lifetime that the operator permits, and its time is kept here, in one file. While no
daemon runs, it continues to run. A request that arrives after the time pauses the sandbox first, so
no client sees it run for longer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.os_errors import disk_error
from sandkasten.disk.small_file import read_json_object
from sandkasten.errors import NotFound, SandkastenError, SessionExpired, StoreUnusable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.exec_values import ExecRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten.ports import Clock
    from sandkasten_runtime.engine.engine import Engine

log = logging.getLogger("sandkasten.e2b")
# How often entries of sandboxes that have ended are looked for, and a failed pause is retried.
_ROUND_S: Final = 5.0
# Beside the sandboxes in the file; no sandbox has this id.
_BOOTS: Final = "boots"
# kill(2) spares its caller, so the shell itself ends normally. In profile dev its supervisor ends
# too, and the result is lost.
_END_ALL: Final = ("/bin/sh", "-c", "kill -KILL -1")
_END_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class PauseTime:
    at: float
    """Unix seconds."""
    timeout_s: int
    """What the client asked for at last; a sandbox that wakes up has as long again."""
    wakes: bool = False
    """Whether a request resumes it."""
    keeps_memory: bool = True
    """Whether its processes go on when it is resumed."""


class PauseSchedule:
    """The times of the sandboxes that pause. Open it with `open_schedule`."""

    def __init__(
        self, path: Path | None, times: dict[str, PauseTime], boots: dict[str, int]
    ) -> None:
        """Without a path the times are kept only in memory."""
        self._path = path
        self._times = times
        self._boots = boots
        self._changing = asyncio.Lock()
        self._changed = asyncio.Event()

    def get(self, sandbox_id: str) -> PauseTime | None:
        return self._times.get(sandbox_id)

    async def put(self, sandbox_id: str, time: PauseTime) -> None:
        """Set the time of a sandbox; durable when it returns."""
        async with self._changing:
            await self._store({**self._times, sandbox_id: time}, self._boots)
        self._changed.set()

    def boots(self, sandbox_id: str) -> int:
        """Return how often a sandbox lost its memory."""
        return self._boots.get(sandbox_id, 0)

    async def pause(self, engine: Engine, info: Info, *, keeps_memory: bool) -> None:
        """Pause a sandbox; without its memory, all processes in it end first.

        If they cannot be ended, for example in an image without a shell, it keeps its memory.
        """
        if not keeps_memory and await _end_processes(engine, info):
            async with self._changing:
                count = {info.id: self.boots(info.id) + 1}
                await self._store(self._times, {**self._boots, **count})
            self._changed.set()
        await engine.pause(info.id)

    async def settle(self, engine: Engine, info: Info, now: float) -> Info:
        """Return the sandbox, paused if its time is over."""
        time = self.get(info.id)
        if time is None or info.status != "running" or now < time.at:
            return info
        await self.pause(engine, info, keeps_memory=time.keeps_memory)
        return await engine.get(info.id)

    async def wake(self, engine: Engine, info: Info, now: float) -> Info:
        """Return the sandbox, resumed if it is paused and a request resumes it."""
        time = self.get(info.id)
        if time is None or not time.wakes or info.status != "paused":
            return info
        # First: it would be paused again at once.
        await self.put(info.id, replace(time, at=now + time.timeout_s))
        await engine.resume(info.id)
        return await engine.get(info.id)

    async def admit(self, engine: Engine, clock: Clock, sandbox_id: str) -> None:
        """Resume the sandbox of a request if it is paused and requests resume it."""
        if self.get(sandbox_id) is not None:
            info = await self.settle(engine, await engine.get(sandbox_id), clock.now())
            await self.wake(engine, info, clock.now())

    async def watch(self, engine: Engine, clock: Clock) -> None:
        """Pause sandboxes at their times until this task is cancelled."""
        while True:
            self._changed.clear()
            pending = await self._round(engine, clock.now())
            wait_s = _ROUND_S if self._times or self._boots else None
            if pending is not None:
                wait_s = min(_ROUND_S, max(0.0, pending - clock.now()))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)

    async def _round(self, engine: Engine, now: float) -> float | None:
        """Pause what is due and forget what has ended; return the next time."""
        upcoming: list[float] = []
        for the_id in {**self._times, **self._boots}:
            time = self._times.get(the_id)
            try:
                info = await engine.get(the_id)
                if time is None:
                    continue
                if info.status == "running" and time.at <= now:
                    await self.settle(engine, info, now)
                elif info.status == "running":
                    upcoming.append(time.at)
            except (NotFound, SessionExpired):
                await self._forget(the_id)
            except SandkastenError as exc:
                # The next round tries again.
                fields = {"sandbox": the_id, "error": exc.code}
                log.warning("e2b.pause_failed", extra={"sandkasten": fields})
        return min(upcoming, default=None)

    async def _forget(self, sandbox_id: str) -> None:
        with suppress(SandkastenError):
            async with self._changing:
                times = {key: time for key, time in self._times.items() if key != sandbox_id}
                boots = {key: count for key, count in self._boots.items() if key != sandbox_id}
                await self._store(times, boots)

    async def _store(self, times: dict[str, PauseTime], boots: dict[str, int]) -> None:
        if self._path is not None:
            rows: dict[str, object] = {the_id: asdict(time) for the_id, time in times.items()}
            data = json.dumps({**rows, _BOOTS: boots}).encode()
            try:
                await asyncio.to_thread(write_file, self._path, data)
            except OSError as exc:
                raise disk_error("store when a sandbox pauses", exc, StoreUnusable) from exc
        self._times, self._boots = times, boots


async def _end_processes(engine: Engine, info: Info) -> bool:
    """Return whether all processes in a sandbox have ended."""
    request = ExecRequest(_END_ALL, timeout_seconds=min(_END_S, info.limits.max_exec_timeout_s))
    try:
        result = await engine.exec(info.id, request, line="end all processes")
        reason = "timed_out"
    except SandkastenError as exc:
        result, reason = None, exc.code
    if result is not None and not result.timed_out:
        return True
    fields = {"sandbox": info.id, "error": reason}
    log.warning("e2b.memory_kept", extra={"sandkasten": fields})
    return False


@asynccontextmanager
async def open_schedule(
    path: Path | None, engine: Engine | None, clock: Clock
) -> AsyncIterator[PauseSchedule]:
    """Read the times, and pause sandboxes while the block lasts if there is an engine."""
    schedule = PauseSchedule(path, *await asyncio.to_thread(_read, path))
    if engine is None:
        yield schedule
        return
    task = asyncio.get_running_loop().create_task(schedule.watch(engine, clock))
    try:
        yield schedule
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _read(path: Path | None) -> tuple[dict[str, PauseTime], dict[str, int]]:
    if path is None or not path.exists():
        return {}, {}
    rows = read_json_object(path)
    try:
        if rows is None:
            raise ValueError
        boots = {str(the_id): int(count) for the_id, count in rows.pop(_BOOTS, {}).items()}
        times = {
            the_id: PauseTime(
                float(time["at"]),
                int(time["timeout_s"]),
                time["wakes"] is True,
                time.get("keeps_memory") is not False,
            )
            for the_id, time in rows.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise StoreUnusable(
            f"{path} is damaged",
            hint="remove it; sandboxes of E2B clients that would pause then end by their lifetime",
            reason="damaged",
        ) from exc
    return times, boots
