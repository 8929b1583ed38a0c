"""The Pod of one sandbox: a pure function of the spec and the operator's options.

Two containers. `sandbox` has the image of the request, and its first process is our runner. `gate`
has our programs, the key and the token of this sandbox, and is the way in. They share the network
and one directory, from which the runner is started and in which it fetches its listener; see
`runner/src/gate/server.rs`.

Neither is root or has a capability, so runner and user code have the same id. The runner is the
first process, which no process of its container can signal, and is not dumpable, so none can read
its memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.sandbox.cell_spec import (
    HOME,
    TMP,
    USER_ID,
    VAR_TMP,
    WORKSPACE,
    CellSpec,
    base_environment,
)
from sandkasten_kubernetes import pod_names, pod_network
from sandkasten_kubernetes.network import pod_egress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions

# A command is at most 1 MiB and is stored here while it is read; several shells may do so at once.
_STATE_BYTES: Final = 8 << 20
_SOCKET_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 32 << 20
# A relay of bytes: it buffers at most 256 KiB per connection in each direction.
_GATE_REQUESTS: Final = {"cpu": "10m", "memory": "16Mi"}
_GATE_LIMITS: Final = {"cpu": "500m", "memory": "96Mi"}
_GRACE_S: Final = 5
# A node that does not answer may be restarting; after this its Pods are given up.
_NODE_AWAY_S: Final = 60
_NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_MILLI: Final = 1000


def pod(
    sandbox_id: SandboxId,
    spec: CellSpec,
    options: KubernetesOptions,
    owner: str,
    attempt: str,
    closed_to: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the Pod. Its runner starts when the addresses `closed_to` are out of its reach."""
    by_rule = pod_network.network_class(spec.network, options) == pod_network.RULES
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_names.pod_name(sandbox_id),
            "labels": {
                **pod_names.labels(owner, sandbox_id),
                pod_names.LABEL_NETWORK: pod_network.network_class(spec.network, options),
            },
            "annotations": {
                "kubectl.kubernetes.io/default-container": pod_names.SANDBOX_CONTAINER,
                # Evicting a sandbox to save a node would lose its state.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                pod_names.ATTEMPT: attempt,
            },
        },
        "spec": {
            **_placement(options),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": False,
            # Kubernetes takes lower case only; the case of a host name has no meaning.
            "hostname": spec.hostname.lower(),
            **pod_network.names(spec, options),
            "terminationGracePeriodSeconds": _GRACE_S,
            "activeDeadlineSeconds": math.ceil(options.lifetime_s),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "seccompProfile": _seccomp(options),
            },
            # In this order: the runner is there when its container is started.
            "containers": [_gate(options, () if by_rule else closed_to), _sandbox(spec, options)],
            "volumes": _volumes(sandbox_id, spec),
        },
    }
    if by_rule:
        _add_egress(manifest["spec"], sandbox_id, options, closed_to)
    return manifest


def _add_egress(
    pod_spec: dict[str, Any],
    sandbox_id: SandboxId,
    options: KubernetesOptions,
    closed_to: Sequence[str],
) -> None:
    """Add the egress process to a Pod whose network is decided by rule."""
    gate, sandbox = pod_spec["containers"]
    gate["command"] += pod_egress.gate_arguments()
    gate["volumeMounts"].append(pod_egress.shared_mount())
    sandbox["volumeMounts"].append(pod_egress.resolver_mount())
    pod_spec["initContainers"] = [pod_egress.init_container(options)]
    pod_spec["containers"] = [gate, pod_egress.container(options, closed_to), sandbox]
    pod_spec["volumes"] += pod_egress.volumes(sandbox_id)


