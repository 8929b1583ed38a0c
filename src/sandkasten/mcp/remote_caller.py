"""The tools of a daemon somewhere, for an MCP server or a program here.

The daemon carries them out and keeps the sandboxes; here is only who asks. A daemon that cannot be
reached is an answer like any other failure of a tool, and an error where nobody has asked yet.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandkasten.agents.tools import tool_answers
from sandkasten.agents.tools.client_caller import MODES
from sandkasten.errors import NotFound, SandkastenError
from sandkasten.model.runs.session_key import SessionKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.agents.tools.adapter_protocols import Shape
    from sandkasten.agents.tools.client_caller import ToolMode
    from sandkasten.client.server.agents_transport import AgentsTransport
    from sandkasten.client.server.transport import Transport

log = logging.getLogger("sandkasten.mcp")


@dataclass(frozen=True, slots=True)
class Described:
    """A tool as the daemon describes it."""

    name: str
    description: str
    parameters: Mapping[str, Any]


async def described(agents: AgentsTransport, mode: ToolMode) -> Sequence[Described]:
    """Those of the daemon, which may be another version than we are."""
    return [
        Described(str(one["name"]), str(one["description"]), dict(one["parameters"]))
        for each in MODES[mode]
        for one in await agents.tools(each)
    ]


class RemoteCaller:
    """A `Caller` for one client."""

    def __init__(
        self,
        agents: AgentsTransport,
        sandboxes: Transport,
        shapes: Sequence[Shape],
        *,
        session: str | None = None,
        image: str | None = None,
        runtime: str | None = None,
    ) -> None:
        """InvalidRequest when `session` cannot be a name."""
        self._agents = agents
        self._sandboxes = sandboxes
        self._shapes = shapes
        self._stays = session is not None
        self._session = secrets.token_hex(16) if session is None else session
        self._image = image
        self._runtime = runtime
        self._ours = str(SessionKey("agent", f"client-{self._session}", "x")).removesuffix("x")

    def tools(self) -> Sequence[Shape]:
        return self._shapes

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return await self._agents.call_tool(
                name, arguments, session=self._session, image=self._image, runtime=self._runtime
            )
        except SandkastenError as exc:
            return tool_answers.failure(exc)

    async def aclose(self) -> None:
        if self._stays:
            return
        try:
            for info in await self._sandboxes.list():
                if (info.session_key or "").startswith(self._ours):
                    with suppress(NotFound):
                        await self._sandboxes.destroy(info.id)
        except SandkastenError as exc:
            # The daemon's reaper ends them when they have rested for long enough.
            log.warning("mcp.unclosed", extra={"sandkasten": {"why": exc.code}})
