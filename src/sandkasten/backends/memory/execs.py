"""The commands of one fake place: starting, queueing, deadlines, results, replay.

Follows the protocol's words (*Exec*, states, `timed_out`, `shell_reset`). Knows no frames.
"""

from __future__ import annotations

import asyncio
import signal as signals
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sandkasten.backends.memory.descriptors import Nothing, Pipe, ToOutput
from sandkasten.backends.memory.interpreter import ExitShell, Interpreter, State, Stdio
from sandkasten.backends.memory.output import PTY, STDERR, STDOUT, Output
from sandkasten.backends.memory.refusal import Refusal
from sandkasten.wire.messages import to_bytes_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.backends.memory.machine import Machine
    from sandkasten.backends.memory.processes import Process

MAX_RESULTS = 256
MAX_KEPT_OUTPUT = 8 * 1024 * 1024
# A shell whose every child is dead answers at once; this is patience, not policy.
_SHELL_ANSWERS_S = 0.2
_SWEEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Order:
    """One `exec.start`, decoded."""

    exec_id: str
    argv: tuple[str, ...] | None
    shell: str | None
    command: str
    env: Mapping[str, str]
    cwd: bytes | None
    stdin: bool
    pty: bool
    deadline_s: float | None
    grace_s: float
    stdout_cap: int
    stderr_cap: int
    key: str | None


@dataclass(slots=True, eq=False)
class Execution:
    order: Order
    output: Output
    stdin: Pipe | None
    state: Literal["queued", "running", "exited", "signaled", "lost"] = "queued"
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    killed: bool = False
    shell_reset: bool = False
    cwd: bytes | None = None
    process: Process | None = None
    refusal: Refusal | None = None
    started: float = 0.0
    began: float = 0.0
    took: float = 0.0
    signalled: set[int] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running") or self.refusal is not None

    def info(self) -> dict[str, Any]:
        running = self.state == "running"
        took = time.monotonic() - self.began if running else self.took
        return {
            "exec_id": self.order.exec_id,
            "kind": "shell" if self.order.argv is None else "argv",
            "shell": self.order.shell,
            "state": self.state,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "killed": self.killed,
            "shell_reset": self.shell_reset,
            "cwd": None if self.cwd is None else to_bytes_json(self.cwd),
            "pid": self.process.pid if self.process is not None else None,
            "started_ms": int(self.started * 1000),
            "duration_ms": int(took * 1000),
            "cpu_ms": 0,
            "peak_rss_bytes": 0,
            "io_read_bytes": 0,
            "io_write_bytes": 0,
            "stdout_bytes": self.output.written(STDOUT) + self.output.written(PTY),
            "stderr_bytes": self.output.written(STDERR),
            "truncated": self.output.truncated,
            "last_seq": self.output.last_seq,
            "oom_suspect": self.signal == signals.SIGKILL
            and not self.killed
            and not self.timed_out,
            "sigsys": False,
        }

    def stdio(self) -> Stdio:
        stdin = self.stdin if self.stdin is not None else Nothing()
        if self.order.pty:
            terminal = ToOutput(self.output, PTY, newlines=True)
            return Stdio(stdin, terminal, terminal)
        return Stdio(stdin, ToOutput(self.output, STDOUT), ToOutput(self.output, STDERR))

    def begin(self, process: Process) -> None:
        self.state = "running"
        self.process = process
        self.started, self.began = time.time(), time.monotonic()
        self.output.touch()

    def finish(self, *, exit_code: int | None, signal: int | None) -> None:
        if self.ended:
            return
        self.took = time.monotonic() - self.began if self.began else 0.0
        self.state = "signaled" if signal is not None and exit_code is None else "exited"
        self.exit_code, self.signal = exit_code, signal
        ended_by = signal if signal is not None else (exit_code or 0) - 128
        self.killed = ended_by in self.signalled
        if self.stdin is not None:
            self.stdin.close_read()
        self.output.touch()

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.output.touch()

    async def end(self) -> None:
        while not self.ended:
            await self.output.grown()


