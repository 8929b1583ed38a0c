"""One blob as a readable stream: verified as it flows, resumed after a broken connection.

Holds one chunk at a time. Knows nothing of registries: it is given a function that opens the blob
at an offset. What it returns before its end is unverified; the end is reached only if size and
digest match, and raises InvalidImage otherwise.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Final

from urllib3.exceptions import HTTPError

from sandkasten.errors import InvalidImage, RegistryUnavailable, SandkastenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from urllib3 import BaseHTTPResponse

    from sandkasten.images.registry.registry_http import Errand

    # None: the server cannot continue from byte n; the answer starts at 0.
    Opener = Callable[[int], BaseHTTPResponse]

_CHUNK: Final = 256 * 1024


class BlobStream(io.RawIOBase):
    """A binary file object for the unpacker."""

    def __init__(self, open_at: Opener, digest: str, size: int, errand: Errand, what: str) -> None:
        self._open_at = open_at
        self._digest = digest
        self._size = size
        self._errand = errand
        self._what = what
        self._hash = hashlib.sha256()
        self._got = 0
        self._failures = 0
        self._answer: BaseHTTPResponse | None = None
        self._verified = False

    @property
    def got(self) -> int:
        return self._got

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, or one chunk; b"" only once everything was verified."""
        if self._verified:
            return b""
        most = _CHUNK if size is None or size < 0 else min(size, _CHUNK)
        while True:
            try:
                self._errand.check(self._what)
                data = self._more(most)
            except SandkastenError:
                self._drop()
                raise
            except (HTTPError, OSError) as exc:
                self._drop()
                self._failures += 1
                if self._failures >= self._errand.patience.attempts:
                    raise RegistryUnavailable(
                        f"{self._what} broke off at byte {self._got} of {self._size}, "
                        f"{self._failures} times in a row",
                        hint="check the network, then try again",
                    ) from exc
                self._errand.pause(self._errand.patience.pause_s(self._failures), self._what)
                continue
            self._got += len(data)
            self._hash.update(data)
            if data:
                self._failures = 0
                return data
            self._end()
            return b""

    def readall(self) -> bytes:
        return b"".join(iter(self.read, b""))

    def close(self) -> None:
        self._drop()
        super().close()

    def _more(self, most: int) -> bytes:
        if self._answer is None:
            if self._got == self._size and self._got:
                return b""
            self._answer = self._positioned()
        # One byte beyond the announced size is requested, to see whether there is more. Return what
        # has arrived without waiting for the rest: a break then loses nothing.
        data = self._answer.read1(min(most, self._size - self._got + 1))
        if not data and self._got < self._size:
            raise OSError("the connection ended early")
        if self._got + len(data) > self._size:
            raise InvalidImage(
                f"{self._what}: more came than the {self._size} bytes its manifest names",
                hint="the registry is damaged or lies; ask its operator",
            )
        return data

    def _positioned(self) -> BaseHTTPResponse:
        answer = self._open_at(self._got)
        left = self._size - (self._got if answer.status == 206 else 0)
        if answer.headers.get("Content-Length", str(left)) != str(left):
            answer.close()
            raise InvalidImage(
                f"{self._what}: the registry has another size for it than its manifest, "
                f"{self._size} bytes",
                hint="the registry is damaged or lies; ask its operator",
            )
        if self._got == 0:
            return answer
        skip = self._got
        if answer.status == 206:
            begins = (
                answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            )
            if begins != str(self._got):
                answer.close()
                raise OSError("the registry continued at another place")
            return answer
        # No range support: read again what is already known, and drop it.
        while skip:
            data = answer.read(min(skip, _CHUNK))
            if not data:
                answer.close()
                raise OSError("the connection ended early")
            skip -= len(data)
            self._errand.check(self._what)
        return answer

    def _end(self) -> None:
        found = "sha256:" + self._hash.hexdigest()
        if found != self._digest:
            raise InvalidImage(
                f"{self._what}: the content has digest {found}, not {self._digest}",
                hint="the registry is damaged or lies; nothing of it was kept",
            )
        self._verified = True
        self._drop()

    def _drop(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None
