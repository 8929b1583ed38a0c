"""A scripted server that sends exact bytes, one answer for each request."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CUT = b""
"""Hang up without a word."""
SILENCE = None
"""Never answer."""


@dataclass(slots=True)
class Asked:
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Scripted:
    answers: list[bytes | None]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await _request(reader)
                self.asked.append(asked)
                answer = self.answers.pop(0)
                if answer is SILENCE:
                    await asyncio.sleep(3600)
                    continue
                writer.write(answer)
                await writer.drain()
                if answer == CUT or b"connection: close" in answer.lower():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    return Asked(line, headers, body)


def reply(value: object, status: int = 200, **headers: str) -> bytes:
    body = json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def problem(code: str, status: int, **headers: str) -> bytes:
    return reply({"code": code, "message": "m", "hint": "h", "details": {}}, status, **headers)


@asynccontextmanager
async def scripted(*answers: bytes | None) -> AsyncIterator[Scripted]:
    one = Scripted(list(answers))
    tasks: set[asyncio.Task[None]] = set()

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await one.serve(reader, writer)
        except asyncio.CancelledError:
            # The end of the test; the server's own bookkeeping takes it for a failure.
            return

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield one
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
