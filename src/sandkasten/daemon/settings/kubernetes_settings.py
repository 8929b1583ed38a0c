"""Settings `backends.kubernetes.*`: the cluster, and how its Pods are made.

Contacts no cluster and opens no file; the backend reads the kubeconfig.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.backends.kubernetes.kubernetes_options import (
    ACCESS_MODES,
    AGENT_SANDBOX_USES,
    NETWORK_CHECKS,
    PROGRAMS,
    PULL_POLICIES,
    REACHES,
    AccessMode,
    AgentSandbox,
    KubernetesOptions,
    NetworkCheck,
    PullPolicy,
    Reach,
    WorkspaceOptions,
)
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.field_patterns import TENANT, form
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import (
    boolean,
    choice,
    image,
    invalid,
    path,
    positive_integer,
    positive_number,
    seconds,
    string,
    string_list,
)

if TYPE_CHECKING:
    from pathlib import Path

_DEFAULT: Final = KubernetesOptions()
_WORKSPACES: Final = WorkspaceOptions()
# A Pod must not end before the lease of its sandbox, which begins after its start.
_MARGIN_S: Final = 300.0
_LABEL: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
_OBJECT: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")
_VALUE: Final = lazy_pattern.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z")
_KEY: Final = lazy_pattern.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z"
)
_TENANT: Final = form(TENANT)
_PROFILE: Final = lazy_pattern.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*\Z")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MOST_PORT: Final = 65_535


def label(name: str, value: object) -> str:
    found = string(name, value)
    if not _LABEL.match(found):
        hint = "write 1 to 63 lower-case letters, digits and -"
        raise invalid(name, "the name of a Kubernetes object", value, hint)
    return found


def object_name(name: str, value: object) -> str:
    found = string(name, value)
    if not _OBJECT.match(found):
        hint = "write 1 to 253 lower-case letters, digits, dots and -"
        raise invalid(name, "the name of a Kubernetes object", value, hint)
    return found


def label_list(name: str, value: object) -> tuple[str, ...]:
    return tuple(label(name, one) for one in string_list(name, value))


def owner(name: str, value: object) -> str:
    found = string(name, value)
    if not _VALUE.match(found):
        hint = "write 1 to 63 letters, digits, dots, _ and -"
        raise invalid(name, "a label value of Kubernetes", value, hint)
    return found


def inner_directory(name: str, value: object) -> str:
    found = string(name, value).rstrip("/")
    if not found.startswith("/") or {"", ".", ".."} & {*found.split("/")[1:]}:
        hint = f"write a path such as {PROGRAMS}"
        raise invalid(name, "an absolute path without . and ..", value, hint)
    return found


def profile(name: str, value: object) -> str:
    found = string(name, value)
    if not _PROFILE.match(found) or ".." in found.split("/"):
        hint = "write a path below the kubelet's seccomp directory, such as profiles/sandbox.json"
        raise invalid(name, "a relative path", value, hint)
    return found


def port(name: str, value: object) -> int:
    found = positive_integer(name, value)
    if not 1024 <= found <= _MOST_PORT:
        hint = "ports below 1024 need a privilege"
        raise invalid(name, "a port from 1024 to 65535", value, hint)
    return found


def selector(name: str, value: object) -> tuple[str, ...]:
    """Accept a mapping, or strings `label=value`."""
    if isinstance(value, dict):
        value = [f"{key}={content}" for key, content in value.items()]
    found = string_list(name, value)
    for one in found:
        key, equals, content = one.partition("=")
        if not equals or not _KEY.match(key) or not _VALUE.match(content):
            raise invalid(name, "labels of nodes", one, "write label=value, such as pool=sandboxes")
    return found


def tenant_namespaces(name: str, value: object) -> tuple[str, ...]:
    """Accept a mapping, or strings `tenant=namespace`."""
    if isinstance(value, dict):
        value = [f"{key}={content}" for key, content in value.items()]
    found = string_list(name, value)
    for one in found:
        tenant, equals, namespace = one.partition("=")
        if not equals or not _TENANT.match(tenant) or not _LABEL.match(namespace):
            hint = "write tenant: namespace, such as acme: sandboxes-acme"
            raise invalid(name, "a namespace for each tenant", one, hint)
    if len({one.partition("=")[0] for one in found}) < len(found):
        raise invalid(name, "one namespace for each tenant", ", ".join(found), "name each once")
    return found


def tolerations(name: str, value: object) -> tuple[str, ...]:
    """Accept strings `key[=value][:effect]`, as kubectl writes taints."""
    found = string_list(name, value)
    for one in found:
        taint, colon, effect = one.partition(":")
        key, _, content = taint.partition("=")
        if not _KEY.match(key) or not _VALUE.match(content) or (colon and effect not in _EFFECTS):
            hint = "write key=value:NoSchedule, key:NoExecute or key"
            raise invalid(name, "taints of nodes", one, hint)
    return found


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    kubeconfig: Path | None = setting(
        "backends.kubernetes.kubeconfig",
        path,
        None,
        "A kubeconfig file; default: the service account of the daemon's Pod.",
    )
    context: str | None = setting(
        "backends.kubernetes.context",
        string,
        None,
        "The context of the kubeconfig; default: its current one.",
    )
    namespace: str | None = setting(
        "backends.kubernetes.namespace",
        label,
        None,
        "The namespace of the Pods; default: that of the context or of the daemon's Pod.",
    )
    tenant_namespaces: tuple[str, ...] = setting(
        "backends.kubernetes.tenant_namespaces",
        tenant_namespaces,
        (),
        "Namespaces of tenants whose Pods are not in `namespace`: tenant=namespace.",
    )
    installation: str | None = setting(
        "backends.kubernetes.installation",
        owner,
        None,
        "The owner label of the Pods, for daemons that share them; default: by data directory.",
    )
    runner_image: str | None = setting(
        "backends.kubernetes.runner_image",
        image,
        None,
        "An image with the programs of Sandkasten, such as the daemon's. Required.",
    )
    image_programs_dir: str = setting(
        "backends.kubernetes.image_programs_dir",
        inner_directory,
        _DEFAULT.programs,
        "The directory of runner_image that has the programs.",
    )
    reach: Reach = setting(
        "backends.kubernetes.reach",
        choice(*REACHES),
        _DEFAULT.reach,
        "How the daemon reaches a Pod: direct (at its address), exec (by the API server) or auto.",
    )
    port: int = setting(
        "backends.kubernetes.port",
        port,
        _DEFAULT.port,
        "The port of a Pod at which the daemon reaches it.",
    )
    network_policy: NetworkCheck = setting(
        "backends.kubernetes.network_policy",
        choice(*NETWORK_CHECKS),
        _DEFAULT.network_policy,
        "Whether a trial Pod must show that the network is closed (checked), or not (assumed).",
    )
    network_full: bool = setting(
        "backends.kubernetes.networks.full",
        boolean,
        _DEFAULT.network_full,
        "Whether sandboxes may have network: full; needs a NetworkPolicy for this class.",
    )
    network_rules: bool = setting(
        "backends.kubernetes.networks.rules",
        boolean,
        _DEFAULT.network_rules,
        "Whether sandboxes may have a network by rule; their Pods then need NET_ADMIN.",
    )
    agent_sandbox: AgentSandbox = setting(
        "backends.kubernetes.agent_sandbox",
        choice(*AGENT_SANDBOX_USES),
        _DEFAULT.agent_sandbox,
        "Whether Pods are made by agent-sandbox: auto (where the cluster has it), never, require.",
    )
    workspaces: bool = setting(
        "backends.kubernetes.workspaces.enabled",
        boolean,
        False,
        "Whether named workspaces are kept, as claims; a storage_class or a claim implies it.",
    )
    workspace_class: str | None = setting(
        "backends.kubernetes.workspaces.storage_class",
        object_name,
        None,
        "The StorageClass of these claims; default: the default one of the cluster.",
    )
    workspace_access: AccessMode = setting(
        "backends.kubernetes.workspaces.access_mode",
        choice(*ACCESS_MODES),
        _WORKSPACES.access_mode,
        "ReadWriteOnce (sandboxes that share a workspace run on one node) or ReadWriteMany.",
    )
    workspace_claim: str | None = setting(
        "backends.kubernetes.workspaces.claim",
        object_name,
        None,
        "A claim with ReadWriteMany that exists: each workspace is a directory in it.",
    )
    runtime_class: str | None = setting(
        "backends.kubernetes.runtime_class",
        label,
        None,
        "The RuntimeClass of the Pods, such as that of gVisor or Kata Containers.",
    )
    node_selector: tuple[str, ...] = setting(
        "backends.kubernetes.node_selector",
        selector,
        (),
        "Labels of the nodes that may run the Pods: label=value.",
    )
    tolerations: tuple[str, ...] = setting(
        "backends.kubernetes.tolerations",
        tolerations,
        (),
        "Taints of nodes that the Pods tolerate: key=value:effect.",
    )
    pull_secrets: tuple[str, ...] = setting(
        "backends.kubernetes.pull_secrets",
        label_list,
        (),
        "Secrets of the namespace with credentials of registries.",
    )
    pull_policy: PullPolicy = setting(
        "backends.kubernetes.pull_policy",
        choice(*PULL_POLICIES),
        _DEFAULT.pull_policy,
        "When nodes pull an image: IfNotPresent, Always or Never.",
    )
    seccomp_profile: str | None = setting(
        "backends.kubernetes.seccomp_profile",
        profile,
        None,
        "A seccomp profile on the nodes (Localhost); default: RuntimeDefault.",
    )
    user_namespaces: bool = setting(
        "backends.kubernetes.user_namespaces",
        boolean,
        _DEFAULT.user_namespaces,
        "Whether each Pod has user ids of its own on its node (hostUsers: false).",
    )
    overcommit: float | int = setting(
        "backends.kubernetes.overcommit",
        positive_number,
        _DEFAULT.overcommit,
        "The requests of a Pod are its limits divided by this; at least 1.",
    )
    start_s: float = setting(
        "backends.kubernetes.start_timeout_seconds",
        seconds,
        _DEFAULT.start_s,
        "How long a Pod may take to start, pulling its image included.",
    )
    timeout_s: float = setting(
        "backends.kubernetes.timeout_seconds",
        seconds,
        _DEFAULT.timeout_s,
        "How long one request to the API server may take.",
    )

    def options(self, lifetime_s: float) -> KubernetesOptions:
        """Return the options of the backend; `lifetime_s` is the longest life of a sandbox."""
        if self.overcommit < 1:
            raise invalid(
                "backends.kubernetes.overcommit", "at least 1", self.overcommit, "write 1 or more"
            )
        if self.tenant_namespaces and not self.namespace:
            raise InvalidConfiguration(
                "backends.kubernetes.tenant_namespaces requires backends.kubernetes.namespace",
                hint="set the namespace of all other tenants",
                setting="backends.kubernetes.namespace",
            )
        return KubernetesOptions(
            kubeconfig="" if self.kubeconfig is None else str(self.kubeconfig),
            context=self.context or "",
            namespace=self.namespace or "",
            tenant_namespaces=dict(_pair(one) for one in self.tenant_namespaces),
            installation=self.installation or "",
            runner_image=self.runner_image or "",
            programs=self.image_programs_dir,
            reach=self.reach,
            port=self.port,
            network_policy=self.network_policy,
            network_full=self.network_full,
            network_rules=self.network_rules,
            agent_sandbox=self.agent_sandbox,
            workspaces=self._workspaces(),
            runtime_class=self.runtime_class or "",
            node_selector=dict(_pair(one) for one in self.node_selector),
            tolerations=tuple(map(_toleration, self.tolerations)),
            pull_secrets=self.pull_secrets,
            pull_policy=self.pull_policy,
            seccomp_profile=self.seccomp_profile or "",
            user_namespaces=self.user_namespaces,
            overcommit=float(self.overcommit),
            lifetime_s=lifetime_s + _MARGIN_S,
            start_s=self.start_s,
            timeout_s=self.timeout_s,
        )

    def _workspaces(self) -> WorkspaceOptions | None:
        if self.workspace_claim and self.workspace_class:
            raise InvalidConfiguration(
                "backends.kubernetes.workspaces has a claim and a storage_class",
                hint="leave one of them out: with a claim, no other claims are made",
                setting="backends.kubernetes.workspaces.claim",
            )
        if not (self.workspaces or self.workspace_claim or self.workspace_class):
            return None
        return WorkspaceOptions(
            self.workspace_class or "", self.workspace_access, self.workspace_claim or ""
        )


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


def _toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    made = {"key": key, "operator": "Equal" if equals else "Exists"}
    if equals:
        made["value"] = value
    return {**made, "effect": effect} if effect else made
