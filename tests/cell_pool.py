"""Cells for tests on a backend with slow creation: created in advance, or reused.

In advance (`reuse=False`): every test has a new cell, which was created during the previous test
and is removed during the next one. Reused (`reuse=True`): a cell is reset after each test and
checked; one that cannot be reset is discarded. Tests get an id and attach to it, as a daemon does
after a restart. Works in a thread with its own loop and backend, below a separate data directory.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.errors import SandboxLost, SandkastenError
from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.messages import (
    decode_exec,
    decode_processes,
    decode_shells,
    decode_stats,
)
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.ports import Backend, Cell

T = TypeVar("T")
# For a place that is put back in vain, removed and made anew.
_PATIENCE_S = 2 * PATIENCE_S
_RESET_S = 20.0
_PLACES = "/workspace /home/sandbox /tmp /dev/shm /run"
_WRITABLE = "/workspace /home/sandbox /tmp /dev/shm"
_LOOK = f"cd /; find {_PLACES} -xdev -exec stat -c '%n %a %u %g' {{}} + 2>/dev/null | sort"
# One script, because it is run after every test. What the first try cannot remove lies in a
# directory that may not be written; the shell itself is not among those it kills.
_CLEAR = (
    f"kill -9 -1; cd /; umask 022; {{ find {_WRITABLE} -mindepth 1 -delete ||"
    f" {{ chmod -R u+rwX {_WRITABLE}; find {_WRITABLE} -mindepth 1 -delete; }};"
    f" chmod 755 /workspace /home/sandbox; }} 2>/dev/null; {_LOOK}"
)
_USES_BEFORE_NEW = 100
# An idle sandbox of gVisor takes a fiftieth of a processor, to the end of the run.
_IDLE_S = 20.0


class Pool:
    """`take` and `give_back` block; neither waits for background work unless necessary."""

    def __init__(
        self, opened: Callable[[], Backend], spec: CellSpec, *, reuse: bool, ahead: int = 2
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._opened = opened
        self._spec = spec
        self._reuse = reuse
        self._backend: Backend | None = None
        self._looks: dict[SandboxId, str] = {}
        self._uses: dict[SandboxId, int] = {}
        self._behind: list[Future[Any]] = []
        self.thrown: list[str] = []
        """Why places were thrown away, of those that were to be used again."""
        self._taken = 0
        self._ready: deque[Future[SandboxId]] = deque(
            self._soon(self._make()) for _ in range(ahead)
        )

    def take(self) -> SandboxId:
        self._taken += 1
        try:
            coming = self._ready.popleft()
        except IndexError:
            coming = self._soon(self._make())
        if not self._reuse:
            self._ready.append(self._soon(self._make()))
        return coming.result(_PATIENCE_S)

    async def put_back(self, sandbox_id: SandboxId, channel: Channel) -> bool:
        """Whether the place is as it was, made so through a channel that its test has open.

        In the test's own loop; a way in of the pool's own is a process that an engine starts.
        """
        if not self._reuse:
            return False
        try:
            async with asyncio.timeout(_RESET_S):
                return not await _reset(channel, self._looks[sandbox_id])
        except (SandkastenError, OSError, TimeoutError):
            return False

    def give_back(
        self, sandbox_id: SandboxId, *, spoilt: bool = False, as_it_was: bool = False
    ) -> None:
        self._behind = [one for one in self._behind if not one.done() or one.exception()]
        self._behind.append(self._soon(self._rest(self._taken)))
        if self._reuse and not spoilt:
            self._ready.append(self._soon(self._renew(sandbox_id, as_it_was=as_it_was)))
            return
        self._behind.append(self._soon(self._remove(sandbox_id)))
        if self._reuse:
            self._ready.append(self._soon(self._make()))

    def close(self) -> None:
        """Remove all cells; raise what failed in the background."""
        self._loop.call_soon_threadsafe(self._closing.set)
        try:
            for one in self._behind:
                one.result(_PATIENCE_S)
            while self._ready:
                self._soon(self._remove(self._ready.popleft().result(_PATIENCE_S))).result(
                    _PATIENCE_S
                )
            left = self._soon(self._finish()).result(_PATIENCE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_PATIENCE_S)
            self._loop.close()
        assert left == [], f"the pool's own places were left: {left}"

    def _soon(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # ---- in the loop of the thread

    def _on(self) -> Backend:
        if self._backend is None:
            self._backend = self._opened()
        return self._backend

    async def _make(self) -> SandboxId:
        sandbox_id = new_sandbox_id()
        cell = await self._on().create(sandbox_id, self._spec)
        if self._reuse:
            self._looks[sandbox_id] = await _looked_at(cell)
        else:
            # What a maker keeps open for the first who dials would be left to nobody.
            await (await cell.dial()).aclose()
        return sandbox_id

    async def _rest(self, taken: int) -> None:
        """Remove all cells if none is taken for a while."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), _IDLE_S)
        with suppress(IndexError):
            while self._taken == taken and not self._closing.is_set():
                await self._remove(await asyncio.wrap_future(self._ready.popleft()))

    async def _remove(self, sandbox_id: SandboxId) -> None:
        self._looks.pop(sandbox_id, None)
        await taken_away(self._on(), sandbox_id)

    async def _renew(self, sandbox_id: SandboxId, *, as_it_was: bool) -> SandboxId:
        """Return the same cell after a reset, or a new one."""
        self._uses[sandbox_id] = self._uses.get(sandbox_id, 0) + 1
        why = "" if as_it_was else await self._put_back(sandbox_id)
        if not why and self._uses[sandbox_id] < _USES_BEFORE_NEW:
            return sandbox_id
        self.thrown.append(why or "used often enough")
        await self._remove(sandbox_id)
        return await self._make()

    async def _put_back(self, sandbox_id: SandboxId) -> str:
        try:
            async with asyncio.timeout(_RESET_S):
                cell = await self._on().attach(sandbox_id)
                channel = await Channel.open(await cell.dial())
                try:
                    return await _reset(channel, self._looks[sandbox_id])
                finally:
                    await channel.aclose()
        except (SandkastenError, OSError, TimeoutError) as exc:
            return f"{type(exc).__name__}: {exc}"

    async def _finish(self) -> list[SandboxId]:
        left = list(await self._on().owned())
        closing: Any = getattr(self._on(), "aclose", None)
        if closing is not None:
            await closing()
        return left


