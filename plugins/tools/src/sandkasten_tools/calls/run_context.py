"""Context of a tool call: the run it belongs to, set by the service and never by a model.

It decides which sandbox a call uses by default, and which sandboxes it may name.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.runs.session_key import SessionKey
from sandkasten_tools.calls.agent_sandbox import AgentSandbox

if TYPE_CHECKING:
    from sandkasten.model.access.tenancy import TenantQuota

_WORKFLOWS = ("default", "workflow")
_ITS_OWN = ("isolated", "agent")


@dataclass(frozen=True, slots=True)
class RunContext:
    agent_run_id: str
    agent_name: str = ""
    installed: bool = False
    """Whether the agent of this name is the operator's."""
    workflow_run_id: str | None = None
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    quota: TenantQuota | None = None
    sandbox: AgentSandbox = field(default_factory=AgentSandbox)
    client: bool = False
    """Whether the sandbox is what a client asks for, and not an agent's file: then what it does
    not name may be as in the session that it joins.
    """
    files: bool = True
    """Whether this run may use the stored files of the tenant."""
    retain_s: float | None = None
    """How long the sessions of the workflow run are kept after its end, or those of the agent run
    when it has no workflow. 0: none is kept, whatever files set; None: as they set it.
    """
    depth: int = 0
    """Number of agents above this one in the chain of calls."""
    idle_timeout_s: float | None = None
    """Idle lifetime of a sandbox of this run, for runs whose process may be killed without a
    successor to clean up; None: the default lifetime.
    """

    @property
    def installed_agent(self) -> str | None:
        """Return the name of the agent for rules of the operator."""
        return self.agent_name if self.installed else None

    def session_key(self, name: str | None = None) -> SessionKey:
        """Return the session key for `name`, or for the session of the agent's file.

        Names are local to the workflow run, or to the agent run when it has no workflow. Raise
        InvalidRequest when `name` is not a valid name.
        """
        session = self.sandbox.session if name is None else name
        if session in _ITS_OWN or self.workflow_run_id is None:
            inner = "default" if session in (*_WORKFLOWS, *_ITS_OWN) else session
            return SessionKey("agent", self.agent_run_id, inner)
        inner = "default" if session in _WORKFLOWS else session
        return SessionKey("workflow", self.workflow_run_id, inner)

    def retention(self, key: SessionKey) -> float:
        """Return for how many seconds a session is kept after its run."""
        shared = self.workflow_run_id is None or key.namespace == "workflow"
        if self.retain_s is None or not (shared or self.retain_s == 0):
            return self.sandbox.retain_s
        return max(self.sandbox.retain_s, self.retain_s) if self.retain_s else 0.0

    def owns(self, key: SessionKey) -> bool:
        """Return whether a sandbox with this key was opened in this run."""
        owners = {("agent", self.agent_run_id), ("workflow", self.workflow_run_id)}
        return (key.namespace, key.id) in owners
