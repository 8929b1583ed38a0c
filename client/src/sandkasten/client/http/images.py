"""Images of a daemon. Archives are sent over the connection; paths are the caller's own.

What a daemon has no route for is UnsupportedByBackend, with the command to run on its machine.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sandkasten.client.http import image_json as mapping
from sandkasten.client.http.connection import HttpRequest, reading
from sandkasten.client.http.error_responses import body_error
from sandkasten.client.http.event_streams import events, parsed
from sandkasten.client.http.json_values import given
from sandkasten.client.transfer.transfer import blocks_of
from sandkasten.errors import (
    BackendUnavailable,
    FileTrouble,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.images.image_info import ImageProgress
from sandkasten.model.json_codec import to_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten.client.http.connection import Connection
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
    from sandkasten.model.json_codec import Json

_ALL = "/v1/images"


class HttpImages:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> Sequence[ImageInfo]:
        return mapping.images_of(await self._get(_ALL))

    async def inspect(self, name: str) -> ImageInfo:
        return mapping.image_of(await self._get(_path(name)))

    async def import_archive(
        self, path: str, request: ImportRequest, *, progress: OnProgress | None = None
    ) -> Sequence[ImageInfo]:
        try:
            with await asyncio.to_thread(Path(path).open, "rb") as file:
                total = os.fstat(file.fileno()).st_size
                order = HttpRequest(
                    "POST",
                    f"{_ALL}/import",
                    query=given(**to_json(request)),
                    data=_told(blocks_of(file), total, progress),
                    headers={"Content-Type": "application/x-tar"},
                    answer_s=None,
                )
                return mapping.images_of(await self._connection.ask(order))
        except SandkastenError:
            raise
        except OSError as exc:
            hint = "check that the file exists and is readable"
            if isinstance(exc, IsADirectoryError):
                hint = "only a file can be sent to a daemon; pack a directory as a tar first"
            raise FileTrouble(f"reading {path} failed: {exc.strerror or exc}", hint=hint) from exc

    async def export(
        self, request: ExportRequest, *, progress: OnProgress | None = None
    ) -> Exported:
        raise _only_there("export images", "sandkasten --embedded image export")

    async def pull(self, request: PullRequest, *, progress: OnProgress | None = None) -> ImageInfo:
        return mapping.image_of(await self._followed("pull", "pulled", to_json(request), progress))

    async def build_known(
        self, request: KnownBuildRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage:
        return mapping.built_of(await self._followed("build", "built", to_json(request), progress))

    async def _followed(self, verb: str, past: str, body: Json, progress: OnProgress | None) -> Any:
        """Ask for work that takes minutes, and return what its last event has."""
        what = f"{body['name']} was {past}"
        order = HttpRequest(
            "POST",
            f"{_ALL}/{verb}",
            given(**body),
            headers={"Accept": "text/event-stream"},
            # What has come stays, so that asking again goes on.
            repeatable=True,
            answer_s=None,
        )
        async with reading(self._connection, what), self._connection.stream(order) as answer:
            async for event in events(answer):
                if event.name == "progress" and progress is not None:
                    progress(mapping.progress_of(parsed(event)))
                elif event.name == "done":
                    return parsed(event)
                elif event.name == "error":
                    raise body_error(parsed(event))
        raise BackendUnavailable(
            f"the connection was lost while {what}", hint="ask again: what has come is kept"
        )

    async def build_debian(
        self, request: BootstrapRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage:
        raise _only_there("build images", "sandkasten --embedded image build")

    async def build(
        self, request: BuildRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage:
        raise _only_there("build images", "sandkasten --embedded image build")

    async def tag(self, name: str, new: str) -> ImageInfo:
        order = HttpRequest("POST", f"{_ALL}/tag", {"name": name, "new": new}, repeatable=True)
        return mapping.image_of(await self._connection.ask(order))

    async def remove(self, name: str) -> RemovedImage:
        return mapping.removed_of(await self._connection.ask(HttpRequest("DELETE", _path(name))))

    async def collect(self) -> CollectedImages:
        order = HttpRequest("POST", f"{_ALL}/collect", {}, answer_s=600.0)
        return mapping.collected_of(await self._connection.ask(order))

    async def usage(self) -> ImageUsage:
        return mapping.usage_of(await self._get(f"{_ALL}/usage"))

    async def _get(self, path: str) -> Any:
        return await self._connection.ask(HttpRequest("GET", path, repeatable=True))


def _path(name: str) -> str:
    return f"{_ALL}/{quote(name, safe='')}"


async def _told(
    blocks: AsyncIterator[bytes], total: int, progress: OnProgress | None
) -> AsyncIterator[bytes]:
    moved = 0
    async for block in blocks:
        yield block
        moved += len(block)
        if progress is not None:
            progress(ImageProgress("upload", moved, total))


def _only_there(what: str, how: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"a daemon does not {what} over HTTP", hint=f"on its machine: {how}"
    )
