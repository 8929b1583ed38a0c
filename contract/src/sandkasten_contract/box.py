"""A cell under test, driven through one channel with the requests of the protocol."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten_contract.patience import PATIENCE_S
from sandkasten_runtime.wire.call import CallEvent, Data, OutputChunk
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.messages import (
    ExecReply,
    FileStat,
    FileStatPage,
    decode_entry,
    decode_exec,
    decode_page,
    to_bytes_json,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sandkasten.ports import Cell
    from sandkasten_runtime.wire.call import Call

T = TypeVar("T")

_ECHO_SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    peer, _ = server.accept()
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.close()
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command and its results, in order."""

    reply: ExecReply
    chunks: tuple[OutputChunk, ...]
    events: tuple[str, ...]

    def source(self, number: int) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks if chunk.source == number)

    @property
    def stdout(self) -> bytes:
        return self.source(1)

    @property
    def stderr(self) -> bytes:
        return self.source(2)

    @property
    def exit_code(self) -> int | None:
        return self.reply.exit_code


async def eventually(look: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Poll until `look` returns `wanted`; fail with the last value."""
    end = time.monotonic() + PATIENCE_S
    while (last := await look()) != wanted:
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE_S:g} s for {wanted!r}; last seen {last!r}")
        await asyncio.sleep(0.01)


async def collected(call: Call) -> Ran:
    chunks: list[OutputChunk] = []
    events: list[str] = []
    async for item in call:
        if isinstance(item, OutputChunk):
            chunks.append(item)
        elif isinstance(item, CallEvent):
            events.append(item.name)
    return Ran(decode_exec(await call.result()), tuple(chunks), tuple(events))


class Box:
    _numbers = itertools.count(1)

    def __init__(self, cell: Cell, channel: Channel, workspace: str) -> None:
        self.cell = cell
        self.channel = channel
        self.workspace = workspace

    @classmethod
    async def open(cls, cell: Cell) -> Box:
        channel = await Channel.open(await cell.dial())
        here = decode_entry(await channel.call("fs.stat", {"path": "."}))
        return cls(cell, channel, here.path)

    async def aclose(self) -> None:
        await self.channel.aclose()

    def path(self, name: str) -> str:
        return f"{self.workspace}/{name}"

    # ---- commands

    def fields(self, command: Sequence[str] | str, **fields: Any) -> dict[str, Any]:
        """Return the request of `exec.start`: a list is argv, a string goes to the shell."""
        request: dict[str, Any] = {"exec_id": f"t{next(self._numbers)}"}
        if isinstance(command, str):
            request |= {"shell": "default", "command": to_bytes_json(command)}
        else:
            request["argv"] = [to_bytes_json(word) for word in command]
        return {**request, **fields}

    async def run(
        self, command: Sequence[str] | str, *, stdin: bytes | None = None, **fields: Any
    ) -> Ran:
        if stdin is not None:
            fields["stdin"] = "stream"
        async with asyncio.timeout(PATIENCE_S):
            async with self.channel.stream("exec.start", self.fields(command, **fields)) as call:
                if stdin is not None:
                    await call.send(stdin)
                    await call.end()
                return await collected(call)

    async def begin(self, command: Sequence[str] | str, **fields: Any) -> str:
        """Start without following; return the exec id."""
        reply = await self.ask("exec.start", **self.fields(command, follow=False, **fields))
        return str(reply["exec_id"])

    async def wait(self, exec_id: str, **fields: Any) -> ExecReply:
        return decode_exec(await self.ask("exec.wait", exec_id=exec_id, **fields))

    async def output(self, exec_id: str, **fields: Any) -> Ran:
        async with asyncio.timeout(PATIENCE_S):
            request = {"exec_id": exec_id, **fields}
            async with self.channel.stream("exec.output", request) as call:
                return await collected(call)

    async def prints(self, exec_id: str, wanted: bytes) -> bytes:
        """Follow a running command until it has printed something; return all output so far."""
        output = b""
        async with asyncio.timeout(PATIENCE_S):
            request = {"exec_id": exec_id, "follow": True}
            async with self.channel.stream("exec.output", request) as call:
                async for item in call:
                    if isinstance(item, OutputChunk):
                        output += item.data
                        if wanted in output:
                            return output
        raise AssertionError(
            f"the command ended without printing {wanted!r}; it printed {output!r}"
        )

    # ---- everything else

    async def ask(self, verb: str, *, data: bytes | None = None, **fields: Any) -> dict[str, Any]:
        return await self.channel.call(verb, fields, data=data, timeout_s=PATIENCE_S)

    async def write(self, path: str, data: bytes, **fields: Any) -> FileStat:
        answer = await self.ask("fs.write", path=to_bytes_json(path), data=data, **fields)
        return decode_entry(answer)

    async def read(self, path: str, **fields: Any) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            request = {"path": to_bytes_json(path), **fields}
            async with self.channel.stream("fs.read", request) as call:
                pieces = [item.data async for item in call if isinstance(item, Data)]
                await call.result()
        return b"".join(pieces)

    async def stat(self, path: str, **fields: Any) -> FileStat:
        return decode_entry(await self.ask("fs.stat", path=to_bytes_json(path), **fields))

    async def list(self, path: str = ".", **fields: Any) -> FileStatPage:
        return decode_page(await self.ask("fs.list", path=to_bytes_json(path), **fields))

    async def mkdir(self, path: str, **fields: Any) -> FileStat:
        return decode_entry(await self.ask("fs.mkdir", path=to_bytes_json(path), **fields))

    async def remove(self, path: str, **fields: Any) -> int:
        answer = await self.ask("fs.remove", path=to_bytes_json(path), **fields)
        return int(answer["removed"])

    async def move(self, source: str, destination: str, **fields: Any) -> FileStat:
        answer = await self.ask(
            "fs.move",
            source=to_bytes_json(source),
            destination=to_bytes_json(destination),
            **fields,
        )
        return decode_entry(answer)

    async def echo_server(self) -> int:
        """Start an echo server inside and return its port."""
        listen: Any = getattr(self.cell, "listen", None)
        if listen is not None:
            listen(7007, _echo)
            return 7007
        exec_id = await self.begin(["/usr/bin/python3", "-IS", "-c", _ECHO_SERVER])
        return int(await self.prints(exec_id, b"\n"))


async def _echo(stream: Any) -> None:
    while data := await stream.receive(65536):
        await stream.send(data)
