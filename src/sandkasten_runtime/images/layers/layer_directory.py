"""Layers on disk: one directory per content, `layers/<hex>/{tree,meta}`, shared by every image.

A layer becomes visible by one rename, after it was unpacked completely and its digests were
compared; a process killed before that leaves a directory below `making`, which the next user
sweeps. Blocking. Raises InvalidImage (malformed, hostile, or with another digest) and
QuotaExceeded.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, BinaryIO, Final

from sandkasten.disk.atomic_file import sync_directory, write_file
from sandkasten.disk.os_errors import translated
from sandkasten.disk.small_file import read_json_object, read_small_file
from sandkasten.errors import InvalidImage
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.images.canonical_json import canonical_json
from sandkasten_runtime.images.image_config import DIGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sandkasten_runtime.images.layers.layer_unpack import Unpacked
    from sandkasten_runtime.images.layers.store_locks import StoreLocks

_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


@dataclass(frozen=True, slots=True)
class Layer:
    """`bytes` is the unpacked size of its files."""

    diff_id: str
    bytes: int
    files: int


class Layers:
    def __init__(self, root: Path, locks: StoreLocks) -> None:
        self._layers = root / "layers"
        self._blobs = root / "blobs"
        self._locks = locks

    def tree(self, diff_id: str) -> Path:
        return self._path(diff_id) / "tree"

    def get(self, diff_id: str) -> Layer | None:
        if not DIGEST.match(diff_id):
            return None
        meta = read_json_object(self._path(diff_id) / "meta")
        if meta is None:
            return None
        size, files = meta.get("bytes"), meta.get("files")
        if not isinstance(size, int) or not isinstance(files, int):
            return None
        return Layer(diff_id, size, files)

    def known_blob(self, blob_digest: str) -> str | None:
        """Return the layer that this compressed blob was unpacked to, if it still exists."""
        if not DIGEST.match(blob_digest):
            return None
        content = read_small_file(self._blobs / _hex(blob_digest))
        diff_id = content.decode("ascii", "replace") if content else ""
        return diff_id if self.get(diff_id) is not None else None

    def add(
        self,
        source: BinaryIO,
        *,
        expect_digest: str | None,
        expect_diff_id: str | None,
        progress: Callable[[int], None] | None,
        max_bytes: int | None = None,
    ) -> Layer:
        """Add a layer. The store's `working` lock is held."""
        if expect_diff_id is None:
            return self._unpack(source, expect_digest, None, progress, max_bytes)

        def waiting() -> None:
            if progress is not None:
                progress(0)

        with self._locks.alone(_hex(expect_diff_id), waiting):
            # Another process may have unpacked it while we waited.
            layer = self.get(expect_diff_id)
            if layer is not None:
                return layer
            return self._unpack(source, expect_digest, expect_diff_id, progress, max_bytes)

    def _unpack(
        self,
        source: BinaryIO,
        expect_digest: str | None,
        expect_diff_id: str | None,
        progress: Callable[[int], None] | None,
        max_bytes: int | None,
    ) -> Layer:
        # Imported here: most processes only read existing layers.
        from sandkasten_runtime.images.layers.layer_unpack import Caps, unpack_layer

        most = Caps().bytes if max_bytes is None else min(max_bytes, Caps().bytes)

        with translated("unpack a layer"), self._locks.place() as place:
            tree = place / "tree"
            tree.mkdir(mode=0o755)
            unpacked = unpack_layer(source, tree, caps=Caps(bytes=most), progress=progress)
            _compare("blob", expect_digest, unpacked.blob_digest)
            _compare("layer", expect_diff_id, unpacked.diff_id)
            # The tar may contain an entry for the root itself, with any mode.
            tree.chmod(0o755)
            self._publish(place, unpacked)
        with translated("remember a blob"):
            write_file(self._blobs / _hex(unpacked.blob_digest), unpacked.diff_id.encode())
        return Layer(unpacked.diff_id, unpacked.bytes, unpacked.files)

    def _publish(self, place: Path, unpacked: Unpacked) -> None:
        meta = {"diff_id": unpacked.diff_id, "bytes": unpacked.bytes, "files": unpacked.files}
        write_file(place / "meta", canonical_json(meta))
        try:
            place.rename(self._path(unpacked.diff_id))
        except OSError as exc:
            # Another process was faster; the same digest is the same content.
            if exc.errno not in _TAKEN or self.get(unpacked.diff_id) is None:
                raise
            return
        sync_directory(self._layers)

    def all(self) -> Iterator[str]:
        for name in sorted(os.listdir(self._layers)):
            diff_id = f"sha256:{name}"
            if DIGEST.match(diff_id):
                yield diff_id

    def mover(self, diff_id: str) -> Callable[[Path], object]:
        """Return a function that moves the layer aside, to a path that the caller removes."""
        return self._path(diff_id).rename

    def forget_blobs(self) -> None:
        """Drop the entries of blobs whose layer is gone."""
        for name in os.listdir(self._blobs):
            if self.known_blob(f"sha256:{name}") is None:
                (self._blobs / name).unlink(missing_ok=True)

    def _path(self, diff_id: str) -> Path:
        return self._layers / _hex(diff_id)


def _hex(digest: str) -> str:
    """Return the hex part. Digests become file names, so only complete ones are accepted."""
    if not DIGEST.match(digest):
        raise InvalidImage(
            f"{digest[:80]!r} is not a valid sha256 digest", hint="use sha256:<64 hex digits>"
        )
    return digest.removeprefix("sha256:")


def _compare(what: str, expected: str | None, got: str) -> None:
    if expected is not None and expected != got:
        raise InvalidImage(
            f"a {what} has the wrong digest: expected {expected}, got {got}",
            hint="the archive is damaged or was changed; get it again",
            expected=expected,
            got=got,
        )
