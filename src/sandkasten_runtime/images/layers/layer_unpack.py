"""Unpack one layer of an image into a directory and compute its digests.

Reading and hashing is done here; a separate program, `sandkasten-unpack`, unpacks after dropping
all privileges it does not need. Blocking: callers use a thread, and stop it by raising from
`progress`. Raises InvalidImage (malformed, hostile, over a limit), QuotaExceeded (the disk is full)
or InternalError. The program is always reaped; the caller removes what it created. Knows nothing of
stores, registries or image formats.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, Self

from sandkasten.disk.process_identity import KILLED_HINT
from sandkasten.errors import (
    BackendUnavailable,
    InternalError,
    InvalidImage,
    QuotaExceeded,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.images.archives import compression

if TYPE_CHECKING:
    from collections.abc import Callable

_PROGRAM = Path(__file__).resolve().parents[2] / "_bin" / "sandkasten-unpack"
# The maximum for an ordinary user; the default of 64 KiB would halve the size of the pieces and
# double the switches between the two processes.
_PIPE_BYTES = 1 << 20
# It has read everything by then and only closes a handful of directories.
_END_S = 60
_HINTS = {
    "malformed": "the archive is damaged or no tar; get it again, or pack it anew with GNU tar",
    "hostile": "the archive was made to write outside its directory; do not use it",
    "limit": "layers have bounds on size, entries, names and owners; make it smaller or squash it",
}
# In pieces of one MiB: enough that neither side waits for short delays of the other.
_WAITING: Final = 8


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of one layer; holes of sparse files count as content."""

    bytes: int = 20 << 30
    entries: int = 2_000_000


@dataclass(frozen=True, slots=True)
class Unpacked:
    diff_id: str
    """`sha256:<hex>` of the uncompressed tar."""
    blob_digest: str
    """`sha256:<hex>` of the source as it was read."""
    bytes: int
    """Content of files, without the holes of sparse ones."""
    files: int
    """Everything created: files, directories, links, whiteouts."""
    skipped: int = 0
    """Devices and FIFOs, which are never created."""


def unpack_layer(
    source: BinaryIO,
    target: Path,
    *,
    caps: Caps = Caps(),  # noqa: B008  (frozen)
    progress: Callable[[int], None] | None = None,
) -> Unpacked:
    """Unpack `source` (tar; plain, gzip, bzip2, xz or zstd) into the empty directory `target`.

    `progress` is called with the number of bytes of the source read so far; an exception from it
    stops the work and is raised here.
    """
    with Digest() as blob, Digest() as plain:
        content = compression.uncompressed(_Hashed(source, blob, progress))
        with _Program(target, caps) as program, contextlib.closing(content.pieces) as pieces:
            for piece in pieces:
                if not program.feed(piece):
                    break
                if content.compressed:
                    plain.update(piece)
            report = program.answer()
        return Unpacked(
            diff_id=(plain if content.compressed else blob).name(),
            blob_digest=blob.name(),
            bytes=report["bytes"],
            files=report["files"],
            skipped=report["skipped"],
        )


class _Hashed:
    """A source that is hashed and counted as it is read."""

    def __init__(
        self, source: BinaryIO, digest: Digest, progress: Callable[[int], None] | None
    ) -> None:
        self._source = source
        self._digest = digest
        self._progress = progress
        self._count = 0

    def read(self, size: int, /) -> bytes:
        piece = self._source.read(size)
        self._digest.update(piece)
        self._count += len(piece)
        if self._progress is not None and piece:
            self._progress(self._count)
        return piece


class _Program:
    """`sandkasten-unpack` working in one directory; gone when the block ends."""

    def __init__(self, target: Path, caps: Caps) -> None:
        arguments = ["--max-bytes", str(caps.bytes), "--max-entries", str(caps.entries)]
        directory = _opened(target)
        try:
            self._child = subprocess.Popen(
                [_PROGRAM, "--target-fd", str(directory), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[directory],
                cwd="/",
                env={},
            )
        except OSError as exc:
            raise BackendUnavailable(
                f"the program that unpacks layers cannot be run: {exc.strerror}",
                hint="install the package for this machine, or build it: runner/build.sh",
            ) from exc
        finally:
            os.close(directory)
        # If the user has many pipes, the kernel refuses, and the smaller one works as well.
        with contextlib.suppress(OSError):
            fcntl.fcntl(_number(self._child.stdin), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()

    def feed(self, piece: bytes) -> bool:
        """Return False once the program has read all it needs and has an answer."""
        descriptor = _number(self._child.stdin)
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except BrokenPipeError:
            return False
        return True

    def answer(self) -> dict[str, int]:
        """Return what was unpacked; raise what stopped it."""
        try:
            # The answer is short and cannot fill the pipe.
            output, complained = self._child.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired as exc:
            raise InternalError(f"the program that unpacks layers hung for {_END_S} s") from exc
        try:
            answer = json.loads(output)
        except ValueError as exc:
            text = complained[:500].decode(errors="replace").strip()
            if self._child.returncode < 0:
                raise BackendUnavailable(
                    f"the program that unpacks layers was killed by signal "
                    f"{-self._child.returncode}",
                    hint=KILLED_HINT,
                ) from exc
            raise InternalError(
                f"the program that unpacks layers ended with {self._child.returncode} "
                f"without an answer: {text}"
            ) from exc
        if "error" in answer:
            raise _failure(**answer["error"])
        return {key: int(answer[key]) for key in ("bytes", "files", "skipped")}


def _number(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    return pipe.fileno()


def _opened(target: Path) -> int:
    try:
        directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise InternalError(f"cannot unpack a layer into {target}: {exc.strerror}") from exc
    if os.listdir(directory):
        os.close(directory)
        raise InternalError(f"cannot unpack a layer into {target}: it is not empty")
    return directory


def _failure(kind: str, message: str, errno: int) -> SandkastenError:
    text = f"the layer could not be unpacked: {message}"
    if kind == "space":
        return QuotaExceeded(text, hint="free space below the data directory and try again")
    if kind in _HINTS:
        return InvalidImage(text, hint=_HINTS[kind], kind=kind)
    return InternalError(text, errno=errno)


class Digest:
    """A sha256 that is computed in parallel with reading.

    hashlib releases the interpreter while it computes, so with a second core the digest of a layer
    costs no extra time. Takes pieces from one thread; a piece must not change afterwards.
    """

    def __init__(self) -> None:
        self._sum = hashlib.sha256()
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="sandkasten-digest", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def update(self, piece: bytes) -> None:
        self._pieces.put(piece)

    def close(self) -> None:
        if self._thread.is_alive():
            self._pieces.put(None)
            self._thread.join()

    def name(self) -> str:
        """Return `sha256:<hex>` of all pieces; nothing may follow."""
        self.close()
        return f"sha256:{self._sum.hexdigest()}"

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._sum.update(piece)
