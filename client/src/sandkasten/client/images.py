"""Images: the asynchronous client; `sync.py` has its twin.

Paths are the caller's own; images of a daemon are sent over the connection. Every failure is a
class of `errors`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.client.server.daemon_or_embedded import place_of
from sandkasten.client.server.server_pool import connect
from sandkasten.model.images.image_info import (
    BootstrapRequest,
    BuildRequest,
    ExportRequest,
    ImportRequest,
    KnownBuildRequest,
    PullRequest,
)

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Mapping, Sequence
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
    """The images of the store.

    A name is `repository[:tag]`, or an id (`sha256:…`), or a unique prefix of one. Progress is
    reported on the event loop, so callbacks must be quick.
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
        """Return every image, by name."""
        return [*await (await self.transport()).list()]

    async def inspect(self, name: str) -> ImageInfo:
        """Return an image with its layers, its configuration and the sandboxes that use it."""
        return await (await self.transport()).inspect(name)

    async def import_archive(
        self,
        path: str | PathLike[str],
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> builtins.list[ImageInfo]:
        """Import a docker archive, an OCI layout or a tar of a root file system.

        The kind is detected by content. `name` replaces the names in it; a root file system has
        none. `platform` chooses among several (`linux/arm64`); the default is this machine's.
        """
        # A directory (an OCI layout) cannot be sent to a daemon.
        layout = await asyncio.to_thread(os.path.isdir, path)
        images = await (self._here() if layout else self.transport())
        request = ImportRequest(name, platform)
        return [*await images.import_archive(_absolute(path), request, progress=progress)]

    async def export(
        self,
        name: str,
        path: str | PathLike[str],
        *,
        format: ArchiveFormat = "docker",
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Exported:
        """Write an image to one file: `docker` as docker save does, `oci` as a tar of a layout."""
        request = ExportRequest(name, _absolute(path), format)
        return await (await self._here()).export(request, progress=progress)

    async def pull(
        self,
        name: str,
        *,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> ImageInfo:
        """Pull an image from its registry: `python:3.11-slim`, `host:5000/a/b:tag`, `…@sha256:…`.

        Layers that are present are not fetched; everything fetched is verified by its digest.
        RegistryUnavailable if the registry is down, Unauthorized if it refuses the login.
        """
        request = PullRequest(name, platform)
        return await (await self.transport()).pull(request, progress=progress)

    async def build_known(
        self,
        name: str,
        *,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage:
        """Build an image by its name: `datascience`, `base`, `code-interpreter-v1`,
        `sandbox-runtime:base`, `sandbox-runtime:python` or `sandbox-runtime:node`.

        The server builds it, from packages of Debian and of the Python index. A second build comes
        from the cache, unless `refresh`. BuildFailed has the reason.
        """
        request = KnownBuildRequest(name, refresh)
        return await (await self.transport()).build_known(request, progress=progress)

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
        """Build an image of Debian packages with mmdebstrap.

        `mirror` is an address or a line of sources.list; the default is that of this machine's apt.
        A second build comes from the cache, unless `refresh`. BuildFailed has the reason.
        """
        request = BootstrapRequest(name, suite, tuple(include), variant, mirror, refresh)
        return await (await self._here()).build_debian(request, progress=progress)

    async def build_steps(
        self,
        name: str,
        file: str | PathLike[str],
        *,
        allow: Sequence[str] = (),
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage:
        """Build an image from a recipe (`base`, then `copy`, `run`, `env`, `workdir`, `user`).

        Files to copy are in the recipe's directory. Commands have no network but what the recipe
        and `allow` name. A step that was done before on the same parent comes from the cache,
        unless `refresh`. BuildFailed names the step that failed.
        """
        request = BuildRequest(_absolute(file), name, allow=tuple(allow), refresh=refresh)
        return await (await self._here()).build(request, progress=progress)

    async def build(
        self,
        context: str | PathLike[str],
        *,
        file: str | PathLike[str] | None = None,
        name: str | None = None,
        build_args: Mapping[str, str] | None = None,
        allow: Sequence[str] = (),
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage:
        """Build an image from a Dockerfile, by default that of the directory `context`.

        FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR, USER, ENTRYPOINT and CMD are supported; anything
        else is InvalidRequest with its line. Commands have no network but what `allow` names.
        """
        directory = _absolute(context)
        request = BuildRequest(
            os.path.join(directory, "Dockerfile") if file is None else _absolute(file),
            name,
            context=directory,
            build_args=dict(build_args or {}),
            allow=tuple(allow),
            refresh=refresh,
        )
        return await (await self._here()).build(request, progress=progress)

    async def tag(self, name: str, new: str) -> ImageInfo:
        """Add a name to an image; a name that another image has is moved."""
        return await (await self.transport()).tag(name, new)

    async def remove(self, name: str) -> RemovedImage:
        """Remove a name, and the image with its last one. Conflict while a sandbox uses it."""
        return await (await self.transport()).remove(name)

    async def collect(self) -> CollectedImages:
        """Remove images without a name that no sandbox uses."""
        return await (await self.transport()).collect()

    async def usage(self) -> ImageUsage:
        """Return the disk usage of the store, and how much a collection would free."""
        return await (await self.transport()).usage()

    async def transport(self) -> ImagesPort:
        """Return the server of the images, opened on first use."""
        return (await connect(self._place)).images

    async def _here(self) -> ImagesPort:
        """Return the images of this machine, for operations that the HTTP API does not have.

        A daemon that serves the same data directory has the same store.
        """
        place = self._place
        return (await connect(replace(place, embedded=place.url is None))).images


def _absolute(path: str | PathLike[str]) -> str:
    """Return an absolute path: the server may have another working directory."""
    return os.path.abspath(path)