def secret(
    sandbox_id: SandboxId, owner: str, attempt: str, content: Mapping[str, str]
) -> dict[str, Any]:
    """Return the Secret with the keys of one sandbox; `content` is in base64."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": pod_names.pod_name(sandbox_id),
            "labels": pod_names.labels(owner, sandbox_id),
            "annotations": {pod_names.ATTEMPT: attempt},
        },
        "type": "Opaque",
        "immutable": True,
        "data": dict(content),
    }


def _placement(options: KubernetesOptions) -> dict[str, Any]:
    away = [
        {
            "key": taint,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _NODE_AWAY_S,
        }
        for taint in _NODE_TAINTS
    ]
    # Without this, small Pods may all be placed on one node. It is a preference.
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {pod_names.LABEL: pod_names.CELL}},
    }
    placement: dict[str, Any] = {
        "tolerations": [*away, *(dict(toleration) for toleration in options.tolerations)],
        "topologySpreadConstraints": [spread],
    }
    if options.node_selector:
        placement["nodeSelector"] = dict(options.node_selector)
    if options.pull_secrets:
        placement["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    if options.runtime_class:
        placement["runtimeClassName"] = options.runtime_class
    if options.user_namespaces:
        placement["hostUsers"] = False
    return placement


def _seccomp(options: KubernetesOptions) -> dict[str, str]:
    if options.seccomp_profile:
        return {"type": "Localhost", "localhostProfile": options.seccomp_profile}
    return {"type": "RuntimeDefault"}


def _closed() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _gate(options: KubernetesOptions, closed_to: Sequence[str]) -> dict[str, Any]:
    return {
        "name": pod_names.GATE_CONTAINER,
        "image": options.runner_image,
        "imagePullPolicy": options.pull_policy,
        "command": [
            f"{options.programs}/sandkasten-gate",
            "--pod",
            str(options.port),
            pod_names.KEYS_DIR,
            pod_names.HAND_OVER,
            pod_names.LISTENER,
            *closed_to,
        ],
        "lifecycle": {"postStart": {"exec": {"command": _install(options)}}},
        # Why it could not start is then part of the Pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "gate", "containerPort": options.port, "protocol": "TCP"}],
        "securityContext": _closed(),
        "resources": {"requests": dict(_GATE_REQUESTS), "limits": dict(_GATE_LIMITS)},
        "volumeMounts": [
            {"name": "keys", "mountPath": pod_names.KEYS_DIR, "readOnly": True},
            {"name": "entry", "mountPath": pod_names.ENTRY_DIR},
            {"name": "gate", "mountPath": pod_names.GATE_DIR},
        ],
    }


def _install(options: KubernetesOptions) -> list[str]:
    """Return the command that copies the runner for the container `sandbox`.

    The kubelet starts containers in the order of the spec, and the next one after this hook has
    succeeded. An init container would do the same later: the kubelet notices its end when it looks
    at its containers, once a second.
    """
    return [f"{options.programs}/sandkasten-runner", "--install", pod_names.RUNNER_PATH]


def _sandbox(spec: CellSpec, options: KubernetesOptions) -> dict[str, Any]:
    return {
        "name": pod_names.SANDBOX_CONTAINER,
        "image": spec.image.id or spec.image.name,
        "imagePullPolicy": options.pull_policy,
        "command": _runner_command(spec, options),
        "workingDir": "/",
        "env": environment(spec),
        "securityContext": _closed(),
        "resources": resources(spec, options),
        "volumeMounts": [
            {"name": "entry", "mountPath": pod_names.ENTRY_DIR, "readOnly": True},
            {"name": "state", "mountPath": pod_names.STATE_DIR},
            {"name": "workspace", "mountPath": WORKSPACE},
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": TMP},
            {"name": "tmp", "mountPath": VAR_TMP},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  (a path inside the sandbox)
        ],
    }


def _runner_command(spec: CellSpec, options: KubernetesOptions) -> list[str]:
    return [
        pod_names.RUNNER_PATH,
        "--receive", pod_names.HAND_OVER,
        # Our own connections do not keep a sandbox from being idle.
        "--gate-port", str(options.port),
        # Below the mounted directory, which is root's and writable by all.
        "--state-dir", f"{pod_names.STATE_DIR}/runner",
        "--workspace", WORKSPACE,
        "--home", HOME,
        "--open-files", str(spec.limits.open_files),
    ]  # fmt: skip


def environment(spec: CellSpec) -> list[dict[str, str]]:
    """Return the variables that are ours to set. Those of the image are set by the runtime, and
    with them its PATH, which we do not know.
    """
    variables = base_environment(spec)
    if "PATH" not in spec.image.env and "PATH" not in spec.env:
        del variables["PATH"]
    # `$(NAME)` in a value would be replaced by the kubelet; `$$` stands for one `$`.
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in variables.items()]


def resources(spec: CellSpec, options: KubernetesOptions) -> dict[str, dict[str, str]]:
    limits = spec.limits
    milli = max(1, math.ceil(limits.cpus * _MILLI))
    return {
        "limits": {"cpu": f"{milli}m", "memory": str(limits.memory_bytes)},
        "requests": {
            "cpu": f"{max(1, math.floor(milli / options.overcommit))}m",
            "memory": str(max(1, math.floor(limits.memory_bytes / options.overcommit))),
        },
    }


def _volumes(sandbox_id: SandboxId, spec: CellSpec) -> list[dict[str, Any]]:
    limits = spec.limits
    return [
        {"name": "entry", "emptyDir": {"sizeLimit": str(_ENTRY_BYTES)}},
        {
            "name": "keys",
            "secret": {
                "secretName": pod_names.pod_name(sandbox_id),
                # Read by the gate, which is not root; no other container mounts it.
                "defaultMode": 0o444,
            },
        },
        _memory("gate", _SOCKET_BYTES),
        _memory("state", _STATE_BYTES),
        {"name": "workspace", "emptyDir": {"sizeLimit": str(limits.workspace_bytes)}},
        {"name": "home", "emptyDir": {"sizeLimit": str(limits.workspace_bytes)}},
        _memory("tmp", limits.tmp_bytes),
        _memory("shm", limits.tmp_bytes),
    ]


def _memory(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
