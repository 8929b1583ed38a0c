"""The `docker save` format: manifest.json, a configuration per image, a tar per layer. Reads only.

The configuration's digest is compared with its file name if that is one; each layer's digest is in
the configuration.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidImage
from sandkasten_runtime.images.archives.archive_contents import Blob, FoundImage, found_image
from sandkasten_runtime.images.archives.archive_members import read_json
from sandkasten_runtime.images.image_config import bad

if TYPE_CHECKING:
    from sandkasten_runtime.images.archives.archive_members import Members

MANIFEST: Final = "manifest.json"
MAX_IMAGES: Final = 100
# `<hex>.json` of docker, `sha256:<hex>` of others, `blobs/sha256/<hex>` of newer ones.
_NAMED_BY_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64})(?:\.json)?\Z")
_BLOB: Final = re.compile(r"blobs/sha256/([0-9a-f]{64})\Z")


def is_docker_archive(members: Members) -> bool:
    if not members.has(MANIFEST):
        return False
    try:
        value, _ = read_json(members, MANIFEST)
    except InvalidImage:
        # Then it is damaged, and reading it reports that.
        return True
    return isinstance(value, list)


def docker_images(members: Members) -> list[FoundImage]:
    entries, _ = read_json(members, MANIFEST)
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_IMAGES:
        raise bad(f"{MANIFEST} must be a list of 1 to {MAX_IMAGES} images")
    return [_image(members, entry) for entry in entries]


def _image(members: Members, entry: Any) -> FoundImage:
    if not isinstance(entry, dict):
        raise bad(f"{MANIFEST} is invalid")
    config_name = entry.get("Config")
    layers, names = entry.get("Layers") or [], entry.get("RepoTags") or []
    if not isinstance(config_name, str) or not _texts(layers) or not _texts(names):
        raise bad(f"{MANIFEST} is invalid")
    config, data = read_json(members, config_name)
    named = _NAMED_BY_DIGEST.match(posixpath.basename(config_name))
    digest = hashlib.sha256(data).hexdigest()
    if named is not None and named[1] != digest:
        raise InvalidImage(
            f"digest mismatch of the configuration: expected sha256:{named[1]}, "
            f"got sha256:{digest}",
            hint="the archive is damaged or was changed; get it again",
        )
    return found_image(config, [_layer(members, name) for name in layers], names)


def _layer(members: Members, name: str) -> Blob:
    blob = _BLOB.match(name)
    digest = f"sha256:{blob[1]}" if blob is not None else None
    return Blob(members.size(name), partial(members.open, name), digest)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
