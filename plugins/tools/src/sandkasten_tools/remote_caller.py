"""The tools of a remote daemon, for an MCP server or a program on this machine.

The daemon executes the calls and keeps the sandboxes. A daemon that cannot be reached while a
tool is called is a failed tool call; before the first call it is an error.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sandkasten.client.http.connection import settle
from sandkasten.errors import NotFound, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.session_key import SessionKey
from sandkasten_tools.calls import tool_answers
from sandkasten_tools.client_caller import MODES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.client.server.transport import Transport
    from sandkasten.ports import Agents as AgentsPort
    from sandkasten_tools.adapter_protocols import ToolInfo
    from sandkasten_tools.client_caller import ToolMode

log = logging.getLogger("sandkasten.mcp")


@dataclass(frozen=True, slots=True)
class RemoteShape:
    """A tool as the daemon describes it."""

    name: str
    description: str
    parameters: Mapping[str, Any]


async def remote_shapes(agents: AgentsPort, mode: ToolMode) -> Sequence[RemoteShape]:
    """Ask the daemon for its tools; its version may differ from ours."""
    return [
        RemoteShape(str(tool["name"]), str(tool["description"]), dict(tool["parameters"]))
        for each in MODES[mode]
        for tool in await agents.tools(each)
    ]


class RemoteCaller:
    """A `ToolCaller` for one client."""

    def __init__(
        self,
        agents: AgentsPort,
        sandboxes: Transport,
        shapes: Sequence[ToolInfo],
        *,
        session: str | None = None,
        image: str | None = None,
        runtime: str | None = None,
        backend: str | None = None,
    ) -> None:
        """Raise InvalidRequest if `session` is not a valid name."""
        self._agents = agents
        self._sandboxes = sandboxes
        self._shapes = shapes
        self._keep = session is not None
        self._session = secrets.token_hex(16) if session is None else session
        self._image = image
        self._runtime = runtime
        self._backend = backend
        self._key_prefix = str(SessionKey("agent", f"client-{self._session}", "x"))[:-1]

    def tools(self) -> Sequence[ToolInfo]:
        return self._shapes

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        calling = asyncio.ensure_future(
            self._agents.call_tool(
                name,
                arguments,
                session=self._session,
                image=self._image,
                runtime=self._runtime,
                backend=self._backend,
            )
        )
        try:
            return await asyncio.shield(calling)
        except SandkastenError as exc:
            return tool_answers.failure(exc)
        except asyncio.CancelledError:
            # A sandbox that the daemon is about to have must be in its list when `aclose` asks.
            await settle(calling)
            raise

    async def aclose(self) -> None:
        """Destroy the sandboxes of this client, unless its session is named."""
        if self._keep:
            return
        try:
            for info in await self._sandboxes.list():
                if (info.session_key or "").startswith(self._key_prefix):
                    with suppress(NotFound):
                        await self._sandboxes.destroy(info.id)
        except SandkastenError as exc:
            # The daemon's reaper destroys them once their idle timeout has passed.
            log.warning("mcp.unclosed", extra={"sandkasten": {"why": exc.code}})
