"""The tools outside any run of ours: for an MCP client, or for a program that has agents itself.

A daemon that is named carries them out; otherwise an engine on the data directory does, in this
process. Whatever stands in the way is an error before the first client is heard.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from sandkasten.agents.definitions.sandbox_request import SandboxWish
from sandkasten.agents.tools.client_caller import ClientCaller, specs
from sandkasten.agents.tools.toolbox import Toolbox
from sandkasten.daemon.compose import open_engine
from sandkasten.daemon.settings.http_settings import require_key
from sandkasten.daemon.transient_file_store import BriefFiles
from sandkasten.engine.storage.stage_publish import Filing
from sandkasten.errors import BackendUnavailable, InvalidRequest
from sandkasten.model.runs.session_key import SessionKey
from sandkasten.model.spelling import shown
from sandkasten.telemetry import json_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.agents.tools.adapter_protocols import Caller as Caller
    from sandkasten.agents.tools.adapter_protocols import Shape
    from sandkasten.agents.tools.client_caller import ToolMode
    from sandkasten.client.server.server_pool import Place
    from sandkasten.daemon.settings.http_settings import HttpSettings
    from sandkasten.daemon.settings.resolver import Settings

Transport = Literal["stdio", "http"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Which tools, and what their sandboxes are made of."""

    mode: ToolMode = "all"
    image: str | None = None
    runtime: str | None = None
    session: str | None = None
    """Sandboxes that stay when the client leaves, for the next one that says the same name."""


@dataclass(frozen=True, slots=True)
class Tools:
    shapes: Sequence[Shape]
    caller: Callable[[], Caller]
    """One for each client."""


def open_tools(
    settings: Settings, offer: Offer, place: Place | None = None
) -> AbstractAsyncContextManager[Tools]:
    if offer.session is not None:
        _check_session(offer.session)
    if place is None or place.url is None:
        return _tools_here(settings, offer)
    return _tools_there(place, offer)


def _check_session(name: str) -> None:
    try:
        SessionKey("agent", name)
    except InvalidRequest as exc:
        raise InvalidRequest(
            f"no session can be named {shown(name)}",
            hint="1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            field="session",
        ) from exc


@asynccontextmanager
async def _tools_there(place: Place, offer: Offer) -> AsyncIterator[Tools]:
    from sandkasten.client.server.agents_transport import agents_of
    from sandkasten.client.server.server_pool import open_transport
    from sandkasten.mcp.remote_caller import RemoteCaller, described

    async with agents_of(place) as agents, aclosing(await open_transport(place)) as sandboxes:
        shapes = await described(agents, offer.mode)

        def caller() -> Caller:
            return RemoteCaller(
                agents,
                sandboxes,
                shapes,
                session=offer.session,
                image=offer.image,
                runtime=offer.runtime,
            )

        yield Tools(shapes, caller)


@asynccontextmanager
async def _tools_here(settings: Settings, offer: Offer) -> AsyncIterator[Tools]:
    engine = await open_engine(settings)
    try:
        toolbox = Toolbox(engine, Filing(engine.files, BriefFiles(settings)))
        wish = SandboxWish(runtime=offer.runtime, image=offer.image)

        def caller() -> Caller:
            return ClientCaller(toolbox, offer.mode, wish, session=offer.session)

        yield Tools(specs(toolbox, offer.mode), caller)
    finally:
        await engine.aclose()


def serve_mcp(
    settings: Settings,
    offer: Offer,
    transport: Transport,
    said: Callable[[str], None],
    place: Place | None = None,
) -> None:
    """Until the client leaves (stdio) or a signal comes. `said` hears where it can be reached."""
    if transport == "http":
        require_key(settings.http)
        if offer.session is not None:
            raise InvalidRequest(
                "over HTTP each client has a session of its own, and --session names one for all",
                hint="leave --session out, or use --transport stdio",
                field="session",
            )
    _require_mcp()
    json_log.configure(settings.http.log_level)
    import uvloop

    opening = open_tools(settings, offer, place)
    serving = _stdio(opening) if transport == "stdio" else _http(opening, settings.http, said)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_told(serving))


async def _stdio(opening: AbstractAsyncContextManager[Tools]) -> None:
    from sandkasten.mcp.mcp_server import OneCaller, mcp_server
    from sandkasten.mcp.mcp_stdio import serve_stdio

    async with opening as tools:
        caller = tools.caller()
        server = mcp_server(tools.shapes, OneCaller(caller), version=version("sandkasten"))
        try:
            await serve_stdio(server)
        finally:
            await caller.aclose()


async def _http(
    opening: AbstractAsyncContextManager[Tools], rules: HttpSettings, said: Callable[[str], None]
) -> None:
    from sandkasten.mcp.mcp_http import mcp_over_http

    async with (
        opening as tools,
        mcp_over_http(tools.shapes, tools.caller, rules, version=version("sandkasten")) as url,
    ):
        said(f"sandkasten serves its tools at {url}")
        await asyncio.get_running_loop().create_future()


async def _until_told(work: Coroutine[None, None, None]) -> None:
    """A first signal ends the work, with its sandboxes; a second one ends the process."""
    task = asyncio.create_task(work)
    stopped = False

    def told() -> None:
        nonlocal stopped
        if stopped:
            os._exit(1)
        stopped = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    with suppress(asyncio.CancelledError):
        await task


def _require_mcp() -> None:
    try:
        import sandkasten.mcp.mcp_server  # noqa: F401  (only to know that it can be)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "sandkasten":
            raise
        raise BackendUnavailable(
            f"the MCP server is not installed (no module named {exc.name})",
            hint="pip install 'sandkasten[mcp]'",
        ) from exc
