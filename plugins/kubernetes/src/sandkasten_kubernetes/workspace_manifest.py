"""Named workspaces in a cluster: claims, where a Pod mounts them, and our Pods that copy
and erase them. Pure.

A workspace has two directories, its files and its home. They are in its own claim, or beside
those of other workspaces in the one claim that the operator names. The kubelet makes a directory
that is not there, with the mode of the volume's root: it must be one level below that root to get
the group of the volume (`fsGroup`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import HOME, USER_ID, WORKSPACE
from sandkasten_kubernetes import pod_names

if TYPE_CHECKING:
    from sandkasten_kubernetes.kubernetes_options import (
        KubernetesOptions,
    )

VOLUME: Final = "kept"
ERASE, COPY = "erase", "copy"
_ROOT: Final = "/volume"
_SOURCE, _TARGET = "/source", "/target"
_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "32Mi"},
    "limits": {"cpu": "1", "memory": "256Mi"},
}
# A copy that takes longer is ended by its node.
_TASK_S: Final = 4 * 3600


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """Where the files of a workspace are."""

    claim: str
    files: str
    home: str


def place(owner: str, workspace: str, options: KubernetesOptions) -> KeptPlace:
    key = pod_names.workspace_key(owner, workspace)
    if options.workspace_claim:
        return KeptPlace(options.workspace_claim, f"{key}.files", f"{key}.home")
    return KeptPlace(key, "files", "home")


def claim(
    owner: str, workspace: str, size: int | str, options: KubernetesOptions, attempt: str
) -> dict[str, Any]:
    """Return the claim of one workspace."""
    spec: dict[str, Any] = {
        "accessModes": [options.workspace_access],
        "resources": {"requests": {"storage": str(size)}},
    }
    if options.workspace_class:
        spec["storageClassName"] = options.workspace_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": pod_names.workspace_key(owner, workspace),
            "labels": pod_names.claim_labels(owner, workspace),
            "annotations": {pod_names.NAME: workspace, pod_names.ATTEMPT: attempt},
        },
        "spec": spec,
    }


def mount(pod: dict[str, Any], owner: str, workspace: str, options: KubernetesOptions) -> None:
    """Give the Pod of a sandbox a workspace in place of its own empty directories."""
    key = pod_names.workspace_key(owner, workspace)
    at = place(owner, workspace, options)
    pod["metadata"]["labels"][pod_names.LABEL_CLAIM] = key
    spec = pod["spec"]
    spec["securityContext"].update(_group())
    subpaths = {WORKSPACE: at.files, HOME: at.home}
    dropped = set()
    for container in spec["containers"]:
        mounts = container["volumeMounts"]
        dropped |= {entry["name"] for entry in mounts if entry["mountPath"] in subpaths}
        container["volumeMounts"] = [
            {
                "name": VOLUME,
                "mountPath": entry["mountPath"],
                "subPath": subpaths[entry["mountPath"]],
            }
            if entry["mountPath"] in subpaths
            else entry
            for entry in mounts
        ]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in dropped]
    spec["volumes"].append(_volume(VOLUME, at.claim))
    if not options.workspace_claim and options.workspace_access == "ReadWriteOnce":
        spec["affinity"] = _beside_its_users(key)


def erase_task(owner: str, workspace: str, options: KubernetesOptions) -> dict[str, Any]:
    """Return the Pod that removes the directories of a workspace from the claim of all."""
    at = place(owner, workspace, options)
    containers = [
        _container(
            name,
            options,
            ["--erase", f"{_ROOT}/{directory}"],
            [{"name": VOLUME, "mountPath": _ROOT}],
        )
        for name, directory in (("files", at.files), ("home", at.home))
    ]
    return _task(ERASE, owner, workspace, options, containers, [_volume(VOLUME, at.claim)])


def copy_task(owner: str, source: str, target: str, options: KubernetesOptions) -> dict[str, Any]:
    """Return the Pod that copies a workspace. It marks the target as incomplete while it exists."""
    old, new = place(owner, source, options), place(owner, target, options)
    volumes = [_volume("source", old.claim)]
    into = "source"
    if new.claim != old.claim:
        into = "target"
        volumes.append(_volume(into, new.claim))
    containers = [
        _container(
            name,
            options,
            ["--copy", _SOURCE, _TARGET],
            [
                {"name": "source", "mountPath": _SOURCE, "subPath": old_path, "readOnly": True},
                {"name": into, "mountPath": _TARGET, "subPath": new_path},
            ],
        )
        for name, old_path, new_path in (
            ("files", old.files, new.files),
            ("home", old.home, new.home),
        )
    ]
    return _task(COPY, owner, target, options, containers, volumes)


def task_name(owner: str, workspace: str, what: str) -> str:
    return f"{pod_names.workspace_key(owner, workspace)}-{what}"


def _task(
    what: str,
    owner: str,
    workspace: str,
    options: KubernetesOptions,
    containers: list[dict[str, Any]],
    volumes: list[dict[str, Any]],
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": _TASK_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
            **_group(),
        },
        "tolerations": [dict(toleration) for toleration in options.tolerations],
        "containers": containers,
        "volumes": volumes,
    }
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": task_name(owner, workspace, what),
            "labels": {
                **pod_names.task_labels(owner, workspace),
                pod_names.LABEL_NETWORK: "closed",
            },
            "annotations": {pod_names.NAME: workspace},
        },
        "spec": spec,
    }


def _container(
    name: str, options: KubernetesOptions, words: list[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "image": options.runner_image,
        "imagePullPolicy": options.pull_policy,
        "command": [f"{options.programs}/sandkasten-runner", *words],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": _RESOURCES,
        "volumeMounts": mounts,
    }


def _volume(name: str, claim_name: str) -> dict[str, Any]:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim_name}}


def _group() -> dict[str, Any]:
    # Once: to look at all files of a volume at each start would change their modes, and take long.
    return {"fsGroup": USER_ID, "fsGroupChangePolicy": "OnRootMismatch"}


def _beside_its_users(key: str) -> dict[str, Any]:
    """Return the rule that places a Pod on the node of the Pods that have the same workspace. The
    first one, which only matches itself, may be placed anywhere.
    """
    term = {
        "labelSelector": {"matchLabels": {pod_names.LABEL_CLAIM: key}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
