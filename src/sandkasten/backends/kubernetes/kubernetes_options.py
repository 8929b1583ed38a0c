"""Operator options for the cluster: data only, checked where settings are read."""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

Reach = Literal["auto", "direct", "exec"]
NetworkCheck = Literal["checked", "assumed"]
PullPolicy = Literal["IfNotPresent", "Always", "Never"]
AgentSandbox = Literal["auto", "never", "require"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]

REACHES: Final = ("auto", "direct", "exec")
NETWORK_CHECKS: Final = ("checked", "assumed")
PULL_POLICIES: Final = ("IfNotPresent", "Always", "Never")
AGENT_SANDBOX_USES: Final = ("auto", "never", "require")
ACCESS_MODES: Final = ("ReadWriteOnce", "ReadWriteMany")
PROGRAMS: Final = "/opt/sandkasten/programs"


@dataclass(frozen=True, slots=True)
class WorkspaceOptions:
    """How named workspaces are kept: each in a claim of its own, or all in one."""

    storage_class: str = ""
    """The StorageClass of the claims; empty: the default one of the cluster."""
    access_mode: AccessMode = "ReadWriteOnce"
    """With ReadWriteOnce, sandboxes that share a workspace are placed on one node."""
    claim: str = ""
    """A claim that exists and that several nodes can write: a workspace is a directory of it."""


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    kubeconfig: str = ""
    """Path; empty: the service account of this Pod."""
    context: str = ""
    """A context of that file; empty: its current one."""
    namespace: str = ""
    """Empty: the one of the context or of this Pod."""
    tenant_namespaces: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Tenants whose sandboxes are in another namespace. Requires `namespace`."""
    installation: str = ""
    """The owner of our objects; empty: one is made up for this data directory. Daemons that share a
    database share it."""
    runner_image: str = ""
    """An image with our programs, such as the daemon's own."""
    programs: str = PROGRAMS
    """The directory of that image with the programs."""
    reach: Reach = "auto"
    """How runners are reached: at the Pod's address, or by a stream of the API server."""
    port: int = 8484
    network_policy: NetworkCheck = "checked"
    """Whether a trial Pod must show that the network of sandboxes is closed."""
    network_full: bool = False
    """Whether the operator has a NetworkPolicy for Pods of the class `full`."""
    network_rules: bool = False
    """Whether Pods with a network have an egress process, whose init container has NET_ADMIN."""
    agent_sandbox: AgentSandbox = "auto"
    """Whether Pods are made by Sandbox objects of agent-sandbox; auto: where the cluster has it."""
    workspaces: WorkspaceOptions | None = None
    """None: named workspaces are refused."""
    runtime_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    tolerations: tuple[Mapping[str, Any], ...] = ()
    pull_secrets: tuple[str, ...] = ()
    pull_policy: PullPolicy = "IfNotPresent"
    seccomp_profile: str = ""
    """A profile on the nodes (`Localhost`); empty: `RuntimeDefault`."""
    user_namespaces: bool = False
    """Whether a Pod has ids of its own on its node (`hostUsers: false`)."""
    overcommit: float = 1.0
    """Requests are the limits divided by this."""
    lifetime_s: float = 86_400.0
    """The hard end of a Pod, which its node enforces without any daemon."""
    start_s: float = 120.0
    """How long a Pod may take to start, pulling its image included."""
    timeout_s: float = 30.0
    """Deadline of one request to the API server."""
