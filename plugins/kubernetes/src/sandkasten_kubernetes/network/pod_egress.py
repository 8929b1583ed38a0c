"""The network of a Pod by rule: an egress process in its own container. Pure.

All containers of a Pod share one network. An init container with NET_ADMIN sets rules in the kernel
by user id: connections and lookups of the sandbox lead to the egress process on loopback, nothing
else of it leaves the Pod, and only the gate is reached from outside. The egress process has another
user id and reaches the outside, as far as the NetworkPolicy for the class `rules` allows. See
`runner/src/launch/pod.rs` and decision 34.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.sandbox.cell_spec import USER_ID
from sandkasten_kubernetes import pod_names
from sandkasten_runtime.linux import egress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions

EGRESS_USER: Final = 1001
# Programs in the sandbox find no other name server, whatever address this is.
RESOLVER: Final = "198.18.0.1"
_PORT: Final = 65053
_CONFIG, _PLAN, _RESOLV = "egress.json", "launch.json", "resolv.conf"
_FILES_DIR: Final = f"{pod_names.NETWORK_DIR}-files"
_RECORDS_BYTES: Final = 8 << 20
_REQUESTS: Final = {"cpu": "10m", "memory": "16Mi"}
_LIMITS: Final = {"cpu": "500m", "memory": "96Mi"}


def secret_files(spec: CellSpec, options: KubernetesOptions) -> dict[str, str]:
    """Return what the Secret contains besides keys, in base64."""
    # Without name servers of the operator, the process uses those of its Pod.
    servers = list(spec.ceiling.servers)
    config = {**egress.config(spec.network, spec.ceiling), "servers": servers}
    plan = {"user": USER_ID, "egress": EGRESS_USER, "port": _PORT, "gate": options.port}
    files = {
        _CONFIG: json.dumps(config),
        _PLAN: json.dumps({"pod": plan}),
        _RESOLV: f"nameserver {RESOLVER}\n",
    }
    return {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}


def gate_arguments() -> list[str]:
    """Return what the gate receives about the egress process."""
    return ["--network", pod_names.NETWORK_DIR]


def init_container(options: KubernetesOptions) -> dict[str, Any]:
    """Return the container that sets the rules, before any other one starts."""
    return {
        "name": pod_names.NETWORK_CONTAINER,
        "image": options.runner_image,
        "imagePullPolicy": options.pull_policy,
        "command": [f"{options.programs}/sandkasten-launch", f"{_FILES_DIR}/{_PLAN}"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            **_closed(0),
            "runAsNonRoot": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
        "resources": {"requests": dict(_REQUESTS), "limits": dict(_LIMITS)},
        "volumeMounts": [_files_mount()],
    }


def container(options: KubernetesOptions, closed_to: Sequence[str]) -> dict[str, Any]:
    """Return the container of the egress process. It waits until the addresses `closed_to` are out
    of its reach.
    """
    return {
        "name": pod_names.EGRESS_CONTAINER,
        "image": options.runner_image,
        "imagePullPolicy": options.pull_policy,
        "command": [
            f"{options.programs}/sandkasten-egress",
            "--pod",
            f"{_FILES_DIR}/{_CONFIG}",
            pod_names.NETWORK_DIR,
            str(_PORT),
            *closed_to,
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _closed(EGRESS_USER),
        "resources": {"requests": dict(_REQUESTS), "limits": dict(_LIMITS)},
        "volumeMounts": [_files_mount(), shared_mount()],
    }


def _closed(user: int) -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": user,
        "runAsGroup": user,
        # The filter of sandboxes has no messages to the kernel's network.
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _files_mount() -> dict[str, Any]:
    return {"name": "network-files", "mountPath": _FILES_DIR, "readOnly": True}


def shared_mount() -> dict[str, Any]:
    """Return the directory that gate and egress process share."""
    return {"name": "network", "mountPath": pod_names.NETWORK_DIR}


def resolver_mount() -> dict[str, Any]:
    """Return the file in which programs in the sandbox find their name server."""
    path = f"/etc/{_RESOLV}"
    return {"name": "resolver", "mountPath": path, "subPath": _RESOLV, "readOnly": True}


def volumes(sandbox_id: SandboxId) -> list[dict[str, Any]]:
    def files(*names: str) -> dict[str, Any]:
        items = [{"key": name, "path": name} for name in names]
        source = {"secretName": pod_names.pod_name(sandbox_id), "items": items}
        return {"secret": {**source, "defaultMode": 0o444}}

    size = {"medium": "Memory", "sizeLimit": str(_RECORDS_BYTES)}
    return [
        {"name": "network-files", **files(_CONFIG, _PLAN)},
        {"name": "resolver", **files(_RESOLV)},
        {"name": "network", "emptyDir": size},
    ]
