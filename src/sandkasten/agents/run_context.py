"""In whose name a tool works: the run it belongs to, told by us and never by a model.

Decides which sandbox a call means when it names none, and which it may name at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandkasten.agents.definitions.sandbox_request import AgentSandbox
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.runs.session_key import SessionKey

if TYPE_CHECKING:
    from sandkasten.model.access.tenancy import TenantQuota

_WORKFLOWS = ("default", "workflow")
_ITS_OWN = ("isolated", "agent")


@dataclass(frozen=True, slots=True)
class RunContext:
    agent_run_id: str
    agent_name: str = ""
    workflow_run_id: str | None = None
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    quota: TenantQuota | None = None
    sandbox: AgentSandbox = field(default_factory=AgentSandbox)
    files: bool = True
    """Whether the stored files of the tenant are this run's to use."""
    depth: int = 0
    """How many agents called one another to come here."""
    idle_timeout_s: float | None = None
    """For how long a sandbox of this run lives unless it is renewed, where the run's process may
    be killed and nobody comes after it; None: as long as any other."""

    def session_key(self, name: str | None = None) -> SessionKey:
        """The key of the sandbox that the agent's file, or `name` in its place, means.

        Names are the run's own: no name leads out of the workflow run, or of the agent run that
        stands alone. InvalidRequest when it cannot be a name.
        """
        asked = self.sandbox.session if name is None else name
        if asked in _ITS_OWN or self.workflow_run_id is None:
            inner = "default" if asked in (*_WORKFLOWS, *_ITS_OWN) else asked
            return SessionKey("agent", self.agent_run_id, inner)
        inner = "default" if asked in _WORKFLOWS else asked
        return SessionKey("workflow", self.workflow_run_id, inner)

    def owns(self, key: SessionKey) -> bool:
        """Whether a sandbox of this key was opened in this run."""
        mine = {("agent", self.agent_run_id), ("workflow", self.workflow_run_id)}
        return (key.namespace, key.id) in mine