class Shell:
    """A persistent shell: one process that takes its commands from a queue, in order."""

    def __init__(self, machine: Machine, name: str) -> None:
        self._machine = machine
        self.name = name
        self.state = State.fresh(machine.environment, machine.tree.workspace)
        self.queue: deque[Execution] = deque()
        self.current: Execution | None = None
        self.process: Process | None = None
        self._arrived = asyncio.Event()

    def submit(self, execution: Execution) -> None:
        self.queue.append(execution)
        self._ensure()
        self._arrived.set()

    def _ensure(self) -> None:
        if self.process is None or not self.process.alive:
            # A fresh shell starts where the last one was, with what it had exported.
            self.state = State.fresh(self.state.environment(), self.state.cwd)
            self.process = self._machine.processes.spawn(("sh",), self._serve)
            if self.process.task is not None:
                self.process.task.add_done_callback(lambda _: self._respawn())

    def _respawn(self) -> None:
        if self.queue and self._machine.accepting:
            self._ensure()

    async def _serve(self, process: Process) -> int:
        while True:
            while not self.queue:
                self._arrived.clear()
                await self._arrived.wait()
            self.current = execution = self.queue.popleft()
            try:
                await self._run(execution, process)
            except ExitShell as leaving:
                execution.shell_reset = True
                self._finish(execution, leaving.status, None)
                return leaving.status
            except asyncio.CancelledError:
                execution.shell_reset = True
                self._finish(execution, None, process.signal)
                raise
            finally:
                self.current = None

    async def _run(self, execution: Execution, process: Process) -> None:
        order = execution.order
        try:
            if order.cwd is not None:
                self.state.cwd = self._machine.tree.directory(order.cwd, self.state.cwd)[0].path
        except Refusal as refusal:
            execution.refuse(refusal)
            return
        self.state.variables.update(order.env)
        self.state.exported.update(order.env)
        execution.begin(process)
        shell = Interpreter(self._machine, self.state, process, order.exec_id)
        status = await shell.run_text(order.command, execution.stdio())
        self._finish(execution, status, None)

    def _finish(self, execution: Execution, exit_code: int | None, signal: int | None) -> None:
        execution.cwd = self.state.cwd
        execution.finish(exit_code=exit_code, signal=signal)

    def info(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "pid": self.process.pid if self.process is not None and self.process.alive else None,
            "busy": self.current is not None,
            "queued": len(self.queue),
            "cwd": to_bytes_json(self.state.cwd),
            "program": "/bin/sh",
        }


