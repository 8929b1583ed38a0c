"""One blob as a stream: verified as it arrives, resumed after a broken connection.

Holds a few chunks at a time. Knows nothing of registries: it is given a function that opens the
blob at an offset. What it returns before its end is unverified; the end is reached only if size and
digest match, and raises InvalidImage otherwise.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import queue
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Cancelled, InvalidImage, RegistryUnavailable, SandkastenError
from sandkasten_runtime.images.registry.registry_http import BROKEN, read_some

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiohttp

    from sandkasten_runtime.images.registry.registry_http import Patience

    Opener = Callable[[int], Awaitable[aiohttp.ClientResponse]]

_CHUNK: Final = 256 * 1024
# Enough to keep the unpacker busy while the event loop does something else.
_MOST_WAITING: Final = 4


class BlobStream:
    """Opened by the first read."""

    def __init__(
        self, open_at: Opener, digest: str, size: int, patience: Patience, what: str
    ) -> None:
        self._open_at = open_at
        self._digest = digest
        self._size = size
        self._patience = patience
        self._what = what
        self._hash = hashlib.sha256()
        self._got = 0
        self._failures = 0
        self._answer: aiohttp.ClientResponse | None = None
        self._verified = False

    @property
    def got(self) -> int:
        return self._got

    async def read(self) -> bytes:
        """Return the next chunk; b"" only once everything was verified."""
        while not self._verified:
            try:
                data = await self._more()
            except SandkastenError:
                self.close()
                raise
            except BROKEN as exc:
                self.close()
                self._failures += 1
                if self._failures >= self._patience.attempts:
                    raise RegistryUnavailable(
                        f"{self._what} broke off at byte {self._got} of {self._size}, "
                        f"{self._failures} times in a row",
                        hint="check the network, then try again",
                    ) from exc
                await asyncio.sleep(self._patience.pause_s(self._failures))
                continue
            self._got += len(data)
            self._hash.update(data)
            if data:
                self._failures = 0
                return data
            self._end()
        return b""

    async def read_all(self) -> bytes:
        content = bytearray()
        while data := await self.read():
            content += data
        return bytes(content)

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    async def _more(self) -> bytes:
        if self._answer is None:
            if self._got == self._size and self._got:
                return b""
            self._answer = await self._positioned()
        # One byte beyond the announced size is requested, to see whether there is more.
        data = await read_some(self._answer, min(_CHUNK, self._size - self._got + 1))
        if not data and self._got < self._size:
            raise OSError("the connection ended early")
        if self._got + len(data) > self._size:
            raise InvalidImage(
                f"{self._what}: more came than the {self._size} bytes its manifest names",
                hint="report it to the operator of the registry; nothing was stored",
            )
        return data

    async def _positioned(self) -> aiohttp.ClientResponse:
        answer = await self._open_at(self._got)
        try:
            await self._position(answer)
        except BaseException:
            answer.close()
            raise
        return answer

    async def _position(self, answer: aiohttp.ClientResponse) -> None:
        remaining = self._size - (self._got if answer.status == 206 else 0)
        if answer.headers.get("Content-Length", str(remaining)) != str(remaining):
            raise InvalidImage(
                f"{self._what}: the registry has another size for it than its manifest, "
                f"{self._size} bytes",
                hint="report it to the operator of the registry; nothing was stored",
            )
        if self._got and answer.status == 206:
            header = answer.headers.get("Content-Range", "")
            if header.removeprefix("bytes ").partition("-")[0] != str(self._got):
                raise OSError("the registry continued at another place")
            return
        # No range support: read again what is already known, and drop it.
        skip = self._got
        while skip:
            data = await read_some(answer, min(skip, _CHUNK))
            if not data:
                raise OSError("the connection ended early")
            skip -= len(data)

    def _end(self) -> None:
        digest = "sha256:" + self._hash.hexdigest()
        if digest != self._digest:
            self.close()
            raise InvalidImage(
                f"{self._what}: the content has digest {digest}, not {self._digest}",
                hint="the registry sent damaged or changed content; nothing was stored",
            )
        self._verified = True
        self.close()


class ThreadReader(io.RawIOBase):
    """A blob as a file object for an unpacker in a thread, fed by the event loop.

    The queue is bounded: `feed` waits for the thread to read. An error of the stream is raised
    in the thread by its next read.
    """

    def __init__(self, stream: BlobStream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_MOST_WAITING)
        self._failure: Exception | None = None
        self._rest = b""
        self._ended = False

    # ---- on the event loop

    async def feed(self, report: Callable[[int], None]) -> None:
        """Pass the stream on to the thread, and report the number of bytes passed so far."""
        try:
            data = b"begin"
            while data:
                await self._room.acquire()
                data = await self._stream.read()
                self._chunks.put(data)
                report(self._stream.got)
        except Exception as exc:  # noqa: BLE001 - raised again by the thread that reads
            self._fail(exc)
        finally:
            self._stream.close()

    def abort(self) -> None:
        """Make the thread give up at its next read."""
        self._fail(Cancelled("pulling a layer was cancelled"))

    def _fail(self, exc: Exception) -> None:
        self._failure = self._failure or exc
        self._chunks.put(b"")

    # ---- in the thread

    def check(self, _: int = 0) -> None:
        if self._failure is not None:
            raise self._failure

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, or one chunk; b"" only once everything was verified."""
        self.check()
        if not self._rest and not self._ended:
            self._rest = self._chunks.get()
            self.check()
            self._ended = not self._rest
            self._loop.call_soon_threadsafe(self._room.release)
        most = len(self._rest) if size is None or size < 0 else size
        data, self._rest = self._rest[:most], self._rest[most:]
        return data
