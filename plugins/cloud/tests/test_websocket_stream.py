"""The WebSocket to a gate, where code of a sandbox may answer in the gate's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from sandkasten.outgoing_http import new_http_session
from sandkasten_cloud import websocket_stream
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.promise("P115")


class HostileServer:
    """Sends clients elsewhere, and gives them a cookie for all of its names."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers.get("Cookie", "")))
        headers = {"Location": f"{self.url}/elsewhere", "Set-Cookie": "a=b; Path=/"}
        return web.Response(status=302, headers=headers)


@pytest.fixture
async def server() -> AsyncIterator[HostileServer]:
    hostile = HostileServer()
    app = web.Application()
    app.router.add_get("/{path:.*}", hostile.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    # A name, because cookies of addresses are never kept.
    hostile.url = f"http://localhost:{runner.addresses[0][1]}"
    yield hostile
    await runner.cleanup()


async def test_the_daemon_is_not_sent_elsewhere_and_carries_no_cookie_to_another_sandbox(server):
    async with new_http_session() as session:
        for path in ("/one", "/other"):
            with pytest.raises(websocket_stream.RefusedWebSocket, match="302"):
                await websocket_stream.connect(session, server.url + path, {}, PATIENCE_S)
    assert server.asked == [("/one", ""), ("/other", "")]
