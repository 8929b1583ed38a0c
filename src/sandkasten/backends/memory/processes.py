"""The process table of the fake: coroutines that have pids, parents, exit statuses and signals.

A signal that is not ignored cancels the coroutine. Knows neither programs nor commands.
"""

from __future__ import annotations

import asyncio
import signal as signals
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandkasten.backends.memory.descriptors import BrokenPipe
from sandkasten.backends.memory.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

RUNNER_PID = 1
# Signals whose default action is to be ignored, or which the fake has no use for.
_HARMLESS = frozenset(
    {0, signals.SIGCHLD, signals.SIGCONT, signals.SIGURG, signals.SIGWINCH}
    | {signals.SIGSTOP, signals.SIGTSTP, signals.SIGTTIN, signals.SIGTTOU}
)


@dataclass(slots=True, eq=False)
class Process:
    pid: int
    ppid: int
    argv: tuple[str, ...]
    exec_id: str | None
    started: float = field(default_factory=time.time)
    ignored: set[int] = field(default_factory=set)
    exit_code: int | None = None
    signal: int | None = None
    task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def status(self) -> int:
        """As a shell says it."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0

    def kill(self, number: int) -> None:
        if not self.alive or number in _HARMLESS:
            return
        if number in self.ignored and number != signals.SIGKILL:
            return
        if self.signal is None and self.task is not None:
            self.signal = number
            self.task.cancel()

    async def wait(self) -> int:
        if self.task is not None:
            await asyncio.wait([self.task])
        return self.status


class ProcessTable:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._next = RUNNER_PID + 1
        self._processes: dict[int, Process] = {}

    def spawn(
        self,
        argv: tuple[str, ...],
        run: Callable[[Process], Awaitable[int]],
        *,
        parent: Process | None = None,
        exec_id: str | None = None,
    ) -> Process:
        """Start one; raises Refusal when there are too many."""
        if len(self._processes) + 1 >= self._limit:
            raise Refusal("too_many_processes", "Resource temporarily unavailable")
        process = Process(
            pid=self._next,
            ppid=parent.pid if parent is not None else RUNNER_PID,
            argv=argv,
            exec_id=exec_id,
            ignored=set(parent.ignored) if parent is not None else set(),
        )
        self._next += 1
        self._processes[process.pid] = process
        process.task = asyncio.get_running_loop().create_task(self._live(process, run))
        return process

    async def _live(self, process: Process, run: Callable[[Process], Awaitable[int]]) -> None:
        try:
            process.exit_code = await run(process)
        except BrokenPipe:
            process.signal = signals.SIGPIPE
        except asyncio.CancelledError:
            # Nobody but `kill` and the end of the loop cancels; the latter needs no verdict.
            if process.signal is None:
                raise
        finally:
            if process.signal is not None:
                process.exit_code = None
            del self._processes[process.pid]
            for other in self._processes.values():
                if other.ppid == process.pid:
                    other.ppid = RUNNER_PID

    def get(self, pid: int) -> Process | None:
        return self._processes.get(pid)

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._processes.values()))

    def __len__(self) -> int:
        return len(self._processes)

    def below(self, pid: int) -> list[Process]:
        """Every process that descends from this one."""
        found: list[Process] = []
        parents = {pid}
        for process in self:
            # A child has a higher pid than its parent, and the table is in their order.
            if process.ppid in parents:
                parents.add(process.pid)
                found.append(process)
        return found

    def of(self, exec_id: str) -> list[Process]:
        return [process for process in self if process.exec_id == exec_id]
