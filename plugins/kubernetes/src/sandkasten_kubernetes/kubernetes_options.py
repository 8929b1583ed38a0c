"""Options of the backend kubernetes: the cluster, and how its Pods are made.

Contacts no cluster and opens no file; the backend reads the kubeconfig.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.field_patterns import TENANT, form
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import (
    boolean,
    choice,
    image,
    inner_directory,
    invalid,
    pair_list,
    path,
    positive_integer,
    positive_number,
    seconds,
    show_pairs,
    string,
    string_list,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandkasten.ports.backend_plugins import SettingContext

Reach = Literal["auto", "direct", "exec"]
NetworkCheck = Literal["checked", "assumed"]
PullPolicy = Literal["IfNotPresent", "Always", "Never"]
AgentSandbox = Literal["auto", "never", "require"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]

REACHES: Final[tuple[Reach, ...]] = ("auto", "direct", "exec")
NETWORK_CHECKS: Final[tuple[NetworkCheck, ...]] = ("checked", "assumed")
PULL_POLICIES: Final[tuple[PullPolicy, ...]] = ("IfNotPresent", "Always", "Never")
AGENT_SANDBOX_USES: Final[tuple[AgentSandbox, ...]] = ("auto", "never", "require")
ACCESS_MODES: Final[tuple[AccessMode, ...]] = ("ReadWriteOnce", "ReadWriteMany")
PROGRAMS: Final = "/opt/sandkasten/programs"
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
    text = string(name, value)
    if not _LABEL.match(text):
        hint = "write 1 to 63 lower-case letters, digits and -"
        raise invalid(name, "the name of a Kubernetes object", value, hint)
    return text


def object_name(name: str, value: object) -> str:
    text = string(name, value)
    if not _OBJECT.match(text):
        hint = "write 1 to 253 lower-case letters, digits, dots and -"
        raise invalid(name, "the name of a Kubernetes object", value, hint)
    return text


def label_list(name: str, value: object) -> tuple[str, ...]:
    return tuple(label(name, entry) for entry in string_list(name, value))


def owner(name: str, value: object) -> str:
    text = string(name, value)
    if not _VALUE.match(text):
        hint = "write 1 to 63 letters, digits, dots, _ and -"
        raise invalid(name, "a label value of Kubernetes", value, hint)
    return text


def profile(name: str, value: object) -> str:
    text = string(name, value)
    if not _PROFILE.match(text) or ".." in text.split("/"):
        hint = "write a path below the kubelet's seccomp directory, such as profiles/sandbox.json"
        raise invalid(name, "a relative path", value, hint)
    return text


def port(name: str, value: object) -> int:
    number = positive_integer(name, value)
    if not 1024 <= number <= _MOST_PORT:
        hint = "ports below 1024 need a privilege"
        raise invalid(name, "a port from 1024 to 65535", value, hint)
    return number


def selector(name: str, value: object) -> dict[str, str]:
    """Accept a mapping, or strings `label=value`."""
    pairs = pair_list(name, value)
    for pair in pairs:
        key, equals, content = pair.partition("=")
        if not equals or not _KEY.match(key) or not _VALUE.match(content):
            hint = "write label=value, such as pool=sandboxes"
            raise invalid(name, "labels of nodes", pair, hint)
    return dict(map(_pair, pairs))


def tenant_namespaces(name: str, value: object) -> dict[str, str]:
    """Accept a mapping, or strings `tenant=namespace`."""
    pairs = pair_list(name, value)
    for pair in pairs:
        tenant, equals, namespace = pair.partition("=")
        if not equals or not _TENANT.match(tenant) or not _LABEL.match(namespace):
            hint = "write tenant: namespace, such as acme: sandboxes-acme"
            raise invalid(name, "a namespace for each tenant", pair, hint)
    namespaces = dict(map(_pair, pairs))
    if len(namespaces) < len(pairs):
        raise invalid(name, "one namespace for each tenant", ", ".join(pairs), "name each once")
    return namespaces


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


def tolerations(name: str, value: object) -> tuple[dict[str, str], ...]:
    """Accept strings `key[=value][:effect]`, as kubectl writes taints."""
    taints = string_list(name, value)
    for text in taints:
        taint, colon, effect = text.partition(":")
        key, _, content = taint.partition("=")
        if not _KEY.match(key) or not _VALUE.match(content) or (colon and effect not in _EFFECTS):
            hint = "write key=value:NoSchedule, key:NoExecute or key"
            raise invalid(name, "taints of nodes", text, hint)
    return tuple(map(_toleration, taints))


def _toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    toleration = {"key": key, "operator": "Equal" if equals else "Exists"}
    if equals:
        toleration["value"] = value
    return {**toleration, "effect": effect} if effect else toleration


def show_tolerations(entries: tuple[Mapping[str, str], ...]) -> list[str]:
    return [
        toleration["key"]
        + (f"={toleration['value']}" if "value" in toleration else "")
        + (f":{toleration['effect']}" if "effect" in toleration else "")
        for toleration in entries
    ]


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    kubeconfig: Path | None = setting(
        "backends.kubernetes.kubeconfig",
        path,
        None,
        "A kubeconfig file; default: the service account of the daemon's Pod.",
    )
    context: str = setting(
        "backends.kubernetes.context",
        string,
        "",
        "The context of the kubeconfig; default: its current one.",
    )
    namespace: str = setting(
        "backends.kubernetes.namespace",
        label,
        "",
        "The namespace of the Pods; default: that of the context or of the daemon's Pod.",
    )
    tenant_namespaces: Mapping[str, str] = setting(
        "backends.kubernetes.tenant_namespaces",
        tenant_namespaces,
        MappingProxyType({}),
        "Namespaces of tenants whose Pods are not in `namespace`: tenant=namespace.",
        show=show_pairs,
    )
    installation: str = setting(
        "backends.kubernetes.installation",
        owner,
        "",
        "The owner label of the Pods, for daemons that share them; default: by data directory.",
    )
    runner_image: str = setting(
        "backends.kubernetes.runner_image",
        image,
        "",
        "An image with the programs of Sandkasten, such as the daemon's. Required.",
    )
    programs: str = setting(
        "backends.kubernetes.image_programs_dir",
        inner_directory(PROGRAMS),
        PROGRAMS,
        "The directory of runner_image that has the programs.",
    )
    reach: Reach = setting(
        "backends.kubernetes.reach",
        choice(*REACHES),
        "auto",
        "How the daemon reaches a Pod: direct (at its address), exec (by the API server) or auto.",
    )
    port: int = setting(
        "backends.kubernetes.port",
        port,
        8484,
        "The port of a Pod at which the daemon reaches it.",
    )
    network_policy: NetworkCheck = setting(
        "backends.kubernetes.network_policy",
        choice(*NETWORK_CHECKS),
        "checked",
        "Whether a trial Pod must show that the network is closed (checked), or not (assumed).",
    )
    network_full: bool = setting(
        "backends.kubernetes.networks.full",
        boolean,
        False,
        "Whether sandboxes may have network: full; needs a NetworkPolicy for this class.",
    )
    network_rules: bool = setting(
        "backends.kubernetes.networks.rules",
        boolean,
        False,
        "Whether sandboxes may have a network by rule; their Pods then need NET_ADMIN.",
    )
    agent_sandbox: AgentSandbox = setting(
        "backends.kubernetes.agent_sandbox",
        choice(*AGENT_SANDBOX_USES),
        "auto",
        "Whether Pods are made by agent-sandbox: auto (where the cluster has it), never, require.",
    )
    workspaces_enabled: bool = setting(
        "backends.kubernetes.workspaces.enabled",
        boolean,
        False,
        "Whether named workspaces are kept, as claims; a storage_class or a claim implies it.",
    )
    workspace_class: str = setting(
        "backends.kubernetes.workspaces.storage_class",
        object_name,
        "",
        "The StorageClass of these claims; default: the default one of the cluster.",
    )
    workspace_access: AccessMode = setting(
        "backends.kubernetes.workspaces.access_mode",
        choice(*ACCESS_MODES),
        "ReadWriteOnce",
        "ReadWriteOnce (sandboxes that share a workspace run on one node) or ReadWriteMany.",
    )
    workspace_claim: str = setting(
        "backends.kubernetes.workspaces.claim",
        object_name,
        "",
        "A claim with ReadWriteMany that exists: each workspace is a directory in it.",
    )
    runtime_class: str = setting(
        "backends.kubernetes.runtime_class",
        label,
        "",
        "The RuntimeClass of the Pods, such as that of gVisor or Kata Containers.",
    )
    node_selector: Mapping[str, str] = setting(
        "backends.kubernetes.node_selector",
        selector,
        MappingProxyType({}),
        "Labels of the nodes that may run the Pods: label=value.",
        show=show_pairs,
    )
    tolerations: tuple[Mapping[str, str], ...] = setting(
        "backends.kubernetes.tolerations",
        tolerations,
        (),
        "Taints of nodes that the Pods tolerate: key=value:effect.",
        show=show_tolerations,
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
        "IfNotPresent",
        "When nodes pull an image: IfNotPresent, Always or Never.",
    )
    seccomp_profile: str = setting(
        "backends.kubernetes.seccomp_profile",
        profile,
        "",
        "A seccomp profile on the nodes (Localhost); default: RuntimeDefault.",
    )
    user_namespaces: bool = setting(
        "backends.kubernetes.user_namespaces",
        boolean,
        False,
        "Whether each Pod has user ids of its own on its node (hostUsers: false).",
    )
    overcommit: float | int = setting(
        "backends.kubernetes.overcommit",
        positive_number,
        1.0,
        "The requests of a Pod are its limits divided by this; at least 1.",
    )
    start_s: float = setting(
        "backends.kubernetes.start_timeout_seconds",
        seconds,
        120.0,
        "How long a Pod may take to start, pulling its image included.",
    )
    timeout_s: float = setting(
        "backends.kubernetes.timeout_seconds",
        seconds,
        30.0,
        "How long one request to the API server may take.",
    )
    lifetime_s: float = 86_400.0
    """The hard end of a Pod, which its node enforces without any daemon."""

    @property
    def keeps_workspaces(self) -> bool:
        """Whether named workspaces are kept, each in a claim of its own or all in one; otherwise
        they are refused.
        """
        return bool(self.workspaces_enabled or self.workspace_claim or self.workspace_class)

    def completed(self, context: SettingContext) -> KubernetesOptions:
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
        if self.workspace_claim and self.workspace_class:
            raise InvalidConfiguration(
                "backends.kubernetes.workspaces has a claim and a storage_class",
                hint="leave one of them out: with a claim, no other claims are made",
                setting="backends.kubernetes.workspaces.claim",
            )
        return replace(self, lifetime_s=context.longest_life_s + _MARGIN_S)
