"""Tool caller for one external client: an MCP client or a user's own program.

Each caller has an unguessable name, so a client cannot reach the sandboxes of another. A caller
with an explicit name shares its sandboxes with all callers of that name, and they outlive it. Such
a name is never a run id, because sandboxes of unknown runs are destroyed.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.run_context import RunContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten_tools.calls.agent_sandbox import Mode
    from sandkasten_tools.calls.tool_schemas import ToolSpec
    from sandkasten_tools.calls.toolbox import Toolbox

ToolMode = Literal["compute", "code", "all"]

MODES: Final[Mapping[ToolMode, Sequence[Mode]]] = {
    "compute": ("compute",),
    "code": ("code",),
    "all": ("compute", "code"),
}


def specs(toolbox: Toolbox, mode: ToolMode) -> Sequence[ToolSpec]:
    return [spec for each in MODES[mode] for spec in toolbox.specs(AgentSandbox(mode=each))]


class ClientCaller:
    """Implementation of `ToolCaller`. `sandbox.mode` is ignored: the tools decide."""

    def __init__(
        self,
        toolbox: Toolbox,
        mode: ToolMode = "all",
        sandbox: AgentSandbox | None = None,
        *,
        session: str | None = None,
    ) -> None:
        """Raise InvalidRequest when `session` is not a valid name."""
        self._toolbox = toolbox
        self._tools = specs(toolbox, mode)
        self._session = session
        self._context = RunContext(
            agent_run_id="client-" + (secrets.token_hex(16) if session is None else session),
            agent_name="mcp",
            client=True,
            sandbox=sandbox or AgentSandbox(),
        )
        self._context.session_key()
        self._modes = {tool.name: tool.mode for tool in self._tools}

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
