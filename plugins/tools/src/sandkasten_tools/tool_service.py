"""The tools for clients with their own agent loop: list them, and call one.

`session` names a sandbox of the caller, which is created on first use; no name leads to a sandbox
of a run. A call that fails is an answer with `ok` false.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.errors import InvalidRequest
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.run_context import RunContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten_tools.calls.toolbox import Toolbox


class ToolService:
    """Implementation of `ports.TenantTools`."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    async def tools(self, mode: str) -> Sequence[Mapping[str, Any]]:
        if mode not in ("compute", "code"):
            raise InvalidRequest(
                f"mode must be compute or code, got {mode[:40]!r}", hint="use one of these"
            )
        sandbox = AgentSandbox(mode="compute" if mode == "compute" else "code")
        return [
            {
                "name": spec.name,
                "description": spec.description,
                "parameters": dict(spec.parameters),
            }
            for spec in self._toolbox.specs(sandbox)
        ]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        tenant: str = DEFAULT_TENANT,
        session: str,
        quota: TenantQuota | None = None,
        files: bool = True,
        key_id: str | None = None,
        image: str | None = None,
        runtime: str | None = None,
        backend: str | None = None,
    ) -> Mapping[str, Any]:
        context = RunContext(
            # No run id looks like this, so no session name can reach a sandbox of a run.
            agent_run_id=f"client-{session}",
            agent_name="client",
            tenant=tenant,
            key_id=key_id,
            quota=quota,
            files=files,
            client=True,
            sandbox=AgentSandbox(
                mode="compute" if name == "sandbox_run" else "code",
                runtime=runtime,
                options=SandboxOptions(image=image, backend=backend),
            ),
        )
        context.session_key()
        return await self._toolbox.call(name, dict(arguments), context)
