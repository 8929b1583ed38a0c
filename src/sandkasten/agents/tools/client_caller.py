"""The tools for one client that is no agent of ours: an MCP client, somebody's own program.

Each caller has a name that nobody can guess, so no client reaches the sandbox of another; one that
is given a name shares its sandboxes with whoever says the same, and they outlive it. No such name
is the id of a run, whose sandboxes go when there is no run.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from sandkasten.agents.definitions.sandbox_request import AgentSandbox
from sandkasten.agents.run_context import RunContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.agents.definitions.sandbox_request import Mode
    from sandkasten.agents.tools.tool_schemas import ToolSpec
    from sandkasten.agents.tools.toolbox import Toolbox

ToolMode = Literal["compute", "code", "all"]

MODES: Final[Mapping[ToolMode, Sequence[Mode]]] = {
    "compute": ("compute",),
    "code": ("code",),
    "all": ("compute", "code"),
}


def specs(toolbox: Toolbox, mode: ToolMode) -> Sequence[ToolSpec]:
    return [one for each in MODES[mode] for one in toolbox.specs(AgentSandbox(mode=each))]


class ClientCaller:
    """A `Caller`. `sandbox.mode` does not count: a tool's own does."""

    def __init__(
        self,
        toolbox: Toolbox,
        mode: ToolMode = "all",
        sandbox: AgentSandbox | None = None,
        *,
        session: str | None = None,
    ) -> None:
        """InvalidRequest when `session` cannot be a name."""
        self._toolbox = toolbox
        self._tools = specs(toolbox, mode)
        self._session = session
        self._context = RunContext(
            agent_run_id="client-" + (secrets.token_hex(16) if session is None else session),
            agent_name="mcp",
            sandbox=sandbox or AgentSandbox(),
        )
        self._context.session_key()
        self._modes = {one.name: one.mode for one in self._tools}

    def tools(self) -> Sequence[ToolSpec]:
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        sandbox = self._context.sandbox
        context = replace(
            self._context, sandbox=replace(sandbox, mode=self._modes.get(name, sandbox.mode))
        )
        return await self._toolbox.call(name, arguments, context)

    async def aclose(self) -> None:
        if self._session is None:
            await self._toolbox.finish("agent", self._context.agent_run_id, self._context.tenant)
