"""The other end of a channel, scripted by a test."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.frame_codec import (
    DESCRIPTORS,
    FROM_CLIENT,
    Decoder,
    Frame,
    Kind,
    encode,
    encode_credit,
)
from sandkasten_runtime.wire.unix_socket import SocketStream
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HELLO = {
    "generation": 1,
    "version": "test",
    "uid": 999,
    "user_uid": 1000,
    "shell": "/bin/sh",
    "features": [],
}
# The first answer to a request for a file, with a descriptor.
OPENED = {"event": "open", "descriptor": {"device": 1, "inode": 2}}


class Peer:
    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._decoder = Decoder(FROM_CLIENT)
        self._frames: list[Frame] = []

    async def frame(self) -> Frame:
        """The next frame of the client."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._frames:
                data = await self.stream.receive(1 << 20)
                if not data:
                    raise EOFError("the client closed the connection")
                self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def opened(self) -> tuple[int, dict[str, Any]]:
        """Return the next OPEN; other frames before it are skipped."""
        while (frame := await self.frame()).kind is not Kind.OPEN:
            pass
        return frame.stream, json.loads(frame.body)

    async def raw(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.stream.send(data)

    async def say(self, kind: Kind, stream: int, body: bytes | dict[str, Any] = b"") -> None:
        whole = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.raw(encode(kind, stream, whole))

    async def credit(self, stream: int, amount: int) -> None:
        await self.raw(encode_credit(stream, amount))

    async def hang_up(self) -> None:
        await self.stream.aclose()


def sockets() -> tuple[SocketStream, SocketStream]:
    one, other = socket.socketpair()
    return SocketStream(one), SocketStream(other)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Channel, Peer]]:
    ours, theirs = sockets()
    peer = Peer(theirs)
    await peer.say(Kind.HELLO, 0, HELLO)
    channel = await Channel.open(ours)
    try:
        yield channel, peer
    finally:
        await channel.aclose()
        await peer.hang_up()


class PassingPeer(Peer):
    """A runner that passes descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(SocketStream(sock))
        self.sock = sock

    def pass_with(self, frame: bytes, descriptors: list[int]) -> None:
        socket.send_fds(self.sock, [frame], descriptors)

    def answer(
        self, stream: int, descriptors: list[int], event: dict[str, Any] | None = None
    ) -> None:
        body = json.dumps(event or OPENED).encode()
        self.pass_with(encode(Kind.EVENT, stream, body), descriptors)


@asynccontextmanager
async def passing(*, same_kernel: bool = True) -> AsyncIterator[tuple[Channel, PassingPeer]]:
    ours, theirs = socket.socketpair()
    peer = PassingPeer(theirs)
    await peer.say(Kind.HELLO, 0, {**HELLO, "features": [DESCRIPTORS]})
    channel = await Channel.open(SocketStream(ours, same_kernel=same_kernel))
    try:
        yield channel, peer
    finally:
        await channel.aclose()
        await peer.hang_up()
