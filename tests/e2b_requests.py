"""Requests of E2B's protocol, sent to a daemon in this process."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten_e2b.connect_codec import STREAM, Envelopes, envelope
from sandkasten_e2b.envd_tokens import EnvdTokens
from sandkasten_runtime.assembly.engine_assembly import open_engine
from tests.api.daemon_with_database import OPERATOR, new_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.api.daemon_in_process import Daemon

TOKENS = EnvdTokens(b"k" * 32)
ABSENT = "sbx_0000000000000000"


@dataclass(slots=True)
class E2b:
    daemon: Daemon
    key: str = OPERATOR

    async def ask(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        """Send a request to the control plane; return the status and the parsed body."""
        headers = {"X-API-KEY": self.key, **more.pop("headers", {})}
        url = f"{self.daemon.url}/e2b{path}"
        async with self.daemon.http.request(
            method, url, json=body, headers=headers, **more
        ) as found:
            raw = await found.read()
            return found.status, json.loads(raw) if raw else None

    async def create(self, **body: object) -> str:
        status, made = await self.ask("POST", "/sandboxes", {"templateID": "base", **body})
        assert status == 201, made
        assert made["envdAccessToken"] == TOKENS.token(made["sandboxID"])
        return str(made["sandboxID"])

    async def send(self, box: str, path: str, data: Any, **headers: str) -> Any:
        """Send a request to a sandbox; return the status and the bytes."""
        sent = {"E2b-Sandbox-Id": box, "X-Access-Token": TOKENS.token(box), **headers}
        url = f"{self.daemon.url}/e2b{path}"
        while True:
            # An answer that comes before the whole body was read may be lost in a reset.
            with suppress(aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                async with self.daemon.http.post(url, data=data, headers=sent) as found:
                    return found.status, await found.read()

    async def send_get(self, box: str, path: str) -> tuple[int, bytes]:
        sent = {"E2b-Sandbox-Id": box, "X-Access-Token": TOKENS.token(box)}
        async with self.daemon.http.get(f"{self.daemon.url}/e2b{path}", headers=sent) as found:
            return found.status, await found.read()

    async def upload(self, box: str, path: str, *parts: tuple[str, str | None]) -> Any:
        """Send a form, with the names of files as the SDKs write them."""
        data = b""
        for name, filename in parts:
            named = "" if filename is None else f'; filename="{filename}"'
            head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
            data += head.encode() + b"content\r\n"
        kind = {"Content-Type": "multipart/form-data; boundary=edge"}
        return await self.send(box, path, data + b"--edge--\r\n", **kind)

    async def call(self, box: str, path: str, body: object, **headers: str) -> Any:
        headers = {"Content-Type": "application/json", **headers}
        status, raw = await self.send(box, path, json.dumps(body).encode(), **headers)
        return status, json.loads(raw)

    async def stream(self, box: str, path: str, body: object, **headers: str) -> list[Any]:
        headers = {"Content-Type": STREAM, **headers}
        status, raw = await self.send(box, path, envelope(body), **headers)
        assert status == 200, raw
        # The end has a flag of its own, which the reader of requests leaves out.
        last = raw.rindex(b"\x02\0\0")
        return [
            *(json.loads(one) for one in Envelopes(1 << 20).feed(raw[:last])),
            json.loads(raw[last + 5 :]),
        ]


@asynccontextmanager
async def engine_at(place: Any) -> AsyncIterator[Any]:
    one = await open_engine(settings(ServerAddress(str(place / "data"), "unisolated")))
    try:
        yield one
    finally:
        for info in await one.list(all=True):
            await one.destroy(info.id)
        await one.aclose()


async def another(e2b: E2b) -> E2b:
    headers = await new_key(e2b.daemon, tenant="acme", name="other")
    return E2b(e2b.daemon, headers["Authorization"].removeprefix("Bearer "))
