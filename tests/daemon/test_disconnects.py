"""Clients that disconnect during large answers do not disturb the daemon."""

from __future__ import annotations

import asyncio
import socket
import struct

import aiohttp

from tests.daemon.process import ask, running

ASKED = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50
BROKEN = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n\0\0\0\r\n\r\n"


async def test_clients_that_disconnect_mid_response_cause_no_failures(tmp_path):
    async with running(tmp_path / "data") as daemon, aiohttp.ClientSession() as http:
        port = int(daemon.url.rpartition(":")[2])
        for n in range(24):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(BROKEN if n % 4 == 0 else ASKED)
            await writer.drain()
            await asyncio.sleep(0.1 * (n % 3))
            if n % 2:
                away = struct.pack("ii", 1, 0)
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, away)
            writer.close()
        status, found = await ask(http, "GET", f"{daemon.url}/healthz")
        assert (status, found["status"]) == (200, "ok")
        assert b"request.failed" not in daemon.said
        assert b"Traceback" not in daemon.said