async def taken_away(backend: Backend, sandbox_id: SandboxId) -> None:
    """Remove a cell that is alive, dead or already gone."""
    try:
        await (await backend.attach(sandbox_id)).destroy()
    except SandboxLost:
        await backend.discard(sandbox_id)


async def _reset(channel: Channel, wanted: str) -> str:
    """Return why the cell could not be reset; empty when it was."""
    for shell in decode_shells(await channel.call("shell.list", {})):
        with suppress(SandkastenError):
            await channel.call("shell.close", {"name": shell.name})
    seen = await _run(channel, _CLEAR)
    if seen != wanted:
        changed = sorted(set(seen.splitlines()) ^ set(wanted.splitlines()))
        return f"not as it was: {changed[:5]}"
    stats = decode_stats(await channel.call("stats", {}))
    if (stats.running, stats.shells, stats.connections) != (0, 0, 1):
        return f"still busy: {stats}"
    user = channel.hello.user_uid
    listed = decode_processes(await channel.call("proc.list", {})).processes
    # All of the user's were killed; the runner makes spares of itself anew.
    others = [one.name for one in listed if one.uid == user and one.name != "runner"]
    return f"still running: {others}" if others else ""


async def _looked_at(cell: Cell) -> str:
    channel = await Channel.open(await cell.dial())
    try:
        return await _run(channel, _LOOK)
    finally:
        await channel.aclose()


async def _run(channel: Channel, script: str) -> str:
    said = bytearray()
    fields = {
        "exec_id": f"pool-{new_sandbox_id()}",
        "argv": ["/bin/sh", "-c", script],
        "deadline_ms": int(_RESET_S * 1000),
    }
    async with channel.stream("exec.start", fields) as call:
        async for item in call:
            if isinstance(item, OutputChunk) and item.source == 1:
                said += item.data
        decode_exec(await call.result())
    return said.decode(errors="surrogateescape")
