"""Image records as small files: one record per content, one pointer per name.

A record that was removed while a sandbox might just be starting from it stays as a tombstone: it is
not found by name or id, and the collection of garbage still knows its layers. Every change holds
the store's `editing` lock. An unreadable file counts as missing.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.small_file import MAX_SMALL_BYTES, read_json_object
from sandkasten.errors import InvalidImage
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.images.canonical_json import canonical_json
from sandkasten_runtime.images.image_config import DIGEST, ImageConfig, parse_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_LIVE: Final = ".json"
_GONE: Final = ".gone"
_SIGNED: Final = ".signed"
# One content can be in several repositories, with a signature in each.
_MAX_PULLS: Final = 8
_ID_START: Final = re.compile(r"(?:sha256:)?[0-9a-f]{8,64}\Z")


@dataclass(frozen=True, slots=True)
class StoredImage:
    """One content: the same layers and configuration have the same id, whatever their source."""

    id: str
    names: tuple[str, ...]
    layers: tuple[str, ...]
    """Digests of the uncompressed layers, lowest first."""
    config: ImageConfig
    bytes: int
    """Size of its layers, unpacked; layers shared with others count in full."""
    created_at: float
    """When it was added to the store."""
    source: str = ""
    """Its source: `docker-archive`, `oci-layout`, `rootfs`, …"""


def image_id(layers: Sequence[str], config: ImageConfig) -> str:
    digest = hashlib.sha256(canonical_json(list(layers)) + b"\n" + config.content())
    return f"sha256:{digest.hexdigest()}"


class Records:
    def __init__(self, root: Path) -> None:
        self._records = root / "records"
        self._names = root / "names"

    # ---- records

    def put(self, image: StoredImage) -> None:
        row = {
            "id": image.id,
            "layers": list(image.layers),
            "config": image.config.as_oci(image.layers),
            "raw": dict(image.config.raw),
            "bytes": image.bytes,
            "created_at": image.created_at,
            "source": image.source,
        }
        data = canonical_json(row)
        # It could not be read back, and an image that exists and cannot be found is worse.
        if len(data) > MAX_SMALL_BYTES:
            raise InvalidImage(
                f"the configuration of the image is too large: {len(data)} bytes",
                hint=f"at most {MAX_SMALL_BYTES}; build it with fewer or shorter labels",
            )
        write_file(self._path(image.id, _LIVE), data)
        self._path(image.id, _GONE).unlink(missing_ok=True)

    def get(self, the_id: str) -> StoredImage | None:
        """Return a record without its names: those require reading every pointer."""
        return _decode(read_json_object(self._path(the_id, _LIVE)), the_id)

    def there(self, the_id: str) -> bool:
        return bool(DIGEST.match(the_id)) and self._path(the_id, _LIVE).exists()

    def bury(self, the_id: str) -> None:
        """Turn a record into a tombstone: it is not found any more, but still owns its layers."""
        self._path(the_id, _LIVE).rename(self._path(the_id, _GONE))

    def sign(self, the_id: str, signatures: Mapping[str, Any]) -> None:
        """Keep the signatures of a pull, besides those of the pulls before it."""
        same = canonical_json(signatures.get("signatures"))
        others = (
            pull
            for pull in self.signatures(the_id)
            if canonical_json(pull.get("signatures")) != same
        )
        pulls = [dict(signatures), *others][:_MAX_PULLS]
        while len(data := canonical_json({"pulls": pulls})) > MAX_SMALL_BYTES:
            pulls.pop()
        write_file(self._path(the_id, _SIGNED), data)

    def signatures(self, the_id: str) -> list[dict[str, Any]]:
        """Return the signatures of an image by pull, the newest first."""
        pulls = (read_json_object(self._path(the_id, _SIGNED)) or {}).get("pulls")
        return [pull for pull in pulls if isinstance(pull, dict)] if isinstance(pulls, list) else []

    def forget(self, the_id: str) -> None:
        for suffix in (_LIVE, _GONE, _SIGNED):
            self._path(the_id, suffix).unlink(missing_ok=True)

    def ids(self) -> list[str]:
        return [*self._ids(_LIVE)]

    def buried(self) -> list[str]:
        return [*self._ids(_GONE)]

    def layers_of(self, the_id: str) -> tuple[str, ...] | None:
        """Return the layers of a record, live or tombstone; None if it is unreadable."""
        for suffix in (_LIVE, _GONE):
            decoded = _decode(read_json_object(self._path(the_id, suffix)), the_id)
            if decoded is not None:
                return decoded.layers
        return None

    def starting_with(self, text: str) -> list[str]:
        """Return ids with this prefix, `sha256:` optional; at least eight digits."""
        if not _ID_START.match(text):
            return []
        start = "sha256:" + text.removeprefix("sha256:")
        if DIGEST.match(start):
            return [start] if self.there(start) else []
        return [digest for digest in self._ids(_LIVE) if digest.startswith(start)]

    def _ids(self, suffix: str) -> Iterator[str]:
        for name in sorted(os.listdir(self._records)):
            stem, extension = os.path.splitext(name)
            if extension == suffix and DIGEST.match(f"sha256:{stem}"):
                yield f"sha256:{stem}"

    def _path(self, the_id: str, suffix: str) -> Path:
        return self._records / (the_id.removeprefix("sha256:") + suffix)

    # ---- names

    def point(self, name: str, the_id: str) -> None:
        write_file(self._name_path(name), canonical_json({"name": name, "image": the_id}))

    def unpoint(self, name: str) -> None:
        self._name_path(name).unlink(missing_ok=True)

    def pointed(self, name: str) -> str | None:
        pointer = _pointer(read_json_object(self._name_path(name)))
        return pointer[1] if pointer is not None and pointer[0] == name else None

    def names(self) -> dict[str, list[str]]:
        """Return the names of each image, sorted."""
        by_id: dict[str, list[str]] = {}
        for file in os.listdir(self._names):
            if file.startswith("."):
                continue
            pointer = _pointer(read_json_object(self._names / file))
            if pointer is not None:
                by_id.setdefault(pointer[1], []).append(pointer[0])
        return {the_id: sorted(names) for the_id, names in by_id.items()}

    def unpoint_lost(self) -> None:
        """Remove names of images that no longer exist."""
        for the_id, names in self.names().items():
            if not self.there(the_id):
                for name in names:
                    self.unpoint(name)

    def _name_path(self, name: str) -> Path:
        # A digest can neither be a path nor too long.
        return self._names / hashlib.sha256(name.encode()).hexdigest()


def _pointer(row: dict[str, Any] | None) -> tuple[str, str] | None:
    if row is None:
        return None
    name, image = row.get("name"), row.get("image")
    if isinstance(name, str) and isinstance(image, str) and DIGEST.match(image):
        return name, image
    return None


def _decode(row: dict[str, Any] | None, the_id: str) -> StoredImage | None:
    if row is None or row.get("id") != the_id:
        return None
    layers, size, at = row.get("layers"), row.get("bytes"), row.get("created_at")
    source, raw = row.get("source"), row.get("raw")
    if not isinstance(layers, list) or not all(
        isinstance(layer, str) and DIGEST.match(layer) for layer in layers
    ):
        return None
    if not isinstance(size, int) or not isinstance(at, int | float) or not isinstance(raw, dict):
        return None
    try:
        config = replace(parse_config(row.get("config")), raw=MappingProxyType(raw))
    except InvalidImage:
        return None
    return StoredImage(the_id, (), tuple(layers), config, size, float(at), str(source or ""))
