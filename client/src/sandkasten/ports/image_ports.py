"""Sources of root file systems, and the operations on images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Sequence
    from collections.abc import Set as AbstractSet

    from sandkasten.model.images.image_info import (
        BootstrapRequest,
        BuildRequest,
        BuiltImage,
        CollectedImages,
        Exported,
        ExportRequest,
        ImageInfo,
        ImageUsage,
        ImportRequest,
        KnownBuildRequest,
        OnProgress,
        PullRequest,
        RemovedImage,
    )
    from sandkasten.model.images.known_images import KnownImage
    from sandkasten.model.images.resolved_image import Image, Lookup
    from sandkasten.model.sandbox.cell_spec import HostMount
    from sandkasten.ports.isolation import Workbench


class ImageSource(Protocol):
    """Resolves the name from a request to an image that a backend can use as a root file system."""

    async def resolve(self, name: str, *, fetch: bool = True) -> Image:
        """Resolve a name. The host image may stand in for an alias. Raise InvalidImage or
        PolicyDenied.

        Without `fetch` a missing image is not fetched, whatever the operator allows.
        """
        ...

    async def look_up(self, name: str, *, fetch: bool = False) -> Lookup:
        """Look up a name for a backend with its own images; the host image stands in for nothing.

        A missing image is fetched only with `fetch`, and only if the operator allows it.
        """
        ...


@runtime_checkable
class SpellsImages(Protocol):
    """An image source that knows under which other names the image of a name is known."""

    def spellings(self, name: str) -> Sequence[str]:
        """Return the name, what it is an alias of, and the names of the image if it is an id; each
        as usual, with its registry, and without tag and digest. Raise InvalidImage.
        """
        ...


@runtime_checkable
class KeepsImages(Protocol):
    """A backend with its own images besides those of the store; it cannot use the host image."""

    async def find_image(self, names: Sequence[str], *, fetch: bool = False) -> Image | None:
        """Return the first of these that it has (kind `engine`, with its id), or None.

        With `fetch`, the last one is fetched if none is there; raises RegistryUnavailable if that
        fails.
        """
        ...

    async def bring_image(self, image: Image) -> None:
        """Copy this image of the store into the backend. May take as long as a copy takes."""
        ...

    async def bring_contents(self, mounts: Sequence[HostMount]) -> None:
        """Copy directories that never change, such as packages, into a backend that does not see
        our files. May take as long as a copy takes.
        """
        ...


class ImagePacker(Protocol):
    """Packs an image of the store for an engine that stores its own copies."""

    def archive(self, image: Image, reference: str) -> AsyncGenerator[bytes, None]:
        """Yield a docker archive (`docker load`) of all of `image.layers` under that one
        reference.
        """
        ...


@runtime_checkable
class Watchful(Protocol):
    """A source whose images can be removed while a sandbox starts to use one."""

    async def present(self, image: Image) -> bool:
        """Return whether the image still exists. Called after its use was written to the ledger."""
        ...


class ImageOperations(Protocol):
    """Operations that the store, the engine and a daemon implement in the same way.

    Progress is reported on the event loop of the caller.
    """

    async def list(self) -> Sequence[ImageInfo]: ...
    async def inspect(self, name: str) -> ImageInfo: ...
    async def import_archive(
        self, path: str, request: ImportRequest, *, progress: OnProgress | None = None
    ) -> Sequence[ImageInfo]: ...
    async def export(
        self, request: ExportRequest, *, progress: OnProgress | None = None
    ) -> Exported: ...
    async def pull(
        self, request: PullRequest, *, progress: OnProgress | None = None
    ) -> ImageInfo: ...
    async def build_debian(
        self, request: BootstrapRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage: ...
    async def tag(self, name: str, new: str) -> ImageInfo: ...


class Images(ImageOperations, Protocol):
    """The images of one server, as the client sees them; paths are that server's."""

    async def build_known(
        self, request: KnownBuildRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage: ...

    async def build(
        self, request: BuildRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage: ...
    async def remove(self, name: str) -> RemovedImage: ...
    async def collect(self) -> CollectedImages: ...
    async def usage(self) -> ImageUsage: ...


class ImageLibrary(ImageOperations, Protocol):
    """The store of images. `in_use` are the ids of images that sandboxes run on."""

    async def import_stream(
        self, data: AsyncIterable[bytes], request: ImportRequest
    ) -> Sequence[ImageInfo]:
        """Like `import_archive`, for streamed data; the archive itself is not stored."""
        ...

    async def known(self, name: str) -> KnownImage:
        """Return what an image of `KNOWN_IMAGES` consists of."""
        ...

    async def build(
        self, request: BuildRequest, *, bench: Workbench, progress: OnProgress | None = None
    ) -> BuiltImage:
        """Build an image by the steps of a file; its commands run on `bench`."""
        ...

    async def remove(self, name: str, *, in_use: AbstractSet[str]) -> RemovedImage:
        """Remove a name. Raise Conflict if the image is in use; its layers stay until `collect`."""
        ...

    async def collect(self, *, in_use: AbstractSet[str], wait_s: float = 30.0) -> CollectedImages:
        """Remove unused layers. Raise Busy if another process adds an image for longer than
        `wait_s`.
        """
        ...

    async def usage(self, *, in_use: AbstractSet[str]) -> ImageUsage: ...
