"""The `exec.*` and `shell.*` verbs of the fake runner."""

from __future__ import annotations

import asyncio
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sandkasten.backends.memory.descriptors import BrokenPipe
from sandkasten.backends.memory.execs import Execution, Order
from sandkasten.backends.memory.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.backends.memory.machine import Machine
    from sandkasten.backends.memory.request import Request
    from sandkasten.backends.memory.server import ServerStream, Verb

_EXEC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SHELL = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_KEY = re.compile(r".{1,256}\Z", re.DOTALL)
_STDIN = re.compile(r"(none|stream)\Z")
_MAX_COMMAND = 1024 * 1024
_DEFAULT_CAP = 200_000


def _order(request: Request) -> Order:
    argv = [one.decode("utf-8", "surrogateescape") for one in request.raw_list("argv")]
    shell = request.text_or_none("shell", _SHELL)
    if bool(argv) == (shell is not None):
        raise Refusal("invalid", "exactly one of argv and shell is needed")
    command = request.raw("command") if shell is not None else b""
    if len(command) > _MAX_COMMAND:
        raise Refusal("too_large", "a command may have 1 MiB")
    pty = request.object("pty")
    if pty is not None:
        pty.number("rows", 24, most=65535)
        pty.number("cols", 80, most=65535)
    deadline_ms = request.number_or_none("deadline_ms")
    return Order(
        exec_id=request.text("exec_id", _EXEC_ID),
        argv=tuple(argv) if argv else None,
        shell=shell,
        command=command.decode("utf-8", "surrogateescape"),
        env=request.environment("env"),
        cwd=request.raw_or_none("cwd"),
        stdin=request.text_or_none("stdin", _STDIN) == "stream",
        pty=pty is not None,
        deadline_s=None if deadline_ms is None else deadline_ms / 1000,
        grace_s=request.number("grace_ms", 2000) / 1000,
        stdout_cap=request.number("stdout_cap", _DEFAULT_CAP),
        stderr_cap=request.number("stderr_cap", _DEFAULT_CAP),
        key=request.text_or_none("key", _KEY),
    )


async def _start(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    order = _order(request)
    follow = request.flag("follow", True)
    execution = machine.execs.start(order)
    if not follow:
        return execution.info()
    mine = execution.order is order
    feeding = machine.keep(_feed(machine, execution, stream)) if mine and execution.stdin else None
    try:
        while execution.state == "queued" and not execution.ended:
            await execution.output.grown()
        if execution.process is not None:
            running = execution.order.exec_id
            await stream.event("started", exec_id=running, pid=execution.process.pid)
        await _follow(execution, stream, 0)
    finally:
        if feeding is not None:
            feeding.cancel()
    return execution.info()


async def _feed(machine: Machine, execution: Execution, stream: ServerStream) -> None:
    stdin = execution.stdin
    if stdin is None:
        return
    while data := await stream.receive():
        if not await _type(machine, execution, data):
            return
    stdin.close_write()


async def _type(machine: Machine, execution: Execution, data: bytes) -> bool:
    """Give bytes to a command's stdin; False when it reads no more."""
    stdin = execution.stdin
    if stdin is None:
        return False
    typed = machine.execs.feed(execution, data)
    hung_up = execution.order.pty and b"\x04" in typed
    try:
        await stdin.write(typed.replace(b"\x04", b"") if hung_up else typed)
    except BrokenPipe:
        return False
    if hung_up:
        stdin.close_write()
    return not hung_up


async def _follow(execution: Execution, stream: ServerStream, since: int) -> None:
    """Send what is kept and what comes, until the command has ended."""
    while True:
        ended = execution.ended
        for chunk in execution.output.after(since):
            await stream.chunk(chunk)
            since = chunk.seq
        if execution.refusal is not None:
            raise execution.refusal
        if ended:
            return
        if not execution.ended and not execution.output.after(since):
            await execution.output.grown()


async def _output(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    execution = machine.execs.find(request.text("exec_id", _EXEC_ID))
    since = request.number("since_seq", 0)
    if request.flag("follow", False):
        await _follow(execution, stream, since)
    else:
        for chunk in execution.output.after(since):
            await stream.chunk(chunk)
    return execution.info()


async def _wait(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    execution = machine.execs.find(request.text("exec_id", _EXEC_ID))
    timeout_ms = request.number_or_none("timeout_ms")
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            await execution.end()
    except TimeoutError:
        return execution.info()
    if execution.refusal is not None:
        raise execution.refusal
    return execution.info()


async def _signal(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    number = request.number("signal", 0, most=64)
    if not number:
        raise Refusal("invalid", "signal is missing")
    exec_id = request.text("exec_id", _EXEC_ID)
    machine.execs.signal(exec_id, number, tree=request.flag("tree", True))
    return {}


async def _stdin(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    execution = machine.execs.find(request.text("exec_id", _EXEC_ID))
    if execution.stdin is None or execution.ended or execution.stdin.closed:
        raise Refusal("closed", "the command's stdin is closed")
    count = 0
    while data := await stream.receive():
        if not await _type(machine, execution, data):
            raise Refusal("closed", "the command reads no more")
        count += len(data)
    if request.flag("close", False):
        execution.stdin.close_write()
    return {"bytes": count}


async def _resize(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    execution = machine.execs.find(request.text("exec_id", _EXEC_ID))
    if not execution.order.pty:
        raise Refusal("invalid", "the command has no terminal")
    request.number("rows", 24, most=65535)
    request.number("cols", 80, most=65535)
    return {}


async def _list(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    return {"execs": [execution.info() for execution in machine.execs]}


async def _shells(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    return {"shells": [shell.info() for shell in machine.execs.shells.values()]}


async def _close_shell(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    await machine.execs.close_shell(request.text("name", _SHELL))
    return {}


COMMAND_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "exec.start": _start,
        "exec.output": _output,
        "exec.wait": _wait,
        "exec.signal": _signal,
        "exec.stdin": _stdin,
        "exec.resize": _resize,
        "exec.list": _list,
        "shell.list": _shells,
        "shell.close": _close_shell,
    }
)
