"""A server of one handler on the loopback address, and a kubeconfig that leads to it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# An environment that is too large for a cluster has to pass.
_MOST_BYTES = 8 << 20
_BEARER = "Bearer "


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """Yield the URL. A request whose client is gone is cancelled."""
    app = web.Application(client_max_size=_MOST_BYTES)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix(_BEARER)


def kubeconfig(path: Path, url: str, who: str, namespace: str) -> str:
    """Write a file for a client whose token is its name; return its path."""
    context = {"cluster": "c", "user": "u", "namespace": namespace}
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": who}}],
    }
    path.write_text(json.dumps(content))
    return str(path)
