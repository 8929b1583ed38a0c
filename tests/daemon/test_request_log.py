"""The log of a daemon whose sandboxes hold hostile servers: one line for each request."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from sandkasten import AsyncSandbox
from tests.client.http.served import served
from tests.previews.conftest import listening

REQUESTS = 20
# Each answer ends in the middle: of a body with a length, of one in chunks, of a chunk's length.
SERVER = """
import itertools, socket
ANSWERS = [b"Content-Length: 100\\r\\n\\r\\nshort",
           b"Transfer-Encoding: chunked\\r\\n\\r\\n5\\r\\nab",
           b"Transfer-Encoding: chunked\\r\\n\\r\\n1\\r\\na\\r\\nno number\\r\\n"]
server = socket.create_server(("127.0.0.1", 8000))
for answer in itertools.cycle(ANSWERS):
    sock, _ = server.accept()
    if sock.recv(65536):
        sock.sendall(b"HTTP/1.1 200 OK\\r\\n" + answer)
    sock.close()
"""


async def cut_short(daemon):
    async with AsyncSandbox(**daemon.where) as box, aiohttp.ClientSession() as http:
        await listening(box, ["python3", "-c", SERVER], 8000)
        preview = (await box.url(8000, public=True)).rstrip("/")
        host = {"Host": preview.removeprefix("http://")}
        proxy = f"{daemon.url}/v1/sessions/{box.id}/ports/8000/"
        key = {"Authorization": f"Bearer {daemon.key}"}
        for url, headers in ((daemon.url, host), (proxy, key)):
            for _ in range(REQUESTS):
                with pytest.raises(aiohttp.ClientError):
                    async with http.get(url, headers=headers) as answer:
                        await answer.read()


@pytest.mark.promise("P78")
def test_a_server_that_cuts_its_answers_short_adds_one_line_for_each(tmp_path):
    with served(tmp_path / "data") as daemon:
        asyncio.run(cut_short(daemon))
    lines = [json.loads(one) for one in daemon.said]
    assert [one for one in lines if one["level"] == "error" or "trace" in one] == []
    cut = [one["route"] for one in lines if one.get("code") == "PROTOCOL_VIOLATION"]
    assert (cut.count("preview"), len(cut)) == (REQUESTS, 2 * REQUESTS)
