"""Images as people see them: what is in the store, what an operation did, how far one has come."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

ArchiveFormat = Literal["docker", "oci"]
ARCHIVE_FORMATS: tuple[ArchiveFormat, ...] = ("docker", "oci")


@dataclass(frozen=True, slots=True)
class ImageProgress:
    """`step` says what is being done; `done` of `total` bytes of it are (None: not known)."""

    step: str
    done: int = 0
    total: int | None = None
    text: str = ""
    """A line that a program said meanwhile."""


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """`id` is the digest of the uncompressed tar; `shared` counts the images that have it."""

    id: str
    bytes: int
    files: int
    shared: int = 1


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """One image of the store. Times are Unix seconds.

    `entrypoint`, `cmd`, `user` and `workdir` are what the image says; the first process of a
    sandbox is always ours, and its user the sandbox's.
    """

    id: str
    names: tuple[str, ...]
    bytes: int
    """Of all its layers, unpacked."""
    architecture: str = ""
    os: str = ""
    variant: str = ""
    created_at: float = 0.0
    """When it came into the store."""
    source: str = ""
    layers: tuple[ImageLayer, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    workdir: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    created: str = ""
    """When it was built, as the image says."""
    used_by: tuple[str, ...] = ()
    """Ids of the sandboxes that run on it."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """`cached`: it had been built before, and nothing was done."""

    image: ImageInfo
    cached: bool


@dataclass(frozen=True, slots=True)
class Exported:
    path: str
    bytes: int
    digest: str
    """Of the file that was written."""


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """`names` are gone; `deleted` says whether the image went with the last of them."""

    id: str
    names: tuple[str, ...]
    deleted: bool
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CollectedImages:
    """What a collection of garbage took away."""

    images: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """What the store takes. `reclaimable_bytes` would go with a collection of garbage."""

    images: int
    layers: int
    bytes: int
    """On disk: a layer of several images counts once."""
    separate_bytes: int
    """What it would be if no layer were shared."""
    reclaimable_bytes: int
