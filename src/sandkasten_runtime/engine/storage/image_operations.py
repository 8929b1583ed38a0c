"""Image operations of the engine, and which sandboxes use which image.

The users of an image are read from the ledger, whose row is written before a sandbox is made. A
removal reads it twice: first to refuse, and again after the image can no longer be found. A sandbox
that began in between is in the ledger by then, or finds its image gone and gives up.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import Busy, Conflict, UnsupportedByBackend
from sandkasten.model.images.image_info import BootstrapRequest, BuildRequest
from sandkasten.model.images.known_images import checked_known_image

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterable

    from sandkasten.model.images.image_info import (
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
    from sandkasten.ports import ImageLibrary, Store, Workbench


class EngineImages:
    """All operations on images. Raise UnsupportedByBackend if the engine has no image library."""

    def __init__(self, library: ImageLibrary | None, store: Store, bench: Workbench) -> None:
        self._library = library
        self._bench = bench
        self._building = asyncio.Lock()
        self._store = store

    async def list(self) -> builtins.list[ImageInfo]:
        users = await self._users()
        return [_used(image, users) for image in await self.library.list()]

    async def inspect(self, name: str) -> ImageInfo:
        return _used(await self.library.inspect(name), await self._users())

    async def import_archive(
        self, path: str, request: ImportRequest, *, progress: OnProgress | None = None
    ) -> builtins.list[ImageInfo]:
        images = await self.library.import_archive(path, request, progress=progress)
        users = await self._users()
        return [_used(image, users) for image in images]

    async def import_stream(
        self, data: AsyncIterable[bytes], request: ImportRequest
    ) -> builtins.list[ImageInfo]:
        """Import an archive from a stream, through a scratch file of the store."""
        images = await self.library.import_stream(data, request)
        users = await self._users()
        return [_used(image, users) for image in images]

    async def export(
        self, request: ExportRequest, *, progress: OnProgress | None = None
    ) -> Exported:
        return await self.library.export(request, progress=progress)

    async def pull(self, request: PullRequest, *, progress: OnProgress | None = None) -> ImageInfo:
        """Pull an image from its registry. Only missing layers are fetched."""
        pulled = await self.library.pull(request, progress=progress)
        return _used(pulled, await self._users())

    async def build_debian(
        self, request: BootstrapRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage:
        """Build an image from Debian packages. The same request again is served from the cache."""
        return await self.library.build_debian(request, progress=progress)

    async def build(
        self, request: BuildRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage:
        """Build an image by the steps of a file; only what changed is done again."""
        return await self.library.build(request, bench=self._bench, progress=progress)

    async def build_known(
        self, request: KnownBuildRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage:
        """Build an image whose definition is ours, such as `datascience`. Raise InvalidRequest if
        no definition has that name. One is built at a time: each fills a processor and the network.
        """
        image, refresh = checked_known_image(request.name), request.refresh
        definition = await self.library.known(image)
        steps = definition.steps()
        if definition.commands:
            # The bootstrap before them takes minutes.
            await self._bench.check()
        base = f"{image}-debian" if steps else image
        async with self._building:
            debian = BootstrapRequest(base, definition.suite, definition.packages, refresh=refresh)
            built = await self.build_debian(debian, progress=progress)
            if not steps:
                return built
            recipe = {"base": base, "steps": steps}
            return await self.build(
                BuildRequest("", image, refresh=refresh, recipe=recipe), progress=progress
            )

    async def tag(self, name: str, new: str) -> ImageInfo:
        return _used(await self.library.tag(name, new), await self._users())

    async def remove(self, name: str) -> RemovedImage:
        """Remove a name, and the image with its last name. Raise Conflict with the sandboxes that
        use it.
        """
        users = await self._users()
        try:
            removed = await self.library.remove(name, in_use=users.keys())
        except Conflict as exc:
            sandboxes = users.get(str(exc.details.get("image")), [])
            raise Conflict(
                f"image {name} is in use by {', '.join(sandboxes[:5])}"
                + (f" and {len(sandboxes) - 5} more" if len(sandboxes) > 5 else ""),
                hint="destroy them first (sandkasten rm)",
                image=str(exc.details.get("image")),
                sandboxes=sandboxes,
            ) from exc
        freed = 0
        if removed.deleted:
            # Another process is adding an image: the next collection frees the space.
            with suppress(Busy):
                users = await self._users()
                freed = (await self.library.collect(in_use=users.keys(), wait_s=0)).freed_bytes
        return replace(removed, freed_bytes=freed)

    async def collect(self) -> CollectedImages:
        """Remove what no name refers to and no sandbox uses."""
        return await self.library.collect(in_use=(await self._users()).keys())

    async def usage(self) -> ImageUsage:
        return await self.library.usage(in_use=(await self._users()).keys())

    @property
    def library(self) -> ImageLibrary:
        if self._library is None:
            raise UnsupportedByBackend(
                "this engine has no image store", hint="open the engine with a data directory"
            )
        return self._library

    async def _users(self) -> dict[str, builtins.list[str]]:
        """Return image ids with the sandboxes that use them or are about to."""
        users: dict[str, builtins.list[str]] = {}
        for record in await self._store.list():
            if record.image_id:
                users.setdefault(record.image_id, []).append(record.id)
        return users


def _used(image: ImageInfo, users: dict[str, list[str]]) -> ImageInfo:
    return replace(image, used_by=tuple(users.get(image.id, ())))
