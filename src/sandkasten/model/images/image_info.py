"""Images as users see them: store entries, results of operations, progress."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import field
from types import MappingProxyType
from typing import Literal

from sandkasten.lazy_dataclass import dataclass

ArchiveFormat = Literal["docker", "oci"]
ARCHIVE_FORMATS: tuple[ArchiveFormat, ...] = ("docker", "oci")


@dataclass(frozen=True, slots=True)
class ImageProgress:
    """Progress of an operation: `done` of `total` bytes of `step` (None: unknown)."""

    step: str
    done: int = 0
    total: int | None = None
    text: str = ""
    """A line that a program said meanwhile."""


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """A layer. `id` is the digest of the uncompressed tar; `shared` counts images that have it."""

    id: str
    bytes: int
    files: int
    shared: int = 1


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """One image of the store. Times are Unix seconds.

    `entrypoint`, `cmd`, `user` and `workdir` come from the image; a sandbox always starts our
    runner, with the sandbox's own user.
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
class BuildRequest:
    """A build by the steps of a file; paths are absolute and of the machine that builds."""

    file: str
    """A recipe (YAML), or with `context` a Dockerfile; empty if `recipe` is given."""
    name: str | None
    """None: the image has an id only."""
    context: str | None = None
    """The directory whose files are copied; None: that of the recipe."""
    build_args: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    allow: tuple[str, ...] = ()
    """Network rules of its commands, in addition to those of the file."""
    refresh: bool = False
    recipe: Mapping[str, object] | None = None
    """The content of a recipe that copies no files, in place of `file`."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """A built image; `cached` means that it had been built before."""

    image: ImageInfo
    cached: bool
    warnings: tuple[str, ...] = ()
    """What of a Dockerfile was ignored, with its line."""


@dataclass(frozen=True, slots=True)
class Exported:
    path: str
    bytes: int
    digest: str
    """Of the file that was written."""


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """Removed `names`; `deleted` tells whether the image went with the last one."""

    id: str
    names: tuple[str, ...]
    deleted: bool
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CollectedImages:
    """What a garbage collection removed."""

    images: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """Disk usage of the store. A garbage collection would free `reclaimable_bytes`."""

    images: int
    layers: int
    bytes: int
    """On disk: a layer of several images counts once."""
    separate_bytes: int
    """What it would be if no layer were shared."""
    reclaimable_bytes: int
