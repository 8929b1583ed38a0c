"""What images can do beyond being stored and pulled, as a plugin: one value that can be imported
without what it wraps.

A distribution brings one as an entry point of the group `sandkasten.images`, with one or more
parts: builds of images, packages for sandboxes, and the check of signatures. Each part has at most
one plugin. `images.installed_parts` finds them and reports what to install if a part is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.plugin_interface import INTERFACE

if TYPE_CHECKING:
    import threading
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.images.image_info import BootstrapRequest, BuildRequest, OnProgress
    from sandkasten.model.images.known_images import KnownImage
    from sandkasten.model.images.trust_rules import TrustRule
    from sandkasten.ports import EventSink, Provisioner, Workbench
    from sandkasten.ports.store_plugins import SectionValues
    from sandkasten_runtime.images.layers.image_store import LayerStore, StoredImage
    from sandkasten_runtime.images.registry.registry_client import Registry

    FindBase = Callable[[str], Awaitable[StoredImage]]
    """Return the image that a build begins with, by its name; it may be pulled."""

IMAGES_GROUP: Final = "sandkasten.images"


@dataclass(frozen=True, slots=True)
class Built:
    image: StoredImage
    cached: bool
    """Whether nothing had to be done."""
    warnings: tuple[str, ...] = ()
    """What of the request was ignored."""


class ImageBuilder(Protocol):
    """Builds images into the store. Raises BuildFailed with the end of the output."""

    def known(self, name: str) -> KnownImage:
        """Return what an image of `KNOWN_IMAGES` consists of."""
        ...

    def bootstrap(
        self, request: BootstrapRequest, *, progress: OnProgress, called_off: threading.Event
    ) -> Built:
        """Build an image from Debian packages. Blocking; `called_off` ends it early."""
        ...

    async def build(
        self,
        request: BuildRequest,
        *,
        bench: Workbench,
        find_base: FindBase,
        progress: OnProgress | None,
    ) -> Built:
        """Build an image by the steps of a file. All of it is read and checked before any step is
        done; commands run on `bench`.
        """
        ...


class SignatureCheck(Protocol):
    """Decides whether images may be used, by the operator's rules. Raises UntrustedImage."""

    def require_rule(self, name: str) -> object:
        """Raise unless a rule covers the image."""
        ...

    async def collect(
        self, registry: Registry, name: str, digests: Sequence[str], *, unsigned: bool
    ) -> Mapping[str, Any] | None:
        """Fetch and check the signatures of an image that is about to be pulled. Return those that
        the store keeps with it; None if a rule requires none, which applies with `unsigned` only.
        """
        ...

    def check(self, name: str, stored: Sequence[Mapping[str, Any]]) -> None:
        """Raise unless a rule accepts the image with what the store has of its pulls."""
        ...


@dataclass(frozen=True, slots=True)
class PartContext:
    """Values that a plugin gets to open its parts."""

    data_dir: Path
    store: LayerStore
    settings: SectionValues
    environ: Mapping[str, str]
    read_yaml: Callable[[Path], object]
    """Reads a YAML file of bounded depth and size."""
    events: EventSink


@dataclass(frozen=True, slots=True)
class ImagePlugin:
    name: str
    builder: Callable[[PartContext], ImageBuilder] | None = None
    """Opened at the first build."""
    packages: Callable[[PartContext], Provisioner] | None = None
    signatures: Callable[[Sequence[TrustRule]], SignatureCheck] | None = None
    """Raises InvalidConfiguration if a rule cannot be enforced."""
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""
