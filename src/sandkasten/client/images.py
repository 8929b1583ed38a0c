"""The images of this machine as an object: the asynchronous client; `sync.py` has its twin.

Paths are the caller's own; a daemon's images come and go through the connection. Every failure
is a class of `errors`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandkasten.client.server.server_pool import connect, place_of

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Sequence
    from os import PathLike

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
    from sandkasten.ports import Images as ImagesPort


class AsyncImages:
    """What is in the store of images, and how it comes and goes.

    A name is `repository[:tag]`, or an id (`sha256:…`), or a unique beginning of one. Reports of
    progress arrive on the event loop, so they must be quick.
    """

    def __init__(
        self,
        *,
        data_dir: str | PathLike[str] | None = None,
        backend: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._place = place_of(data_dir, backend, url, api_key)

    async def list(self) -> builtins.list[ImageInfo]:
        """Every image, by name."""
        return [*await (await self.transport()).list()]

    async def inspect(self, name: str) -> ImageInfo:
        """Its layers, what it says of itself, and the sandboxes that run on it."""
        return await (await self.transport()).inspect(name)

    async def import_archive(
        self,
        path: str | PathLike[str],
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> builtins.list[ImageInfo]:
        """The images of a docker archive, an OCI layout or a tar of a root file system.

        What it is, is told by its content. `name` replaces the names in it; a root file system
        has none. `platform` chooses among several (`linux/arm64`); else this machine's is taken.
        """
        images = await self.transport()
        found = await images.import_archive(
            _absolute(path), name=name, platform=platform, progress=progress
        )
        return [*found]

    async def export(
        self,
        name: str,
        path: str | PathLike[str],
        *,
        format: ArchiveFormat = "docker",
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Exported:
        """Write an image to one file: `docker` as docker save does, `oci` as a tar of a layout."""
        images = await self.transport()
        return await images.export(name, _absolute(path), format=format, progress=progress)

    async def pull(
        self,
        name: str,
        *,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> ImageInfo:
        """Bring an image from its registry: `python:3.11-slim`, `host:5000/a/b:tag`, `…@sha256:…`.

        What is already here is not fetched; everything fetched is verified by its digest.
        RegistryUnavailable when the registry is down, Unauthorized when it refuses the login.
        """
        images = await self.transport()
        return await images.pull(name, platform=platform, progress=progress)

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
    ) -> BuiltImage:
        """An image of Debian's packages, by mmdebstrap.

        `mirror` is an address or a line of sources.list; without one, what this machine's apt
        uses. The same again comes from the cache, unless `refresh`. BuildFailed says why not.
        """
        images = await self.transport()
        return await images.build_debian(
            name,
            suite,
            include=include,
            variant=variant,
            mirror=mirror,
            refresh=refresh,
            progress=progress,
        )

    async def build_steps(
        self,
        name: str,
        file: str | PathLike[str],
        *,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage:
        """An image by the steps of a recipe (`base`, then `copy`, `run`, `env`, `workdir`, `user`).

        Files to copy lie in the recipe's directory. A step that was done before on the same
        parent comes from the cache, unless `refresh`. BuildFailed names the step that failed.
        """
        images = await self.transport()
        return await images.build_steps(name, _absolute(file), refresh=refresh, progress=progress)

    async def tag(self, name: str, new: str) -> ImageInfo:
        """Another name for an image; if that name was another's, it moves."""
        return await (await self.transport()).tag(name, new)

    async def remove(self, name: str) -> RemovedImage:
        """Take a name away, and the image with its last one. Conflict while a sandbox uses it."""
        return await (await self.transport()).remove(name)

    async def collect(self) -> CollectedImages:
        """Remove what no name leads to and no sandbox uses."""
        return await (await self.transport()).collect()

    async def usage(self) -> ImageUsage:
        """What the store takes on disk, and what of it could be had back."""
        return await (await self.transport()).usage()

    async def transport(self) -> ImagesPort:
        """Whatever serves the images here, opened on first use."""
        return (await connect(self._place)).images


def _absolute(path: str | PathLike[str]) -> str:
    """The caller's directory is not the server's."""
    return os.path.abspath(path)
