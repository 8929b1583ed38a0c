"""Export an image as one file that docker, skopeo and our own import read. Deterministic.

Layers are written from their trees, so they have their own digests. The file appears at its path
whole or not at all. Raises FileTrouble for problems with that path.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from sandkasten.disk.atomic_file import overwriting
from sandkasten.disk.os_errors import is_full
from sandkasten.errors import FileTrouble, InvalidRequest, QuotaExceeded
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.images.image_info import ARCHIVE_FORMATS, Exported, ImageProgress
from sandkasten.model.spelling import did_you_mean
from sandkasten_runtime.images.canonical_json import canonical_json
from sandkasten_runtime.images.layers.layer_tar import write_layer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sandkasten.model.images.image_info import OnProgress
    from sandkasten_runtime.images.image_config import ImageConfig
    from sandkasten_runtime.images.layers.image_store import LayerStore, StoredImage

_MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
DOCKER_LAYER: Final = "{hex}/layer.tar"
_END: Final = bytes(2 * tarfile.BLOCKSIZE)
_REF: Final = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class WrittenBlob:
    """A part of an archive as written."""

    digest: str
    size: int

    @property
    def hex(self) -> str:
        return self.digest.removeprefix("sha256:")


class Hashing:
    """Writes through, and counts and hashes what passes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._size += len(data)
        return self._file.write(data)

    @property
    def written(self) -> WrittenBlob:
        return WrittenBlob(f"sha256:{self._digest.hexdigest()}", self._size)


def export_file(
    store: LayerStore,
    image: StoredImage,
    path: Path,
    format: str,
    progress: OnProgress,
) -> Exported:
    """Export. The store's `working` lock is held, so that no layer is removed meanwhile."""
    if format not in ARCHIVE_FORMATS:
        raise InvalidRequest(
            f"there is no format {format[:40]!r}", hint=did_you_mean(format, ARCHIVE_FORMATS)
        )
    try:
        with overwriting(path, mode=0o644) as file:
            writer = _Archive(file, store, image, progress)
            (writer.docker if format == "docker" else writer.oci)()
            file.flush()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
    except OSError as exc:
        reason = exc.strerror or exc
        if is_full(exc):
            raise QuotaExceeded(
                f"writing {path} failed: {reason}", hint="free space there and try again"
            ) from exc
        raise FileTrouble(
            f"writing {path} failed: {reason}",
            hint="check that its directory exists and is writable",
        ) from exc
    return Exported(str(path), size, f"sha256:{digest}")


class _Archive:
    def __init__(
        self,
        file: BinaryIO,
        store: LayerStore,
        image: StoredImage,
        progress: OnProgress,
    ) -> None:
        self._file = file
        self._store = store
        self._image = image
        self._progress = progress

    def docker(self) -> None:
        """Write the `docker save` format: manifest.json, `<hex>.json`, `<hex>/layer.tar`."""
        layers = self._layers(DOCKER_LAYER)
        tags = [name for name in self._image.names if "@" not in name]
        self._file.write(docker_ending(self._image.config, layers, tags))

    def oci(self) -> None:
        """Write a tar of an OCI layout with one manifest."""
        layers = self._layers("blobs/sha256/{hex}")
        whole = self._image.config.as_oci([layer.digest for layer in layers])
        config = self._blob(canonical_json(whole))
        manifest = self._blob(
            canonical_json(
                {
                    "schemaVersion": 2,
                    "mediaType": _MANIFEST_TYPE,
                    "config": _descriptor(_CONFIG_TYPE, config),
                    "layers": [_descriptor(_LAYER_TYPE, layer) for layer in layers],
                }
            )
        )
        described = _descriptor(_MANIFEST_TYPE, manifest) | {
            "platform": {
                key: whole[key] for key in ("architecture", "os", "variant") if key in whole
            }
        }
        names = [name for name in self._image.names if "@" not in name]
        manifests = [described | {"annotations": {_REF: name}} for name in names] or [described]
        index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": manifests}
        self._small("index.json", canonical_json(index))
        self._small("oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"}))
        self._file.write(_END)

    def _layers(self, name: str) -> list[WrittenBlob]:
        """Write each layer once, however often the image has it."""
        done: dict[str, WrittenBlob] = {}
        contents: set[str] = set()
        for number, diff_id in enumerate(self._image.layers, 1):
            if diff_id not in done:
                step = f"layer {number}/{len(self._image.layers)}"
                done[diff_id] = self._layer(diff_id, name, step, contents)
        return [done[diff_id] for diff_id in self._image.layers]

    def _layer(self, diff_id: str, name: str, step: str, contents: set[str]) -> WrittenBlob:
        """Write a layer. Its header is written last, because it contains the digest of what
        follows.
        """
        stored = self._store.layer(diff_id)
        total, moved = (stored.bytes if stored is not None else None), 0

        def advance(amount: int) -> None:
            nonlocal moved
            moved += amount
            self._progress(ImageProgress(step, moved, total))

        start = self._file.tell()
        self._file.write(bytes(tarfile.BLOCKSIZE))
        hashing = Hashing(self._file)
        write_layer(self._store.tree(diff_id), cast("BinaryIO", hashing), advance)
        written = hashing.written
        end = self._file.tell()
        self._file.seek(start)
        if written.digest in contents:
            # Two layers that were once written differently and are the same now.
            self._file.truncate()
            return written
        contents.add(written.digest)
        self._file.write(member_header(name.format(hex=written.hex), written.size))
        self._file.seek(end)
        return written

    def _blob(self, data: bytes) -> WrittenBlob:
        written = WrittenBlob(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
        self._small(f"blobs/sha256/{written.hex}", data)
        return written

    def _small(self, name: str, data: bytes) -> None:
        self._file.write(_member(name, data))


def docker_ending(config: ImageConfig, layers: Sequence[WrittenBlob], tags: Sequence[str]) -> bytes:
    """Return what follows the layers of a docker archive: configuration, table of contents, end."""
    config_json = canonical_json(config.as_oci([layer.digest for layer in layers]))
    name = f"{hashlib.sha256(config_json).hexdigest()}.json"
    entry = {
        "Config": name,
        "RepoTags": list(tags),
        "Layers": [DOCKER_LAYER.format(hex=layer.hex) for layer in layers],
    }
    return _member(name, config_json) + _member("manifest.json", canonical_json([entry])) + _END


def _member(name: str, data: bytes) -> bytes:
    return member_header(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def member_header(name: str, size: int) -> bytes:
    """Return one header block, whatever the size: it must fit into the room left for it."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def _descriptor(kind: str, written: WrittenBlob) -> dict[str, Any]:
    return {"mediaType": kind, "digest": written.digest, "size": written.size}
