"""Keys in the subprotocols of a WebSocket, as pages send them."""

from __future__ import annotations

import base64

import aiohttp
import pytest

from sandkasten_server.api.request.socket_protocols import with_credentials
from tests.client.http.served import KEY, served


def offered(key: str) -> list[str]:
    encoded = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    return ["sandkasten", f"sandkasten.bearer.{encoded}"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    # Not in a test with a loop, which it would block.
    with served(tmp_path_factory.mktemp("protocols") / "data") as one:
        yield one


async def test_a_page_opens_terminals_and_tunnels_with_a_key_and_nothing_else(daemon):
    async with aiohttp.ClientSession(daemon.url) as http:
        key = {"Authorization": f"Bearer {KEY}"}
        async with http.post("/v1/sessions", json={}, headers=key) as answer:
            session = f"/v1/sessions/{(await answer.json())['id']}"
        async with http.ws_connect(f"{session}/pty", protocols=offered(KEY)) as socket:
            # A page fails if the daemon chooses none, and must not see the key again.
            assert socket.protocol == "sandkasten"
            assert (await socket.receive_json())["type"] == "started"
        for path, protocols in (
            (f"{session}/pty", offered("sk-wrong")),
            (f"{session}/pty", ["sandkasten"]),
            (f"{session}/tunnels/80", ["sandkasten"]),
            # The proxy passes subprotocols on to the server inside.
            (f"{session}/ports/80/", offered(KEY)),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await http.ws_connect(path, protocols=protocols)
            assert refused.value.status == 401, path
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(f"{session}/tunnels/1", protocols=offered(KEY))
        # Admitted, and nothing listens there.
        assert refused.value.status == 502


@pytest.mark.parametrize(
    ("protocols", "credentials"),
    [
        ("sandkasten, sandkasten.bearer.YWI", {"authorization": "Bearer ab"}),
        ("sandkasten.tenant.dGVu, sandkasten", {"x-sandkasten-tenant": "ten"}),
        ("sandkasten.bearer.%%", {"authorization": "Bearer "}),
        ("sandkasten.bearer.w6Q", {"authorization": "Bearer "}),
        ("graphql-ws", {}),
        ("sandkasten.bearer." + "A" * 20_000, {}),
    ],
)
def test_subprotocols_stand_for_headers(protocols, credentials):
    headers = {"sec-websocket-protocol": protocols}
    assert with_credentials(headers) == {**headers, **credentials}


def test_a_header_wins_over_a_subprotocol():
    headers = {"sec-websocket-protocol": "sandkasten.bearer.YWI", "authorization": "Bearer x"}
    assert with_credentials(headers) == headers
