"""Unix sockets as byte streams, without asyncio's transports.

Bytes are received and sent directly on the non-blocking socket; the loop is involved only if the
kernel has no data or no space. That halves the latency of a small call, and large bodies are not
copied into our buffer. Raises only OSError.

A descriptor that arrives is kept only while one is expected; an unexpected one, one too many, or a
socket ends the connection. All of them are received, and a thread closes them: the kernel would
close a descriptor that it drops during our call, and closing a socket with SO_LINGER can take as
long as its sender wants.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from typing import TYPE_CHECKING

from sandkasten_runtime.wire.byte_streams import drop_descriptors
from sandkasten_runtime.wire.outbox import remainder

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten_runtime.wire.byte_streams import Buffer

# sun_path holds 108 bytes with its terminating NUL.
_MAX_PATH_BYTES = 107
# Larger buffers mean fewer wake-ups for bulk data; the kernel caps it at net.core.wmem_max.
_SOCKET_BUFFER_BYTES = 1024 * 1024
# A runner whose backlog is full returns EAGAIN at once; it drains in far less than this.
_CONNECT_TIMEOUT_S = 5.0
_CONNECT_RETRY_S = 0.002
_DESCRIPTOR = struct.Struct("@i")
# A message can bring the end of one frame and, with its descriptor, the beginning of the next.
_MOST_DESCRIPTORS = 2
# Room for as many as the kernel lets a message have (SCM_MAX_FD), so that it drops none here.
_CONTROL_BYTES = socket.CMSG_SPACE(253 * _DESCRIPTOR.size)


class SocketStream:
    """A connected stream socket as a ByteStream. One task receives, one sends."""

    __slots__ = (
        "_closed",
        "_descriptors",
        "_expecting",
        "_fd",
        "_loop",
        "_readable",
        "_sock",
        "_take",
        "_watching",
        "_writable",
        "same_kernel",
    )

    def __init__(self, sock: socket.socket, *, same_kernel: bool = False) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._readable: asyncio.Future[bytes | None] | None = None
        self._take: tuple[int, Callable[[bytes], bool]] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._watching = False
        self._closed = False
        self._expecting = False
        self._descriptors: deque[int] = deque()
        self.same_kernel = same_kernel
        """See `byte_streams.Descriptors`."""

    def expect_descriptors(self, expected: bool) -> None:
        self._expecting = expected
        if not expected:
            self._drop_descriptors()

    def take_descriptor(self) -> int | None:
        return self._descriptors.popleft() if self._descriptors else None

    def _drop_descriptors(self) -> None:
        if self._descriptors:
            drop_descriptors(self._descriptors)
            self._descriptors.clear()

    async def receive(self, max_bytes: int) -> bytes:
        while not self._closed:
            data = self._receive_nowait(max_bytes)
            if data is not None:
                return data
            await self._until_readable()
        return b""

    async def receive_or_hand(self, max_bytes: int, take: Callable[[bytes], bool]) -> bytes | None:
        """See `byte_streams.Handing`."""
        data = b"" if self._closed else self._receive_nowait(max_bytes)
        if data is not None:
            return data
        self._take = max_bytes, take
        try:
            last = await self._until_readable()
        finally:
            self._take = None
        return b"" if self._closed else last

    def _receive_nowait(self, max_bytes: int) -> bytes | None:
        """Return None if nothing is there now, b"" at the end."""
        try:
            data, control, _, _ = self._sock.recvmsg(
                max_bytes, _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return None
        if control:
            self._keep(control)
        return data

    async def receive_into(self, buffer: memoryview) -> int:
        while not self._closed:
            try:
                count, control, _, _ = self._sock.recvmsg_into(
                    [buffer], _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                await self._until_readable()
                continue
            if control:
                self._keep(control)
            return count
        return 0

    def _keep(self, control: list[tuple[int, int, bytes]]) -> None:
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) // _DESCRIPTOR.size * _DESCRIPTOR.size
                for (descriptor,) in _DESCRIPTOR.iter_unpack(content[:whole]):
                    self._descriptors.append(descriptor)
        too_many = len(self._descriptors) > (_MOST_DESCRIPTORS if self._expecting else 0)
        if too_many or not all(map(_is_file, self._descriptors)):
            self._drop_descriptors()
            what = "too many descriptors" if too_many else "a descriptor that is not a file"
            raise ConnectionAbortedError(f"the runner passed {what}")

    async def _until_readable(self) -> bytes | None:
        # The reader stays registered between two receives: removing and adding it costs two system
        # calls per message.
        if not self._watching:
            self._loop.add_reader(self._fd, self._on_readable)
            self._watching = True
        self._readable = self._loop.create_future()
        try:
            return await self._readable
        finally:
            self._readable = None

    def _on_readable(self) -> None:
        if self._readable is not None and self._take is not None:
            self._hand(self._readable, *self._take)
        elif self._readable is None:
            # No task waits for data now; a registered reader would spin the loop.
            self._loop.remove_reader(self._fd)
            self._watching = False
        elif not self._readable.done():
            self._readable.set_result(None)

    def _hand(
        self, waiting: asyncio.Future[bytes | None], max_bytes: int, take: Callable[[bytes], bool]
    ) -> None:
        """Receive once and hand it over. Wake the waiting task only if it has something to do."""
        if waiting.done():
            return
        try:
            data = self._receive_nowait(max_bytes)
            if data is None or (data and take(data)):
                return
        except Exception as exc:  # noqa: BLE001  (raised in the waiting task)
            # `take` may have cancelled the task.
            if not waiting.done():
                waiting.set_exception(exc)
        else:
            if not waiting.done():
                waiting.set_result(None if data else b"")

    def send_nowait(self, *parts: Buffer) -> int:
        """Return how many bytes the kernel accepted at once."""
        if self._closed:
            raise BrokenPipeError("the stream is closed")
        try:
            if len(parts) == 1:
                return self._sock.send(parts[0])
            return self._sock.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return 0

    async def send(self, *parts: Buffer) -> None:
        while parts:
            parts = remainder(parts, self.send_nowait(*parts))
            if parts:
                self._writable = self._loop.create_future()
                self._loop.add_writer(self._fd, self._on_writable)
                try:
                    await self._writable
                finally:
                    self._writable = None
                    if not self._closed:
                        self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    async def aclose(self) -> None:
        """Close the socket; a pending receive returns b"", a pending send fails. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._close_socket()
        self._drop_descriptors()
        for waiting in (self._readable, self._writable):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _close_socket(self) -> None:
        """Close it; with a thread if something is unread, which can have descriptors in it."""
        try:
            # From now on nothing more can arrive.
            self._sock.shutdown(socket.SHUT_RDWR)
            unread = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)) != bytes(4)
        except OSError:
            unread = True
        if unread:
            drop_descriptors([self._sock.detach()])
        else:
            self._sock.close()


def _is_file(descriptor: int) -> bool:
    """Return False for a socket, and for an object that can hold one.

    A socket could be the other end of this connection, which then would not end with the sandbox.
    """
    try:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False
    return not name.startswith(("socket:", "anon_inode:"))


async def connect_unix(path: str, *, same_kernel: bool = False) -> SocketStream:
    """Connect to a Unix socket of any path length. Raise OSError.

    `same_kernel`: whether the process behind it runs on our kernel, so that descriptors can be
    passed.

    A path that is too long for a socket address is reached through a descriptor of its directory.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
            await _connect(sock, path)
        else:
            parent, name = os.path.split(path)
            directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                await _connect(sock, f"/proc/self/fd/{directory}/{name}")
            finally:
                os.close(directory)
        return SocketStream(sock, same_kernel=same_kernel)
    except BaseException:
        sock.close()
        raise


async def _connect(sock: socket.socket, path: str) -> None:
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        while True:
            try:
                sock.connect(path)
            except BlockingIOError:
                await asyncio.sleep(_CONNECT_RETRY_S)
            else:
                return
