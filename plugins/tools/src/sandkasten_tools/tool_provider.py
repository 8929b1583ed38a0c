"""The tools outside an agent run: for an MCP client, or for a program with its own agents.

A remote daemon executes the calls if the place names one; otherwise an engine in this process
does. Errors of the configuration surface before the first client is served.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from sandkasten.client.http.daemon_file_store import files_of_daemon
from sandkasten.client.server.agents_transport import agents_of
from sandkasten.client.server.embedded import require_installed
from sandkasten.client.server.server_pool import open_transport
from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.session_key import SessionKey
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.spelling import shown
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.engine.storage.stage_publish import StagePublish
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.toolbox import Toolbox
from sandkasten_tools.client_caller import ClientCaller, specs
from sandkasten_tools.remote_caller import RemoteCaller, remote_shapes
from sandkasten_tools.tool_settings import ToolSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_tools.adapter_protocols import ToolCaller, ToolInfo
    from sandkasten_tools.client_caller import ToolMode


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """Which tools are offered, and the image or runtime and the backend of their sandboxes."""

    mode: ToolMode = "all"
    image: str | None = None
    runtime: str | None = None
    session: str | None = None
    """Sandboxes stay when the client leaves; a client that passes the same name finds them."""
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class ProvidedTools:
    shapes: Sequence[ToolInfo]
    open_caller: Callable[[], ToolCaller]
    """Called once per client."""


def provide_tools(
    settings: Settings, offer: ToolOffer, place: ServerAddress | None = None
) -> AbstractAsyncContextManager[ProvidedTools]:
    if offer.session is not None:
        _check_session(offer.session)
    if place is None or place.url is None:
        return _local_tools(settings, offer)
    return _remote_tools(place, offer)


def _check_session(name: str) -> None:
    try:
        SessionKey("agent", name)
    except InvalidRequest as exc:
        raise InvalidRequest(
            f"{shown(name)} is not a valid session name",
            hint="use 1 to 100 letters, digits, '.', '_' or '-', starting with a letter or digit",
            field="session",
        ) from exc


@asynccontextmanager
async def _remote_tools(place: ServerAddress, offer: ToolOffer) -> AsyncIterator[ProvidedTools]:
    async with agents_of(place) as agents, aclosing(await open_transport(place)) as sandboxes:
        shapes = await remote_shapes(agents, offer.mode)

        def caller() -> ToolCaller:
            return RemoteCaller(
                agents,
                sandboxes,
                shapes,
                session=offer.session,
                image=offer.image,
                runtime=offer.runtime,
                backend=offer.backend,
            )

        yield ProvidedTools(shapes, caller)


@asynccontextmanager
async def _local_tools(settings: Settings, offer: ToolOffer) -> AsyncIterator[ProvidedTools]:
    with require_installed("the server", "server"):
        from sandkasten_server.daemon.transient_file_store import TransientFileStore
    engine = await open_engine(settings)
    try:
        files = TransientFileStore(settings, files_of_daemon)
        max_sandboxes = settings.of(ToolSettings).max_sandboxes
        toolbox = Toolbox(engine, StagePublish(engine.files, files), max_sandboxes)
        options = SandboxOptions(image=offer.image, backend=offer.backend)
        request = AgentSandbox(runtime=offer.runtime, options=options)

        # A misspelled image must not wait for the first call of a tool.
        await toolbox.find_image(request)

        def caller() -> ToolCaller:
            return ClientCaller(toolbox, offer.mode, request, session=offer.session)

        yield ProvidedTools(specs(toolbox, offer.mode), caller)
    finally:
        await engine.aclose()
