"""An OCI image layout: index.json, and blobs named by their digests. Reads only.

Every digest and size is compared. An index may lead to images for several platforms: the requested
one is taken, or this machine's. InvalidImage lists what there is if none fits.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidImage
from sandkasten_runtime.images.archives.archive_contents import Blob, FoundImage, found_image
from sandkasten_runtime.images.archives.archive_members import read_json
from sandkasten_runtime.images.image_config import bad, checked_digest
from sandkasten_runtime.images.registry.image_reference import Platform, best

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten_runtime.images.archives.archive_members import Members

INDEX: Final = "index.json"
LAYOUT: Final = "oci-layout"
MAX_MANIFESTS: Final = 1000
_REF: Final = "org.opencontainers.image.ref.name"
_CONTAINERD: Final = "io.containerd.image.name"
_ATTESTATION: Final = "vnd.docker.reference.type"


def is_oci_layout(members: Members) -> bool:
    return members.has(INDEX) and members.has(LAYOUT)


def oci_images(members: Members, wanted: Platform) -> list[FoundImage]:
    index, _ = read_json(members, INDEX)
    groups: dict[str, list[dict[str, Any]]] = {}
    for descriptor in descriptors(index, "manifests"):
        groups.setdefault(_name(descriptor), []).append(descriptor)
    if not groups:
        raise bad(f"{INDEX} names no image")
    # One image may be listed once for each of its names.
    names: dict[str, list[str]] = {}
    chosen: dict[str, dict[str, Any]] = {}
    for name, group in groups.items():
        seen: set[str] = set()
        leaves = [leaf for entry in group for leaf in _leaves(members, entry, seen)]
        leaf = _choose(members, leaves, wanted)
        chosen[leaf["digest"]] = leaf
        names.setdefault(leaf["digest"], []).extend([name] if name else [])
    return [
        _image(members, _verified(members, leaf), names[digest]) for digest, leaf in chosen.items()
    ]


def descriptors(value: Any, key: str) -> list[dict[str, Any]]:
    """Return the descriptors under a key of an index or manifest, each with a digest and a size."""
    listed = value.get(key) if isinstance(value, dict) else None
    if not isinstance(listed, list) or len(listed) > MAX_MANIFESTS:
        raise bad(f"{key} must be a list")
    for descriptor in listed:
        checked_descriptor(descriptor)
    return listed


def checked_descriptor(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("size"), int):
        raise bad("a descriptor is invalid")
    checked_digest(value.get("digest"))
    return value


def platform_of(value: Any) -> Platform | None:
    """Return the platform of a descriptor's image."""
    if not isinstance(value, dict):
        return None
    parts = [value.get(key) or "" for key in ("os", "architecture", "variant")]
    if not all(isinstance(part, str) for part in parts):
        raise bad("a platform is invalid")
    return Platform(*parts)


def choose(platforms: Sequence[Platform | None], wanted: Platform) -> int:
    """Choose a manifest by platform; a single one is taken whatever it is."""
    if len(platforms) == 1:
        return 0
    stated = [
        (number, platform) for number, platform in enumerate(platforms) if platform is not None
    ]
    index = best(wanted, [platform for _, platform in stated])
    if index is not None:
        return stated[index][0]
    there = (
        ", ".join(sorted({str(platform) for platform in platforms if platform is not None}))
        or "none"
    )
    raise InvalidImage(
        f"the image is available for {there}, not for {wanted}",
        hint="get one that was built for it, or name one of these as the platform",
    )


def _name(descriptor: dict[str, Any]) -> str:
    annotations = descriptor.get("annotations")
    if not isinstance(annotations, dict):
        return ""
    for key in (_CONTAINERD, _REF):
        value = annotations.get(key)
        # Alone, `latest` is the tag of an image without a recorded name.
        if isinstance(value, str) and (":" in value or "/" in value):
            return value
    return ""


def _leaves(members: Members, descriptor: dict[str, Any], seen: set[str]) -> list[dict[str, Any]]:
    """Return the manifests below a descriptor. Each blob is read once, however often it is
    named.
    """
    annotations = descriptor.get("annotations")
    attestation = isinstance(annotations, dict) and _ATTESTATION in annotations
    if attestation or descriptor["digest"] in seen:
        return []
    seen.add(descriptor["digest"])
    if len(seen) > MAX_MANIFESTS:
        raise bad(f"its indexes name more than {MAX_MANIFESTS} manifests")
    value = _verified(members, descriptor)
    if not isinstance(value.get("manifests"), list):
        return [descriptor]
    inner = descriptors(value, "manifests")
    return [leaf for entry in inner for leaf in _leaves(members, entry, seen)]


def _choose(members: Members, leaves: Sequence[dict[str, Any]], wanted: Platform) -> dict[str, Any]:
    if not leaves:
        raise bad("an index names no image")
    platforms = [platform_of(leaf.get("platform")) or _configured(members, leaf) for leaf in leaves]
    return leaves[choose(platforms, wanted)]


def _configured(members: Members, leaf: dict[str, Any]) -> Platform | None:
    manifest = _verified(members, leaf)
    config = _verified(members, checked_descriptor(manifest.get("config")))
    return platform_of(config)


def _image(members: Members, manifest: dict[str, Any], names: Sequence[str]) -> FoundImage:
    config = _verified(members, checked_descriptor(manifest.get("config")))
    blobs = [_layer(members, descriptor) for descriptor in descriptors(manifest, "layers")]
    return found_image(config, blobs, names)


def _layer(members: Members, descriptor: dict[str, Any]) -> Blob:
    kind = descriptor.get("mediaType")
    if isinstance(kind, str) and "encrypted" in kind:
        raise bad("a layer is encrypted", "decrypt it with the tool that encrypted it")
    name = _path(descriptor)
    size = members.size(name)
    if size != descriptor["size"]:
        raise bad(f"a layer has {size} bytes instead of {descriptor['size']}")
    return Blob(size, partial(members.open, name), descriptor["digest"])


def _verified(members: Members, descriptor: dict[str, Any]) -> Any:
    value, data = read_json(members, _path(descriptor))
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if digest != descriptor["digest"]:
        raise bad(f"digest mismatch of a blob: expected {descriptor['digest']}, got {digest}")
    if not isinstance(value, dict):
        raise bad("a manifest must be an object")
    return value


def _path(descriptor: dict[str, Any]) -> str:
    return f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"
