"""What the tiny shell does itself, because a child could not: cd, export, exit, wait, …"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from sandkasten.backends.memory.interpreter import (
    ExitShell,
    Interpreter,
    Invocation,
    decode,
    encode,
)
from sandkasten.backends.memory.programs import PROGRAMS
from sandkasten.backends.memory.refusal import Refusal, strerror

if TYPE_CHECKING:
    from sandkasten.backends.memory.programs import Program
    from sandkasten.backends.memory.tree import Directory

Builtin: TypeAlias = Callable[[Interpreter, Invocation], Awaitable[int]]


async def _cd(shell: Interpreter, run: Invocation) -> int:
    target = run.argv[1] if len(run.argv) > 1 else shell.state.variables.get("HOME", "/")
    try:
        place, node = shell.machine.tree.directory(encode(target), shell.state.cwd)
        enter(node)
    except Refusal as refusal:
        await run.complain(f"{target}: {strerror(refusal)}")
        return 1
    shell.state.cwd = place.path
    return 0


def enter(node: Directory) -> None:
    if not node.mode & 0o100:
        raise Refusal("permission", "Permission denied")


async def _export(shell: Interpreter, run: Invocation) -> int:
    for word in run.argv[1:]:
        name, equals, value = word.partition("=")
        if not name.isidentifier():
            await run.complain(f"`{word}': not a valid identifier")
            return 1
        if equals:
            shell.state.variables[name] = value
        shell.state.exported.add(name)
    return 0


async def _unset(shell: Interpreter, run: Invocation) -> int:
    for name in run.argv[1:]:
        shell.state.variables.pop(name, None)
        shell.state.exported.discard(name)
    return 0


async def _exit(shell: Interpreter, run: Invocation) -> int:
    raise ExitShell(int(run.argv[1]) & 0xFF if len(run.argv) > 1 else shell.state.status)


async def _exec(shell: Interpreter, run: Invocation) -> int:
    if len(run.argv) == 1:
        return 0
    raise ExitShell(await shell._program(run.argv[1:], run.environment, run.stdio))


async def _wait(shell: Interpreter, run: Invocation) -> int:
    wanted = {int(pid) for pid in run.argv[1:] if pid.isdigit()}
    status = 0
    for job in list(shell.state.jobs):
        if not wanted or job.pid in wanted:
            status = await job.wait()
            shell.state.jobs.remove(job)
    return status if wanted else 0


async def _trap(shell: Interpreter, run: Invocation) -> int:
    """Only `trap '' NAME…`: ignoring is what deadlines are tested with."""
    if len(run.argv) < 3 or run.argv[1] != "":
        await run.complain("only signals to ignore can be named here")
        return 2
    for name in run.argv[2:]:
        shell.process.ignored.add(signal_number(name))
    return 0


def signal_number(name: str) -> int:
    if name.isdigit():
        return int(name)
    plain = name.removeprefix("SIG")
    try:
        return signals.Signals[f"SIG{plain}"].value
    except KeyError as exc:
        raise Refusal("invalid", f"{name}: invalid signal specification") from exc


async def _kill(shell: Interpreter, run: Invocation) -> int:
    number, targets = signals.SIGTERM.value, list(run.argv[1:])
    if targets and targets[0].startswith("-"):
        try:
            number = signal_number(targets.pop(0)[1:])
        except Refusal as refusal:
            await run.complain(refusal.message)
            return 1
    for target in targets:
        process = shell.machine.processes.get(int(target)) if target.isdigit() else None
        if process is None:
            await run.complain(f"({target}) - No such process")
            return 1
        process.kill(number)
    # A shell that killed itself must not get to its next command.
    await asyncio.sleep(0)
    return 0


async def _read(shell: Interpreter, run: Invocation) -> int:
    """`read NAME`: one line, the rest is left for whoever reads next."""
    line = b""
    while b"\n" not in line:
        piece = await run.stdio.stdin.read()
        if not piece:
            break
        line += piece
    line, newline, rest = line.partition(b"\n")
    run.stdio.stdin.unread(rest)
    if len(run.argv) > 1:
        shell.state.variables[run.argv[1]] = decode(line)
    return 0 if newline else 1


async def _eval(shell: Interpreter, run: Invocation) -> int:
    return await shell.run_text(" ".join(run.argv[1:]), run.stdio)


def _inline(program: Program) -> Builtin:
    async def run_inline(shell: Interpreter, run: Invocation) -> int:
        return await program(run)

    return run_inline


# Those that a real shell has built in too: they cost no process, and echo works when the
# process limit is reached.
_INLINE = ("echo", "printf", "true", "false", ":", "pwd", "test", "[")

BUILTINS: Mapping[str, Builtin] = MappingProxyType(
    {
        "cd": _cd,
        "eval": _eval,
        "exec": _exec,
        "exit": _exit,
        "export": _export,
        "kill": _kill,
        "read": _read,
        "trap": _trap,
        "unset": _unset,
        "wait": _wait,
        **{name: _inline(PROGRAMS[name]) for name in _INLINE},
    }
)
