"""Images as users see them: store entries, results of operations, progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Literal, TypeAlias

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
    """A line that a program printed meanwhile."""


OnProgress: TypeAlias = Callable[[ImageProgress], None]


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
    """The size of all its layers, unpacked."""
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
    """When it was built, according to the image."""
    used_by: tuple[str, ...] = ()
    """Ids of the sandboxes that run on it."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """An image of a registry."""

    name: str
    platform: str | None = None
    """Such as `linux/arm64`; None: this machine's."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """How an archive is imported, which is a file or a stream."""

    name: str | None = None
    """Replaces the names in the archive; None: it keeps them."""
    platform: str | None = None
    """As in `PullRequest`."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """An image, and the file that it is written to."""

    name: str
    path: str
    """Absolute, on the machine that writes it."""
    format: ArchiveFormat = "docker"


@dataclass(frozen=True, slots=True)
class KnownBuildRequest:
    """An image of `KNOWN_IMAGES`."""

    name: str
    refresh: bool = False
    """Build it again, without the cache."""


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """An image of a Debian suite and its packages."""

    name: str
    suite: str
    include: tuple[str, ...] = ()
    variant: str = "minbase"
    mirror: str | None = None
    """An address or a line of sources.list; None: that of the machine's apt."""
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build by the steps of a file; paths are absolute and on the machine that builds."""

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
    """The digest of the file that was written."""


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """Removed `names`; `deleted`: whether the image was removed with the last one."""

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