class Execs:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[str, Execution] = {}
        self._keys: dict[str, Execution] = {}
        self.shells: dict[str, Shell] = {}

    @property
    def running(self) -> int:
        return sum(1 for execution in self._known.values() if not execution.ended)

    def __iter__(self) -> Any:
        return iter(list(self._known.values()))

    def find(self, exec_id: str) -> Execution:
        execution = self._known.get(exec_id)
        if execution is None:
            raise Refusal("unknown_exec", "no command has that id")
        return execution

    def start(self, order: Order) -> Execution:
        """The command, running or queued; the one that has its id or key already, if any."""
        known = self._known.get(order.exec_id) or (self._keys.get(order.key) if order.key else None)
        if known is not None:
            return known
        caps = (
            {PTY: order.stdout_cap}
            if order.pty
            else {
                STDOUT: order.stdout_cap,
                STDERR: order.stderr_cap,
            }
        )
        execution = Execution(order, Output(caps), Pipe() if order.stdin else None)
        if order.argv is not None:
            self._start_argv(execution, order.argv)
        else:
            self._shell(order.shell or "default").submit(execution)
        self._known[order.exec_id] = execution
        if order.key:
            self._keys[order.key] = execution
        self._forget()
        if order.deadline_s is not None:
            self._machine.keep(self._guard(execution, order.deadline_s))
        return execution

    def _start_argv(self, execution: Execution, argv: tuple[str, ...]) -> None:
        machine, order = self._machine, execution.order
        workspace = machine.tree.workspace
        cwd = workspace
        if order.cwd is not None:
            cwd = machine.tree.directory(order.cwd, workspace)[0].path
        environment = {**machine.environment, **order.env}
        process = machine.start(argv, environment, cwd, execution.stdio(), None, order.exec_id)
        execution.cwd = cwd
        execution.begin(process)
        if process.task is not None:
            process.task.add_done_callback(
                lambda _: execution.finish(exit_code=process.exit_code, signal=process.signal)
            )

    def _shell(self, name: str) -> Shell:
        return self.shells.setdefault(name, Shell(self._machine, name))

    def _forget(self) -> None:
        finished = [one for one in self._known.values() if one.ended]
        for execution in finished[: max(0, len(self._known) - MAX_RESULTS)]:
            del self._known[execution.order.exec_id]
            if execution.order.key:
                self._keys.pop(execution.order.key, None)
        held = 0
        for execution in reversed(list(self._known.values())):
            held += execution.output.held
            if held > MAX_KEPT_OUTPUT and execution.ended:
                execution.output.drop()

    # ---- signals and deadlines

    def signal(self, exec_id: str, number: int, *, tree: bool) -> None:
        execution = self.find(exec_id)
        if execution.ended:
            return
        execution.signalled.add(number)
        targets = self._targets(execution) if tree else self._targets(execution)[:1]
        for process in targets:
            process.kill(number)

    def _targets(self, execution: Execution) -> list[Process]:
        """What the command started; the shell itself only when nothing else is left to hit."""
        started = self._machine.processes.of(execution.order.exec_id)
        if not started and execution.process is not None and execution.state == "running":
            return [execution.process]
        return started

    async def _guard(self, execution: Execution, deadline_s: float) -> None:
        while execution.state == "queued" and not execution.ended:
            await execution.output.grown()
        try:
            async with asyncio.timeout(deadline_s - (time.monotonic() - execution.began)):
                await execution.end()
        except TimeoutError:
            await self._sweep(execution)

    async def _sweep(self, execution: Execution) -> None:
        execution.timed_out = True
        order, processes = execution.order, self._machine.processes
        gives_up = time.monotonic() + order.grace_s
        await self._hit(order.exec_id, signals.SIGTERM, order.grace_s)
        # A shell goes on with the next command of its text, so look more than once.
        gives_up = max(gives_up, time.monotonic()) + _SHELL_ANSWERS_S
        while not execution.ended or processes.of(order.exec_id):
            if time.monotonic() > gives_up and execution.process is not None:
                execution.process.kill(signals.SIGKILL)
            await self._hit(order.exec_id, signals.SIGKILL, _SWEEP_S)
            await asyncio.sleep(_SWEEP_S)

    async def _hit(self, exec_id: str, number: int, patience_s: float) -> None:
        """Signal all that a command started and wait for it to go, for a while."""
        started = self._machine.processes.of(exec_id)
        for process in started:
            process.kill(number)
        tasks = [process.task for process in started if process.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)

    async def close_shell(self, name: str) -> None:
        shell = self.shells.pop(name, None)
        if shell is None:
            raise Refusal("not_found", "no shell has that name")
        for execution in shell.queue:
            execution.state = "lost"
            execution.output.touch()
        shell.queue.clear()
        if shell.process is not None:
            for process in self._machine.processes.below(shell.process.pid):
                process.kill(signals.SIGKILL)
            shell.process.kill(signals.SIGKILL)
            await shell.process.wait()

    def lose(self) -> None:
        """The place is gone: what had not ended never will."""
        for execution in self._known.values():
            if not execution.ended:
                execution.state = "lost"
                execution.output.touch()

    def feed(self, execution: Execution, data: bytes) -> bytes:
        """What a terminal makes of typed bytes; for pipes, the bytes themselves."""
        if not execution.order.pty:
            return data
        typed = data.replace(b"\r", b"\n")
        if b"\x03" in typed:
            self.signal(execution.order.exec_id, signals.SIGINT, tree=True)
            typed = typed.replace(b"\x03", b"")
        plain = typed.replace(b"\x04", b"")
        if plain:
            execution.output.write(PTY, plain.replace(b"\n", b"\r\n"))
        return typed
