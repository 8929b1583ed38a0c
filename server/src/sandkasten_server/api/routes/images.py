"""Images of the store. They are shared by all tenants.

Each tenant sees only its own sessions among those that use an image.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandkasten.errors import (
    BuildFailed,
    Busy,
    Conflict,
    ImageNotFound,
    InvalidImage,
    PolicyDenied,
    QuotaExceeded,
    RegistryUnavailable,
    SessionNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.ids import sandbox_id
from sandkasten.model.images.image_info import ImportRequest, KnownBuildRequest, PullRequest
from sandkasten.model.images.known_images import KNOWN_IMAGES, checked_known_image
from sandkasten.model.json_codec import to_json
from sandkasten_server.api.request.field_schemas import ImageName
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.sse import begun, event
from sandkasten_server.api.route import EVENTS, JSON, Answer, Body, Query, Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from starlette.responses import Response

    from sandkasten.model.images.image_info import ImageInfo, ImageProgress, OnProgress
    from sandkasten_server.api.request.http_call import Call

# Unread reports; the newest contain everything.
_KEPT_REPORTS = 64


class PullBody(Body):
    name: ImageName
    platform: str | None = None


class BuildBody(Body):
    name: ImageName
    refresh: bool = False


class TagBody(Body):
    name: ImageName
    new: ImageName


class ImportQuery(Query):
    name: ImageName | None = None
    platform: str | None = None


class Layer(Answer):
    id: str
    bytes: int
    files: int
    shared: int


class OneImage(Answer):
    id: str
    name: str | None
    names: list[str]
    bytes: int
    size_bytes: int
    architecture: str
    os: str
    variant: str
    created_at: float
    source: str
    layers: list[Layer]
    env: dict[str, str]
    used_by: list[str]


class BuiltOne(OneImage):
    cached: bool
    warnings: list[str]


class AllImages(Answer):
    images: list[OneImage]


class RemovedOne(Answer):
    ok: bool
    id: str
    names: list[str]
    deleted: bool
    freed_bytes: int


class Collected(Answer):
    ok: bool
    images: list[str]
    layers: list[str]
    freed_bytes: int


class ImageUsageAnswer(Answer):
    images: int
    layers: int
    bytes: int
    separate_bytes: int
    reclaimable_bytes: int


async def listed(call: Call) -> Response:
    images = await call.engine.images.list()
    return answer({"images": await _shown(call, images)})


async def inspected(call: Call) -> Response:
    return answer(await _one(call, await call.engine.images.inspect(call.path("name"))))


async def pull(call: Call) -> Response:
    body = await call.body(PullBody)

    async def pulled(progress: OnProgress | None) -> dict[str, object]:
        request = PullRequest(body.name, body.platform)
        return await _one(call, await call.engine.images.pull(request, progress=progress))

    return await _reported(call, pulled)


async def build(call: Call) -> Response:
    body = await call.body(BuildBody)

    async def built(progress: OnProgress | None) -> dict[str, object]:
        request = KnownBuildRequest(body.name, body.refresh)
        result = await call.engine.images.build_known(request, progress=progress)
        warnings = list(result.warnings)
        return {**await _one(call, result.image), "cached": result.cached, "warnings": warnings}

    checked_known_image(body.name)
    return await _reported(call, built)


async def _reported(
    call: Call, work: Callable[[OnProgress | None], Coroutine[Any, Any, dict[str, object]]]
) -> Response:
    if EVENTS in call.connection.headers.get("accept", ""):
        return await begun(_progress_of(work), call)
    return answer(await call.while_there(work(None)))


async def _progress_of(
    work: Callable[[OnProgress | None], Awaitable[dict[str, object]]],
) -> AsyncIterator[bytes]:
    """Yield progress reports; old ones are dropped if the client reads too slowly."""
    reports: asyncio.Queue[ImageProgress | None] = asyncio.Queue(_KEPT_REPORTS)

    def keep(report: ImageProgress | None) -> None:
        if reports.full():
            reports.get_nowait()
        reports.put_nowait(report)

    working = asyncio.ensure_future(work(keep))
    working.add_done_callback(lambda _: keep(None))
    try:
        while (report := await reports.get()) is not None:
            yield event("progress", to_json(report))
        yield event("done", await working)
    finally:
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working


async def import_archive(call: Call) -> Response:
    query = call.query(ImportQuery)
    images = await call.engine.images.import_stream(
        call.pieces(call.server.rules.max_upload_bytes),
        ImportRequest(query.name, query.platform),
    )
    return answer({"images": await _shown(call, images)}, 201)


async def tag(call: Call) -> Response:
    body = await call.body(TagBody)
    return answer(await _one(call, await call.engine.images.tag(body.name, body.new)))


async def remove(call: Call) -> Response:
    try:
        removed = await call.engine.images.remove(call.path("name"))
    except Conflict as exc:
        users = exc.details.get("sandboxes")
        own_sandboxes = await _mine(call, users if isinstance(users, list) else [])
        raise Conflict(
            "the image is in use by "
            + (", ".join(own_sandboxes[:5]) or "sessions of other tenants"),
            hint="destroy the sessions that run on it first",
            sandboxes=own_sandboxes,
        ) from exc
    return answer({"ok": True, **to_json(removed)})


async def collect(call: Call) -> Response:
    return answer({"ok": True, **to_json(await call.engine.images.collect())})


async def usage(call: Call) -> Response:
    return answer(to_json(await call.engine.images.usage()))


async def _shown(call: Call, images: Sequence[ImageInfo]) -> list[dict[str, object]]:
    return [await _one(call, image) for image in images]


async def _one(call: Call, image: ImageInfo) -> dict[str, object]:
    own_sandboxes = tuple(await _mine(call, image.used_by))
    fields = to_json(replace(image, used_by=own_sandboxes))
    fields["name"] = image.names[0] if image.names else None
    fields["size_bytes"] = image.bytes
    return fields


async def _mine(call: Call, ids: Sequence[str]) -> list[str]:
    own = []
    for the_id in ids:
        with suppress(SessionNotFound):
            if await call.engine.owner(sandbox_id(the_id)) == call.principal.tenant:
                own.append(the_id)
    return own


_TAG = "images"
_NONE = (InvalidImage, ImageNotFound, UnsupportedByBackend)
_ADDED = (*_NONE, QuotaExceeded, PolicyDenied)

ROUTES = (
    Route("GET", "/v1/images", listed, "List images", _TAG, answer=AllImages, errors=_NONE),
    Route(
        "GET", "/v1/images/usage", usage, "Disk usage of the image store", _TAG,
        answer=ImageUsageAnswer, errors=_NONE,
    ),
    Route(
        "POST", "/v1/images/pull", pull, "Pull an image from its registry", _TAG, "images",
        body=PullBody, answer=OneImage, gives=(JSON, EVENTS),
        errors=(*_ADDED, RegistryUnavailable),
        description="With `Accept: text/event-stream`: events `progress` {step, done, total}, "
        "then `done` with the image, or `error`. Leaving ends the pull; what has come stays.",
    ),
    Route(
        "POST", "/v1/images/build", build, "Build an image by its name", _TAG, "images",
        body=BuildBody, answer=BuiltOne, gives=(JSON, EVENTS), errors=(*_ADDED, BuildFailed),
        description=f"Names: {', '.join(f'`{name}`' for name in KNOWN_IMAGES)}. What was built "
        "before comes from the cache, unless `refresh` is true. It takes minutes: with "
        "`Accept: text/event-stream`, events `progress`, then `done` with the image, or `error`. "
        "Leaving ends the build.",
    ),
    Route(
        "POST", "/v1/images/import", import_archive, "Import an archive of images", _TAG, "images",
        query=ImportQuery, takes=("application/x-tar", "application/octet-stream"),
        reads_body=True, answer=AllImages, status=201, errors=_ADDED,
        description="What `docker save` writes, an OCI layout in a tar, or the tar of a root "
        "file system; tars may be compressed. `name` is what it is to be called.",
    ),
    Route(
        "POST", "/v1/images/tag", tag, "Add a name to an image", _TAG, "images",
        body=TagBody, answer=OneImage, errors=_NONE,
    ),
    Route(
        "POST", "/v1/images/collect", collect, "Remove unused images and layers", _TAG, "images",
        answer=Collected, errors=(*_NONE, Busy),
    ),
    Route(
        "GET", "/v1/images/{name:path}", inspected, "Describe an image", _TAG,
        answer=OneImage, errors=_NONE,
        description="By name or id. One named `usage` is found as `docker.io/library/usage`.",
    ),
    Route(
        "DELETE", "/v1/images/{name:path}", remove, "Remove a name of an image",
        _TAG, "images", answer=RemovedOne, errors=(*_NONE, Conflict),
    ),
)  # fmt: skip
