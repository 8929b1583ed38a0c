"""A fake engine with scripted answers, any of which can be wrong.

It stores nothing and runs nothing. `answer(path)` decides for each request; an answer is a JSON
value, raw bytes, or a function that gets the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

ID = "ab" * 32
OWNER = "00" * 8
BOX = "sbx_" + "0" * 16
_LABELS = {"sandkasten": "cell", "sandkasten.owner": OWNER, "sandkasten.id": BOX}
_SECURITY = ["name=seccomp,profile=default"]
PLAUSIBLE: dict[str, Any] = {
    r"GET /version": {"Version": "20.10.24", "ApiVersion": "1.41"},
    r"GET /info": {
        "ID": "X", "ServerVersion": "20.10.24", "OSType": "linux", "Architecture": "x86_64",
        "Driver": "overlay2", "CgroupVersion": "2", "CgroupDriver": "cgroupfs",
        "SecurityOptions": _SECURITY, "MemoryLimit": True, "DockerRootDir": "/var/lib/docker",
    },
    r"GET /images/.*/json": {
        "Id": f"sha256:{ID}", "Config": {"Env": ["A=b"], "Labels": {}},
    },
    r"POST /containers/create": {"Id": ID, "Warnings": []},
    r"GET /containers/json": [{"Id": ID, "Names": [f"/{BOX}"], "Labels": _LABELS}],
    r"GET /containers/[^/]+/json": {
        "Id": ID, "Name": f"/{BOX}", "Config": {"Labels": _LABELS, "Hostname": "x"},
        "State": {"Running": True, "Dead": False, "Pid": 7, "Status": "running"}, "Mounts": [],
    },
    r"GET /containers/[^/]+/stats": {
        "memory_stats": {"usage": 1, "limit": 2, "stats": {}}, "pids_stats": {"current": 1},
        "cpu_stats": {"cpu_usage": {"total_usage": 1}, "throttling_data": {}},
    },
    r"GET /containers/[^/]+/logs": b"",
    r"GET /containers/[^/]+/archive": b"",
    r"GET /events": b"",
    r"POST /containers/[^/]+/exec": {"Id": ID},
    r"GET /volumes$": {"Volumes": [{"Name": f"station-sandbox-{BOX}", "Labels": _LABELS}]},
    r"POST /volumes/create": {"Name": "v", "Driver": "local", "Mountpoint": "/v", "Options": None},
}  # fmt: skip


class FakeDocker:
    """`async with FakeDocker(path) as docker:` listens on the Unix socket `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Any] = dict(PLAUSIBLE)
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def host(self) -> str:
        return f"unix://{self.path}"

    async def __aenter__(self) -> FakeDocker:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def says(self, question: str, answer: Any) -> None:
        """Add an answer; later ones take precedence."""
        rest = {pattern: reply for pattern, reply in self.answers.items() if pattern != question}
        self.answers = {question: answer, **rest}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        length = re.search(r"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
        if length:
            self.bodies.append(body)
        elif "chunked" in head.lower():
            while (size := int(await reader.readline(), 16)) >= 0:
                await reader.readexactly(size + 2)
                if not size:
                    break
        question = f"{method} {re.sub(r'^/v[0-9.]+', '', target.partition('?')[0])}"
        self.asked.append(question)
        answer: Any = next((a for q, a in self.answers.items() if re.match(q, question)), {})
        if callable(answer):
            whole: Callable[..., Awaitable[None]] = answer
            await whole(reader, writer)
            return False
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        writer.write(answered(content))
        await writer.drain()
        return True


def answered(body: bytes, status: str = "200 OK", *more: str) -> bytes:
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    lines = [f"HTTP/1.1 {status}", *headers, *more]
    return "\r\n".join([*lines, "", ""]).encode() + body
