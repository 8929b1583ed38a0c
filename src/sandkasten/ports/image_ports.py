"""Where root file systems come from, and how they come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
    from collections.abc import Set as AbstractSet

    from sandkasten.model.images.image_info import (
        ArchiveFormat,
        BuiltImage,
        CollectedImages,
        Exported,
        ImageInfo,
        ImageProgress,
        ImageUsage,
        RemovedImage,
    )
    from sandkasten.model.images.resolved_image import Image, Lookup
    from sandkasten.ports.isolation import Workbench


class ImageSource(Protocol):
    """Turns the name a user wrote into something a backend can show as a root file system."""

    async def resolve(self, name: str) -> Image:
        """The host image may stand in for an alias; InvalidImage, PolicyDenied otherwise."""
        ...

    async def look_up(self, name: str, *, fetch: bool = False) -> Lookup:
        """The same for a backend with images of its own: the host stands in for nothing.

        Only with `fetch` is what is missing brought in, where the operator lets the store do so.
        """
        ...


@runtime_checkable
class KeepsImages(Protocol):
    """A backend with images of its own, beside those of the store; it cannot show the host's."""

    async def find_image(self, names: Sequence[str]) -> Image | None:
        """The first of these that it has (kind `engine`, with its id), or None.

        Where its operator lets it, the last is fetched; RegistryUnavailable when that failed.
        """
        ...

    async def bring_image(self, image: Image) -> None:
        """It has this image of the store when this returns; may take as long as a copy takes."""
        ...


class ImagePacker(Protocol):
    """Packs an image of the store for an engine that keeps its own copies."""

    def archive(self, image: Image, reference: str) -> AsyncGenerator[bytes, None]:
        """A docker archive (`docker load`) of all of `image.layers` under that one reference."""
        ...


@runtime_checkable
class Watchful(Protocol):
    """A source whose images can be removed while somebody begins to use one."""

    async def present(self, image: Image) -> bool:
        """Whether it can still be found. Asked after its use was written into the ledger."""
        ...


class ImageOperations(Protocol):
    """What is done with images in the same way by the store, the engine and a daemon.

    Progress is reported on the event loop of the caller.
    """

    async def list(self) -> Sequence[ImageInfo]: ...
    async def inspect(self, name: str) -> ImageInfo: ...
    async def import_archive(
        self,
        path: str,
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Sequence[ImageInfo]: ...
    async def export(
        self,
        name: str,
        path: str,
        *,
        format: ArchiveFormat = "docker",
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Exported: ...
    async def pull(
        self,
        name: str,
        *,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> ImageInfo: ...
    async def build_debian(
        self,
        name: str,
        suite: str,
        *,
        include: Sequence[str] = (),
        variant: str = "minbase",
        mirror: str | None = None,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage: ...
    async def tag(self, name: str, new: str) -> ImageInfo: ...


class Images(ImageOperations, Protocol):
    """The images of one server, as the client sees them; paths are that server's."""

    async def build_steps(
        self,
        name: str,
        file: str,
        *,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage: ...
    async def remove(self, name: str) -> RemovedImage: ...
    async def collect(self) -> CollectedImages: ...
    async def usage(self) -> ImageUsage: ...


class ImageLibrary(ImageOperations, Protocol):
    """The store of images. `in_use` are the ids of images that sandboxes run on."""

    async def import_stream(
        self,
        data: AsyncIterable[bytes],
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Sequence[ImageInfo]:
        """As `import_archive`, of an archive that comes from elsewhere and is kept by nobody."""
        ...

    async def build_steps(
        self,
        name: str,
        file: str,
        *,
        bench: Workbench,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage:
        """Build an image by the steps of a recipe; its commands run on `bench`."""
        ...

    async def remove(self, name: str, *, in_use: AbstractSet[str]) -> RemovedImage:
        """Conflict when it is in use; its layers stay until `collect`."""
        ...

    async def collect(self, *, in_use: AbstractSet[str], wait_s: float = 30.0) -> CollectedImages:
        """Busy when somebody is adding an image for longer than `wait_s`."""
        ...

    async def usage(self, *, in_use: AbstractSet[str]) -> ImageUsage: ...
