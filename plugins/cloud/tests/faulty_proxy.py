"""A proxy before a provider's API that answers wrongly on request, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import aiohttp
from aiohttp import web

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["answer", "cut", "hang", "hold", "shift"]
_PASSED = ("content-type", "x-next-token")


@dataclass(slots=True)
class Fault:
    """What happens to requests that match: `answer` them here, pass them on and `cut` the answer or
    `hang` without one, `hold` them before they are passed on, or `shift` the years in the answer.
    """

    method: str
    path: str
    kind: Kind
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    """Of an `answer`; None: an error in the form of E2B."""
    times: int = 1_000_000
    hit: threading.Event = field(default_factory=threading.Event)
    """Set when the first request has come, and was passed on if it is to be."""
    release: threading.Event = field(default_factory=threading.Event)
    """Ends the wait of those that hang or are held."""


@dataclass(slots=True)
class FaultyProxy:
    target: str
    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def fault(self, method: str, path: str, kind: Kind, status: int = 500, **more: object) -> Fault:
        fault = Fault(method, path, kind, status, **more)  # type: ignore[arg-type]
        self.faults.append(fault)
        return fault

    def clear(self) -> None:
        for fault in self.faults:
            fault.release.set()
        self.faults.clear()

    def requests(self, method: str, path: str) -> list[dict[str, str]]:
        """Return the headers of the requests that came."""
        return [head for verb, at, head in self.seen if verb == method and re.search(path, at)]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        head = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.method, request.path, head))
        body = await request.read()
        fault = next(
            (candidate for candidate in self.faults if self._matches(candidate, request)), None
        )
        if fault is not None:
            fault.times -= 1
            if fault.kind == "answer":
                fault.hit.set()
                fault_body = json.dumps({"code": fault.status, "message": "a fault of the test"})
                return web.json_response(
                    text=fault_body if fault.body is None else fault.body,
                    status=fault.status,
                    headers=fault.headers,
                )
            if fault.kind == "hold":
                fault.hit.set()
                await asyncio.to_thread(fault.release.wait, PATIENCE_S)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "content-length", "connection")
        }
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, f"{self.target}{request.path_qs}", data=body, headers=headers
            ) as answer,
        ):
            data = await answer.read()
            passed = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
        if fault is not None:
            fault.hit.set()
            if fault.kind == "hang":
                await asyncio.to_thread(fault.release.wait, PATIENCE_S)
            if fault.kind == "cut":
                return await _cut(request, data)
            if fault.kind == "shift":
                data = re.sub(rb'"20\d\d-', b'"2001-', data)
        return web.Response(status=answer.status, body=data, headers=passed)

    def _matches(self, fault: Fault, request: web.Request) -> bool:
        matches = fault.method == request.method and re.search(fault.path, request.path)
        return bool(matches) and fault.times > 0


async def _cut(request: web.Request, data: bytes) -> web.StreamResponse:
    """Send half of an answer, and end the connection."""
    half = web.StreamResponse(headers={"Content-Type": "application/json"})
    half.content_length = len(data)
    await half.prepare(request)
    await half.write(data[: len(data) // 2])
    assert request.transport is not None
    request.transport.abort()
    return half


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    proxy, ready, loop = FaultyProxy(target), threading.Event(), asyncio.new_event_loop()
    ending = asyncio.Event()

    async def run() -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{rest:.*}", proxy.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        proxy.url = f"http://{host}:{port}"
        ready.set()
        await ending.wait()
        await runner.cleanup()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    ready.wait(PATIENCE_S)
    try:
        yield proxy
    finally:
        proxy.clear()
        loop.call_soon_threadsafe(ending.set)
        thread.join(PATIENCE_S)
        loop.close()
