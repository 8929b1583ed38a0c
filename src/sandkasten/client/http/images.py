"""Images of a daemon. Archives travel through the connection; paths are the caller's own.

What a daemon has no route for is UnsupportedByBackend, with the command to say on its machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sandkasten.client.http import mapping_images as mapping
from sandkasten.client.http.connection import Order, reading
from sandkasten.client.http.values import given
from sandkasten.client.transfer import CHUNK, blocks_of
from sandkasten.errors import FileTrouble, UnsupportedByBackend
from sandkasten.model.images import Exported, ImageProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from sandkasten.client.http.connection import Connection
    from sandkasten.model.images import (
        ArchiveFormat,
        BuiltImage,
        CollectedImages,
        ImageInfo,
        ImageUsage,
        RemovedImage,
    )

    Progress = Callable[[ImageProgress], None]

_ALL = "/v1/images"


class HttpImages:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> Sequence[ImageInfo]:
        return mapping.images_of(await self._get(_ALL))

    async def inspect(self, name: str) -> ImageInfo:
        return mapping.image_of(await self._get(_path(name)))

    async def import_archive(
        self,
        path: str,
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Progress | None = None,
    ) -> Sequence[ImageInfo]:
        query = given(name=name, platform=platform)
        try:
            with await asyncio.to_thread(Path(path).open, "rb") as file:
                total = os.fstat(file.fileno()).st_size
                order = Order(
                    "POST",
                    f"{_ALL}/import",
                    query=query,
                    data=_told(blocks_of(file), total, progress),
                    headers={"Content-Type": "application/x-tar"},
                    answer_s=None,
                )
                return mapping.images_of(await self._connection.ask(order))
        except OSError as exc:
            raise FileTrouble(
                f"reading {path} failed: {exc.strerror or exc}",
                hint="only a file can be sent to a daemon; pack a directory as a tar first",
            ) from exc

    async def export(
        self,
        name: str,
        path: str,
        *,
        format: ArchiveFormat = "docker",
        progress: Progress | None = None,
    ) -> Exported:
        order = Order(
            "GET",
            f"{_path(name)}/export",
            query={"format": format},
            repeatable=True,
            answer_s=None,
        )
        digest, moved = hashlib.sha256(), 0
        partial = Path(f"{path}.{os.urandom(4).hex()}.part")
        try:
            with await asyncio.to_thread(partial.open, "xb") as file:
                async with (
                    reading(self._connection, f"{name} was exported"),
                    self._connection.stream(order) as answer,
                ):
                    while piece := await answer.content.read(CHUNK):
                        await asyncio.to_thread(file.write, piece)
                        digest.update(piece)
                        moved += len(piece)
                        if progress is not None:
                            progress(ImageProgress("export", moved))
            await asyncio.to_thread(partial.replace, path)
        except OSError as exc:
            raise FileTrouble(
                f"writing {path} failed: {exc.strerror or exc}",
                hint="look at the free space and the permissions there",
            ) from exc
        finally:
            with suppress(OSError):
                await asyncio.to_thread(partial.unlink, missing_ok=True)
        return Exported(path, moved, f"sha256:{digest.hexdigest()}")

    async def pull(
        self, name: str, *, platform: str | None = None, progress: Progress | None = None
    ) -> ImageInfo:
        order = Order("POST", f"{_ALL}/pull", given(name=name, platform=platform), answer_s=None)
        return mapping.image_of(await self._connection.ask(order))

    async def build_debian(
        self,
        name: str,
        suite: str,
        *,
        include: Sequence[str] = (),
        variant: str = "minbase",
        mirror: str | None = None,
        refresh: bool = False,
        progress: Progress | None = None,
    ) -> BuiltImage:
        raise _only_there("build images", "sandkasten --embedded image build")

    async def build_steps(
        self, name: str, file: str, *, refresh: bool = False, progress: Progress | None = None
    ) -> BuiltImage:
        raise _only_there("build images", "sandkasten --embedded image build")

    async def tag(self, name: str, new: str) -> ImageInfo:
        order = Order("POST", f"{_path(name)}/tag", {"name": new}, repeatable=True)
        return mapping.image_of(await self._connection.ask(order))

    async def remove(self, name: str) -> RemovedImage:
        return mapping.removed_of(await self._connection.ask(Order("DELETE", _path(name))))

    async def collect(self) -> CollectedImages:
        order = Order("POST", f"{_ALL}/gc", {}, answer_s=600.0)
        return mapping.collected_of(await self._connection.ask(order))

    async def usage(self) -> ImageUsage:
        return mapping.usage_of(await self._get(f"{_ALL}/usage"))

    async def _get(self, path: str) -> Any:
        return await self._connection.ask(Order("GET", path, repeatable=True))


def _path(name: str) -> str:
    return f"{_ALL}/{quote(name, safe='')}"


async def _told(
    blocks: AsyncIterator[bytes], total: int, progress: Progress | None
) -> AsyncIterator[bytes]:
    moved = 0
    async for block in blocks:
        yield block
        moved += len(block)
        if progress is not None:
            progress(ImageProgress("upload", moved, total))


def _only_there(what: str, how: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"a daemon cannot {what} for somebody elsewhere", hint=f"on its machine: {how}"
    )
