"""Indexes, manifests and configurations of a registry, parsed. Pure.

Everything here is untrusted: bounded, decoded to a closed set of shapes, and verified by digest
before use. Everything else raises InvalidImage.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final

from sandkasten.errors import InvalidImage
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown
from sandkasten_runtime.images.registry.image_reference import Platform, best

OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
SPOKEN: Final = (OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST)
_SCHEMA_1: Final = frozenset(
    {
        "application/vnd.docker.distribution.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
    }
)
_LAYERS: Final = frozenset(
    {
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.oci.image.layer.v1.tar+zstd",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.docker.image.rootfs.diff.tar.zstd",
    }
)
_CONFIGS: Final = frozenset(
    {
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.docker.container.image.v1+json",
    }
)
MAX_MANIFEST_BYTES: Final = 4 * 1024 * 1024
MAX_CONFIG_BYTES: Final = 8 * 1024 * 1024
# The kernel stacks at most 500 layers; no registry publishes more than 127.
MAX_LAYERS: Final = 256
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One blob by content: its type, size and digest."""

    media_type: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """Manifests by platform; entries that are not images (attestations) are left out."""

    entries: tuple[tuple[Platform, Descriptor], ...]

    def choose(self, wanted: Platform, name: str) -> Descriptor:
        at = best(wanted, (platform for platform, _ in self.entries))
        if at is None:
            offered = ", ".join(sorted({str(platform) for platform, _ in self.entries})[:20])
            raise InvalidImage(
                f"image {name} is not made for {wanted}",
                hint=f"it is made for: {offered or 'nothing'}",
                image=name,
            )
        return self.entries[at][1]


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_manifest(data: bytes, media_type: str, name: str) -> Index | Manifest:
    """Parse a manifest. `media_type` is the registry's header; the document's own type must
    agree.
    """
    tree = _object(data, name)
    inner = tree.get("mediaType")
    header_type = media_type.partition(";")[0].strip().lower()
    kind = inner if isinstance(inner, str) else header_type
    if kind in _SCHEMA_1 or header_type in _SCHEMA_1 or tree.get("schemaVersion") == 1:
        raise InvalidImage(
            f"image {name} is published as a schema 1 manifest, which is not supported",
            hint="have it pushed again by a current tool",
            image=name,
        )
    if header_type in SPOKEN and kind != header_type:
        raise InvalidImage(f"the manifest of {name} calls itself {shown(kind)}, not {header_type}")
    if kind not in SPOKEN:
        # Static-file registries send no useful type beside the document.
        kind = OCI_INDEX if "manifests" in tree else OCI_MANIFEST if "layers" in tree else kind
    if kind in (OCI_INDEX, DOCKER_LIST) and "layers" not in tree:
        return _index(tree, name)
    if kind in (OCI_MANIFEST, DOCKER_MANIFEST) and "manifests" not in tree:
        return _manifest(tree, name)
    raise InvalidImage(
        f"{name} is not an image: its manifest is of type {shown(str(kind))}",
        hint="name an image; other artifacts of a registry cannot be run",
        image=name,
    )


def _index(tree: dict[str, object], name: str) -> Index:
    listed = tree.get("manifests")
    if not isinstance(listed, list) or len(listed) > 1024:
        raise InvalidImage(f"the index of {name} lists no manifests", image=name)
    entries = []
    for entry in listed:
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(platform, dict):
            continue
        texts = [platform.get(key, "") for key in ("os", "architecture", "variant")]
        os, architecture, variant = (text if isinstance(text, str) else "" for text in texts)
        if os and architecture and os != "unknown":
            entries.append(
                (Platform(os[:32], architecture[:32], variant[:32]), _descriptor(entry, name))
            )
    return Index(tuple(entries))


def _manifest(tree: dict[str, object], name: str) -> Manifest:
    config = _descriptor(tree.get("config"), name)
    if config.media_type not in _CONFIGS:
        raise InvalidImage(
            f"{name} is not an image: its configuration is of type {shown(config.media_type)}",
            hint="name an image; other artifacts of a registry cannot be run",
            image=name,
        )
    if config.size > MAX_CONFIG_BYTES:
        raise InvalidImage(f"the configuration of {name} is larger than {MAX_CONFIG_BYTES} bytes")
    listed = tree.get("layers")
    if not isinstance(listed, list) or len(listed) > MAX_LAYERS:
        raise InvalidImage(f"the manifest of {name} does not list its layers", image=name)
    layers = tuple(_descriptor(entry, name) for entry in listed)
    for layer in layers:
        if layer.media_type not in _LAYERS:
            raise InvalidImage(
                f"image {name} has a layer of type {shown(layer.media_type)}",
                hint="layers are tar archives, plain, gzip or zstd; never foreign or encrypted",
                image=name,
            )
    return Manifest(config, layers)


def _descriptor(value: object, name: str) -> Descriptor:
    tree = value if isinstance(value, dict) else {}
    size, kind = tree.get("size"), tree.get("mediaType")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 50:
        raise InvalidImage(f"the manifest of {name} names a blob without a size", image=name)
    if not isinstance(kind, str) or len(kind) > 255:
        raise InvalidImage(f"the manifest of {name} names a blob without a type", image=name)
    return Descriptor(kind, _digest(tree.get("digest"), name), size)


def _digest(value: object, name: str) -> str:
    if not isinstance(value, str) or not _DIGEST.match(value):
        raise InvalidImage(
            f"the manifest of {name} names {shown(str(value))} as a digest",
            hint="only sha256 digests are verified, so only those are accepted",
            image=name,
        )
    return value


def _object(data: bytes, name: str) -> dict[str, object]:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise InvalidImage(f"what the registry says of {name} is not JSON", image=name) from exc
    if not isinstance(tree, dict):
        raise InvalidImage(f"what the registry says of {name} is not an object", image=name)
    return tree
