"""One fake place: its files, its processes, its shells and what was run in it.

Holds the parts together and knows how a program is found and started. Speaks no protocol; the
server does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from sandkasten.backends.memory.builtins import BUILTINS
from sandkasten.backends.memory.execs import Execs
from sandkasten.backends.memory.interpreter import Invocation, Stdio, encode
from sandkasten.backends.memory.pipe import MemoryStream
from sandkasten.backends.memory.processes import Process, ProcessTable
from sandkasten.backends.memory.programs import PROGRAMS, Program
from sandkasten.backends.memory.refusal import Refusal
from sandkasten.backends.memory.tree import Directory, File, Tree
from sandkasten.model.sandbox.cell_spec import HOME, base_environment

if TYPE_CHECKING:
    from sandkasten.model.sandbox.cell_spec import CellSpec

PortHandler: TypeAlias = Callable[[MemoryStream], Awaitable[None]]

_BIN = b"/usr/bin/"


class Machine:
    def __init__(self, spec: CellSpec, workspace: Directory | None = None) -> None:
        self.spec = spec
        self.environment = base_environment(spec)
        self.tree = Tree(
            workspace_bytes=spec.limits.workspace_bytes,
            tmp_bytes=spec.limits.tmp_bytes,
            home=encode(HOME),
        )
        if workspace is not None:
            self.tree.volumes[self.tree.workspace] = workspace.volume
            self.tree.plant(self.tree.workspace, workspace)
        for name in PROGRAMS:
            self.tree.program(_BIN + encode(name))
            self.tree.program(b"/bin/" + encode(name))
        self.processes = ProcessTable(spec.limits.pids)
        self.builtins = BUILTINS
        self.execs = Execs(self)
        self.ports: dict[int, PortHandler] = {}
        self.started = time.monotonic()
        self.last_request = time.monotonic()
        self.connections = 0
        self.asked = 0
        """Requests without an answer yet."""
        self.farewells: set[Callable[[str], Awaitable[None]]] = set()
        self.ended = asyncio.Event()
        self.accepting = True
        self.ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._lease: asyncio.Task[None] | None = None

    # ---- programs

    def start(
        self,
        argv: tuple[str, ...],
        environment: Mapping[str, str],
        cwd: bytes,
        stdio: Stdio,
        parent: Process | None,
        exec_id: str | None,
    ) -> Process:
        """Start a program as a process; raises Refusal when it cannot be."""
        program, words = self._lookup(argv, environment, cwd)

        async def live(process: Process) -> int:
            run = Invocation(self, process, words, environment, cwd, stdio, exec_id)
            return await run.complete(program)

        return self.processes.spawn(words, live, parent=parent, exec_id=exec_id)

    async def become(
        self,
        process: Process,
        argv: tuple[str, ...],
        environment: Mapping[str, str],
        cwd: bytes,
        stdio: Stdio,
        exec_id: str | None,
    ) -> int:
        """Run a program in a process that is there already, as execve would."""
        program, words = self._lookup(argv, environment, cwd)
        process.argv = words
        run = Invocation(self, process, words, environment, cwd, stdio, exec_id)
        return await run.complete(program)

    def _lookup(
        self, argv: tuple[str, ...], environment: Mapping[str, str], cwd: bytes
    ) -> tuple[Program, tuple[str, ...]]:
        if not argv or not argv[0]:
            raise Refusal("command_not_found", "the command is empty")
        if "/" in argv[0]:
            candidates = [encode(argv[0])]
        else:
            path = environment.get("PATH", "").split(":")
            candidates = [encode(f"{folder or '.'}/{argv[0]}") for folder in path]
        refusal = Refusal("command_not_found", f"{argv[0]}: command not found")
        for candidate in candidates:
            try:
                place, node = self.tree.existing(candidate, cwd)
            except Refusal:
                continue
            if isinstance(node, Directory) or not node.mode & 0o100:
                refusal = Refusal("not_executable", f"{argv[0]}: Permission denied")
                continue
            if place.path.startswith((_BIN, b"/bin/")):
                return PROGRAMS[place.name.decode()], argv
            if isinstance(node, File) and node.data.startswith(b"#!/bin/sh"):
                return PROGRAMS["sh"], ("sh", place.path.decode("utf-8", "surrogateescape"))
            refusal = Refusal("not_executable", f"{argv[0]}: Exec format error")
        raise refusal

    # ---- life

    def serve(self, connection: Coroutine[Any, Any, None]) -> None:
        task = self.keep(connection)
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def quiesce(self, seconds: float) -> None:
        """Close every connection, take none for a while, then go on."""
        # The answer to the request that asked for this goes out first.
        await asyncio.sleep(0)
        self.accepting = False
        for task in list(self._serving):
            task.cancel()
        await asyncio.sleep(seconds)
        self.accepting = not self.ended.is_set()

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that belongs to the place and ends with it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def lease(self, *, idle_s: float | None, lifetime_s: float | None) -> None:
        if self._lease is not None:
            self._lease.cancel()
        self._lease = self.keep(self._expire(idle_s, lifetime_s))

    async def _expire(self, idle_s: float | None, lifetime_s: float | None) -> None:
        ends = None if lifetime_s is None else time.monotonic() + lifetime_s
        while idle_s is not None or ends is not None:
            # Once: on a busy machine much time can pass between two looks at the clock.
            now = time.monotonic()
            if idle_s is not None and (self.asked or self.execs.running or len(self.processes)):
                # Work is no idleness; look again when the idle time could have passed.
                self.last_request = now
            idle_ends = None if idle_s is None else self.last_request + idle_s
            due = min(moment for moment in (ends, idle_ends) if moment is not None)
            left = due - now
            if left <= 0:
                # Nobody is let in any more, and no command can begin meanwhile.
                self.ending, self.accepting = True, False
                reason = "lifetime" if due == ends else "idle"
                for say in list(self.farewells):
                    await say(reason)
                await self.die()
                return
            await asyncio.sleep(left)

    async def die(self) -> None:
        """End everything in it. Twice is fine."""
        self.ended.set()
        self.accepting = False
        for process in self.processes:
            process.ignored.clear()
            process.kill(9)
        mine = asyncio.current_task()
        pending = [task for task in self._tasks if task is not mine]
        for task in pending:
            task.cancel()
        waiting = [process.task for process in self.processes if process.task is not None]
        if pending or waiting:
            await asyncio.wait([*pending, *waiting], timeout=5)
        self.execs.lose()
