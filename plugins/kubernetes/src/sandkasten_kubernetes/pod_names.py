"""Names, labels and inner paths of our objects in a cluster. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.ids import SandboxId, host_label
from sandkasten.model.sandbox.cell_spec import RUNNER_DIR

if TYPE_CHECKING:
    from collections.abc import Mapping

LABEL: Final = "sandkasten"
"""On each of our objects; its value is the kind."""
CELL: Final = "cell"
WORKSPACE: Final = "workspace"
"""The kind of a claim that is a named workspace."""
TASK: Final = "workspace-task"
"""The kind of a Pod that copies or erases a named workspace."""
LABEL_ID: Final = "sandkasten.id"
LABEL_OWNER: Final = "sandkasten.owner"
"""The installation that owns the object: no other installation removes it."""
LABEL_NETWORK: Final = "sandkasten.network"
"""What a NetworkPolicy selects Pods by."""
LABEL_WORKSPACE: Final = "sandkasten.workspace"
"""The name of a workspace, for readers; see `workspace_label`."""
LABEL_CLAIM: Final = "sandkasten.claim"
"""On every Pod that has a named workspace: its `workspace_key`."""
NAME: Final = "sandkasten.name"
"""An annotation: the name of the workspace as it is kept."""
ATTEMPT: Final = "sandkasten.attempt"
"""An annotation: which create made the object. One whose answer was lost finds it by that."""
START_GATE: Final = "sandkasten.start"
"""A scheduling gate: the create removes that of one Pod. See `agent_sandboxes.py`."""
LABEL_MANAGER: Final = "app.kubernetes.io/managed-by"

SANDBOX_CONTAINER: Final = "sandbox"
GATE_CONTAINER: Final = "gate"
EGRESS_CONTAINER: Final = "egress"
"""Only in a Pod whose network is decided by rule; see `network/pod_egress.py`."""
NETWORK_CONTAINER: Final = "network"
"""The init container of such a Pod."""

STATE_DIR: Final = f"{RUNNER_DIR}/state"
ENTRY_DIR: Final = f"{RUNNER_DIR}/entry"
"""In both containers, read-only in that of the sandbox."""
RUNNER_PATH: Final = f"{ENTRY_DIR}/runner"
HAND_OVER: Final = f"{ENTRY_DIR}/socket"
"""Where the runner fetches its listener from the gate."""
GATE_DIR: Final = f"{RUNNER_DIR}/gate"
LISTENER: Final = f"{GATE_DIR}/listener"
"""The path of that listener, in the gate's container only."""
KEYS_DIR: Final = f"{RUNNER_DIR}/keys"
NETWORK_DIR: Final = f"{RUNNER_DIR}/network"
"""In the gate's and the egress container only."""
NETWORK_CONTROL: Final = f"{NETWORK_DIR}/control"
"""Where the egress process takes commands."""

_LABEL_VALUE = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?\Z")
_KEY_CHARS: Final = 32
_ID = re.compile(r"[a-z]+_[0-9a-f]{16,64}\Z")


def pod_name(sandbox_id: SandboxId) -> str:
    """Return the name of the Pod, and of the Secret with its key."""
    return host_label(sandbox_id)


def id_in(text: object) -> SandboxId | None:
    """Return the id in a label; None if it is not a valid one."""
    return SandboxId(text) if isinstance(text, str) and _ID.match(text) else None


def attempt_of(resource: Mapping[str, Any]) -> object:
    """Return the mark of the create that made an object."""
    return ((resource.get("metadata") or {}).get("annotations") or {}).get(ATTEMPT)


def labels(owner: str, sandbox_id: SandboxId) -> dict[str, str]:
    return {
        LABEL: CELL,
        LABEL_ID: sandbox_id,
        LABEL_OWNER: owner,
        LABEL_MANAGER: "sandkasten",
    }


def selector(owner: str, sandbox_id: SandboxId | None = None) -> str:
    """Return the label selector of what an installation owns, or of a sandbox of it."""
    everything = f"{LABEL}={CELL},{LABEL_OWNER}={owner}"
    return everything if sandbox_id is None else f"{everything},{LABEL_ID}={sandbox_id}"


def workspace_key(owner: str, workspace: str) -> str:
    """Return the name of what a cluster has of a workspace, such as its claim. A kept name can be
    longer than a label, and has letters that names of Kubernetes have not.
    """
    identity = f"{owner}\0{workspace}".encode()
    return f"workspace-{hashlib.sha256(identity).hexdigest()[:_KEY_CHARS]}"


def workspace_label(workspace: str) -> str:
    """Return the name if a label can hold it, else a hash."""
    if _LABEL_VALUE.match(workspace):
        return workspace
    return f"x-{hashlib.sha256(workspace.encode()).hexdigest()[:_KEY_CHARS]}"


def claim_labels(owner: str, workspace: str) -> dict[str, str]:
    return {
        LABEL: WORKSPACE,
        LABEL_WORKSPACE: workspace_label(workspace),
        LABEL_OWNER: owner,
        LABEL_MANAGER: "sandkasten",
    }


def task_labels(owner: str, workspace: str) -> dict[str, str]:
    claim = claim_labels(owner, workspace)
    return {**claim, LABEL: TASK, LABEL_CLAIM: workspace_key(owner, workspace)}


def user_selector(owner: str, workspace: str) -> str:
    """Return the label selector of the Pods that have a workspace."""
    return f"{LABEL_OWNER}={owner},{LABEL_CLAIM}={workspace_key(owner, workspace)}"


def task_selector(owner: str) -> str:
    return f"{LABEL}={TASK},{LABEL_OWNER}={owner}"
