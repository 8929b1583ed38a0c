"""The dashboard: its page at `/` and the files of the page. They need no key and hold no data."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING

from sandkasten.errors import NotFound
from sandkasten_server.api.dashboard.dashboard_assets import (
    INDEX,
    Asset,
    absent_response,
    asset_response,
    read_assets,
)
from sandkasten_server.api.route import Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call


@lru_cache(maxsize=1)
def _assets() -> dict[str, Asset]:
    return read_assets()


async def page(call: Call) -> Response:
    asset = (await asyncio.to_thread(_assets)).get(INDEX)
    if asset is None:
        return absent_response()
    return asset_response(asset, call.connection.headers)


async def file(call: Call) -> Response:
    asset = (await asyncio.to_thread(_assets)).get(call.path("name"))
    if asset is None:
        raise NotFound("the dashboard has no such file", hint="open / again")
    return asset_response(asset, call.connection.headers)


ROUTES = (
    Route("GET", "/", page, "The dashboard", "system", scope=None, gives=("text/html",)),
    Route(
        "GET",
        "/dashboard/{name}",
        file,
        "A file of the dashboard",
        "system",
        scope=None,
        gives=("text/javascript", "text/css", "image/svg+xml", "text/html"),
        errors=(NotFound,),
    ),
)
