"""The verbs of the fake runner that are neither commands nor files."""

from __future__ import annotations

import asyncio
import re
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sandkasten.backends.memory.pipe import MemoryStream, stream_pair
from sandkasten.backends.memory.processes import RUNNER_PID
from sandkasten.backends.memory.refusal import Refusal
from sandkasten.model.sandbox.cell_spec import RUNNER_ID, USER_ID
from sandkasten.wire.messages import to_bytes_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.backends.memory.machine import Machine
    from sandkasten.backends.memory.request import Request
    from sandkasten.backends.memory.server import ServerStream, Verb
    from sandkasten.backends.memory.tree import Volume

_HOST = re.compile(r"[0-9a-zA-Z.:-]{1,64}\Z")
_RECEIVE_BYTES = 64 * 1024


async def _processes(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    runner = {
        "pid": RUNNER_PID,
        "ppid": 0,
        "uid": RUNNER_ID,
        "state": "S",
        "name": "runner",
        "cmdline": ["runner"],
        "rss_bytes": 0,
        "cpu_ms": 0,
        "started_ms": int((time.time() - (time.monotonic() - machine.started)) * 1000),
        "threads": 1,
        "exec_id": None,
    }
    others = [
        {
            "pid": process.pid,
            "ppid": process.ppid,
            "uid": USER_ID,
            "state": "S",
            "name": to_bytes_json(process.argv[0].rsplit("/", 1)[-1][:15]),
            "cmdline": [to_bytes_json(word) for word in process.argv],
            "rss_bytes": 0,
            "cpu_ms": 0,
            "started_ms": int(process.started * 1000),
            "threads": 1,
            "exec_id": process.exec_id,
        }
        for process in machine.processes
    ]
    return {"processes": [runner, *others][:2000], "truncated": len(others) > 1999}


async def _stats(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    return {
        "uptime_ms": int((time.monotonic() - machine.started) * 1000),
        "processes": len(machine.processes) + 1,
        "running": machine.execs.running,
        "shells": len(machine.execs.shells),
        "connections": machine.connections,
        "disk": {path.decode(): _disk(volume) for path, volume in machine.tree.volumes.items()},
    }


def _disk(volume: Volume) -> dict[str, int]:
    return {
        "total": volume.limit,
        "used": volume.used,
        "free": max(0, volume.limit - volume.used),
        "inodes": 1_000_000,
        "inodes_free": 1_000_000,
    }


async def _connect(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    port = request.number("port", 0, most=65535)
    request.text_or_none("host", _HOST)
    if not port:
        raise Refusal("invalid", "port is missing")
    handler = machine.ports.get(port)
    if handler is None:
        raise Refusal("connection_refused", "Connection refused")
    ours, theirs = stream_pair()
    serving = machine.keep(_serve(handler(theirs), theirs))
    await stream.event("connected")
    sending = machine.keep(_to_server(stream, ours))
    received = 0
    try:
        while data := await ours.receive(_RECEIVE_BYTES):
            received += len(data)
            await stream.data(data)
        await asyncio.wait([sending])
        return {"sent": ours.sent, "received": received}
    finally:
        sending.cancel()
        serving.cancel()
        await ours.aclose()


async def _serve(work: Any, end: MemoryStream) -> None:
    try:
        await work
    finally:
        await end.aclose()


async def _to_server(stream: ServerStream, ours: MemoryStream) -> None:
    try:
        while data := await stream.receive():
            await ours.send(data)
    except BrokenPipeError:
        return
    ours.half_close()


async def _lease(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    idle, lifetime = request.number_or_none("idle_ms"), request.number_or_none("lifetime_ms")
    request.flag("close_idle", False)
    machine.lease(
        idle_s=None if idle is None else idle / 1000,
        lifetime_s=None if lifetime is None else lifetime / 1000,
    )
    return {}


async def _freeze(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    """Nothing here runs on a clock that could be frozen, so there is nothing to stop."""
    request.flag("frozen", False)
    return {}


async def _quiesce(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    machine.keep(machine.quiesce(request.number("ms", 0) / 1000))
    return {}


async def _ping(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    return {}


OTHER_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "proc.list": _processes,
        "port.connect": _connect,
        "stats": _stats,
        "lease": _lease,
        "freeze": _freeze,
        "quiesce": _quiesce,
        "ping": _ping,
    }
)
