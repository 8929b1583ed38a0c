"""The process of `sandkasten mcp`: one transport, until the client leaves or a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from sandkasten.errors import InvalidRequest
from sandkasten.model.optional_extras import VERSION
from sandkasten_runtime.telemetry import json_log
from sandkasten_server.daemon.settings.http_settings import HttpSettings, require_key
from sandkasten_tools.mcp.mcp_http import mcp_over_http
from sandkasten_tools.mcp.mcp_server import OneCaller, mcp_server
from sandkasten_tools.mcp.mcp_stdio import serve_stdio
from sandkasten_tools.tool_provider import provide_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_tools.tool_provider import ProvidedTools, ToolOffer


log = logging.getLogger("sandkasten.mcp")


def serve(
    settings: Settings,
    offer: ToolOffer,
    transport: Literal["stdio", "http"],
    announce: Callable[[str], None],
    place: ServerAddress | None = None,
) -> None:
    """Serve until the client leaves (stdio) or a signal arrives.

    Over HTTP, `announce` receives one line with the address.
    """
    if transport == "http":
        require_key(settings.of(HttpSettings))
        if offer.session is not None:
            raise InvalidRequest(
                "--session requires --transport stdio: over HTTP each client has its own session",
                hint="leave --session out, or use --transport stdio",
                field="session",
            )
    json_log.configure(settings.of(HttpSettings).log_level)
    for warning in settings.warnings:
        log.warning("settings.unknown_variable", extra={"sandkasten": {"message": warning}})
    import uvloop

    opening = provide_tools(settings, offer, place)
    serving = (
        _stdio(opening)
        if transport == "stdio"
        else _http(opening, settings.of(HttpSettings), announce)
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_signal(serving))


async def _stdio(opening: AbstractAsyncContextManager[ProvidedTools]) -> None:
    async with opening as tools:
        caller = tools.open_caller()
        server = mcp_server(tools.shapes, OneCaller(caller), version=VERSION)
        try:
            await serve_stdio(server, caller.aclose)
        finally:
            # After a signal; twice is fine.
            await caller.aclose()


async def _http(
    opening: AbstractAsyncContextManager[ProvidedTools],
    rules: HttpSettings,
    announce: Callable[[str], None],
) -> None:
    async with (
        opening as tools,
        mcp_over_http(tools.shapes, tools.open_caller, rules, version=VERSION) as url,
    ):
        announce(f"sandkasten serves its tools at {url}")
        await asyncio.get_running_loop().create_future()


async def _until_signal(work: Coroutine[None, None, None]) -> None:
    """Cancel the work at the first signal, which destroys its sandboxes; exit at the second."""
    task = asyncio.create_task(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if stopped:
            os._exit(1)
        stopped = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await task
