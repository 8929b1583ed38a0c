"""A daemon in this process: the real app behind the real HTTP server, on a loopback port."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import aiohttp
import uvicorn

from sandkasten_agents.lazy_agents import LazyAgents
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.http_app import App
from sandkasten_server.api.request.authentication import Doorkeeper
from sandkasten_server.api.routes.route_table import route_table
from sandkasten_server.api.server_context import DaemonFacts, Server, Stores
from sandkasten_server.daemon.http.http_protocol import guarded
from sandkasten_server.daemon.http.websocket_protocol import guarded_websocket
from sandkasten_tools.lazy_tools import LazyTools
from tests.api.openapi_check import check
from tests.api.streamed_routes import CountedStreams
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_server.api.route import Route


@dataclass(slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """By any spelling."""
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


@dataclass(slots=True)
class Daemon:
    server: Server
    port: int
    http: aiohttp.ClientSession
    streams: CountedStreams

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, method: str, path: str, body: object = None, **more: Any) -> Reply:
        """Send a request; `body` is sent as JSON, other options are those of aiohttp."""
        if body is not None:
            more["json"] = body
        async with self.http.request(method, self.url + path, **more) as found:
            raw = await found.read()
            check(method, path, found.status, found.headers.get("content-type", ""), raw)
            return Reply(found.status, found.headers, raw)

    async def session(self, **body: object) -> str:
        reply = await self.ask("POST", "/v1/sessions", body)
        assert reply.status == 201, reply.raw
        return str(reply.json["id"])


class OpenAgents:
    """Agents that are open already."""

    def __init__(self, agents: object) -> None:
        self._agents = agents

    async def open(self) -> object:
        return self._agents


def _taken(parts: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Remove the parts that are fields of a class, and return them."""
    return {field.name: parts.pop(field.name) for field in fields(kind) if field.name in parts}


@asynccontextmanager
async def serving(
    engine: Engine, *, more: Sequence[Route] = (), **parts: Any
) -> AsyncIterator[Daemon]:
    """Serve a daemon, with `more` routes; `parts` replace fields of `Server` and of what it has.

    `agents` are those that the routes of agents find.
    """
    clock = SystemClock()
    if "agents" in parts:
        agents = OpenAgents(parts.pop("agents"))
        parts["services"] = {LazyAgents: agents, LazyTools: agents}
    parts.setdefault("doorkeeper", Doorkeeper(clock=clock, open_loopback=True))
    stores = Stores(**_taken(parts, Stores))
    facts = DaemonFacts(**_taken(parts, DaemonFacts))
    server = Server(engine=engine, clock=clock, stores=stores, facts=facts, **parts)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    streams = CountedStreams(App(server, (*route_table().routes, *more)))
    config = uvicorn.Config(
        streams,
        log_config=None,
        lifespan="off",
        ws=guarded_websocket(server.rules),
        ws_per_message_deflate=False,
        server_header=False,
        http=guarded(server.rules),
        access_log=False,
        # The daemon's default. The first check of a response reads the whole specification in this
        # loop, which takes longer than uvicorn's 5 s on a busy machine.
        timeout_keep_alive=75,
    )
    running = uvicorn.Server(config)
    running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    # Without its main loop, which looks only ten times a second whether it should end.
    config.load()
    running.lifespan = config.lifespan_class(config)
    await running.startup(sockets=[listener])
    await running.on_tick(0)
    try:
        async with aiohttp.ClientSession() as http:
            yield Daemon(server, listener.getsockname()[1], http, streams)
        await asyncio.sleep(0)
        assert not streams.unlisted, f"add to tests/api/streamed_routes.py: {streams.unlisted}"
    finally:
        await asyncio.wait_for(running.shutdown(sockets=[listener]), PATIENCE_S)
