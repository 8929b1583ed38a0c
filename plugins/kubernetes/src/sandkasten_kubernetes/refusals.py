"""Named errors for what a cluster, or this backend, does not do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    InvalidRequest,
    PayloadTooLarge,
    PolicyDenied,
    QuotaExceeded,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.sandbox.workspace import plain_name
from sandkasten_kubernetes import pod_network

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_kubernetes.api.cluster_client import ApiRefused
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions

# What provisioners report when they have no room left.
_FULL = ("no space", "not enough", "insufficient", "exceed", "quota", "exhausted", "capacity")
_FORBIDDEN, _NOT_FOUND, _TOO_LARGE, _INVALID = 403, 404, 413, 422


def check(spec: CellSpec, options: KubernetesOptions) -> None:
    """Raise for requests that this backend does not support, before anything is made."""
    if not options.runner_image:
        raise BackendUnavailable(
            "backend kubernetes does not know an image that has the runner",
            hint="set backends.kubernetes.runner_image to the image of the daemon",
            backend="kubernetes",
        )
    network = pod_network.refusal(spec.network, options)
    if network is not None:
        raise network
    if spec.image.kind != "engine":
        raise store_image(spec.image)
    if spec.profile == "dev":
        raise UnsupportedByBackend(
            "backend kubernetes does not support the dev profile, in which the user is root",
            hint="use the hardened profile, or the local backend",
        )
    if spec.writable_root:
        raise UnsupportedByBackend(
            "backend kubernetes does not support a writable root",
            hint="set defaults.readonly_rootfs: true",
        )
    if spec.workspace is not None and not options.keeps_workspaces:
        raise workspaces()
    if spec.mounts:
        raise mounts()
    if spec.gpus is not None:
        raise UnsupportedByBackend(
            "backend kubernetes does not support gpus",
            hint="use the docker or the oci backend",
            field="gpus",
        )
    for name, value in spec.env.items():
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise UnsupportedByBackend(
                f"backend kubernetes does not support bytes that are not UTF-8, as in variable "
                f"{name}: the cluster would change them",
                hint="set the variable for each command, or write the bytes to a file",
                field="env",
            ) from exc


def store_image(image: Image) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"a cluster cannot use image {image.name}, which is in the store of this daemon",
        hint="push it to a registry that the nodes reach, and name it in full",
        image=image.name,
    )


def mounts() -> UnsupportedByBackend:
    return UnsupportedByBackend(
        "backend kubernetes does not support mounts and packages: the nodes do not have this "
        "machine's files",
        hint="use an image that contains them",
    )


def workspaces() -> UnsupportedByBackend:
    return UnsupportedByBackend(
        "backend kubernetes keeps no named workspaces here",
        hint="set backends.kubernetes.workspaces.enabled: true, or use the file store to carry "
        "files from one session to the next",
        setting="backends.kubernetes.workspaces.enabled",
    )


def unmade(sandbox_id: SandboxId, exc: ApiRefused) -> SandkastenError:
    """Return the error for a Pod that the API server did not accept."""
    what = f"the cluster refused sandbox {sandbox_id}: {exc.message}"
    if exc.exists:
        return Conflict(what, hint="use another id")
    if exc.over_quota:
        return QuotaExceeded(what, hint=f"destroy sandboxes, request less, or {_more_quota(exc)}")
    if exc.outside_limit_range:
        return _outside_range(what)
    if exc.status == _FORBIDDEN and "violates PodSecurity" in exc.message:
        return PolicyDenied(
            what,
            hint="the namespace must allow the level restricted of Pod Security, and privileged "
            "with backends.kubernetes.networks.rules",
        )
    if exc.status == _TOO_LARGE:
        return PayloadTooLarge(
            what, hint="give fewer or shorter variables in env; write larger data to a file"
        )
    if exc.status == _INVALID:
        return InvalidRequest(what, hint="check the image's name and backends.kubernetes")
    return translated(exc, f"sandbox {sandbox_id} could not be made")


def _outside_range(what: str) -> PolicyDenied:
    # To wait would not help, and other requests are not concerned.
    return PolicyDenied(what, hint="request limits that the LimitRange of the namespace allows")


def _more_quota(exc: ApiRefused) -> str:
    of = f" of namespace {exc.namespace}" if exc.namespace else ""
    return f"raise the ResourceQuota{of}"


def give_rights(namespace: str) -> str:
    """Return the hint for missing rights. A namespace that does not exist looks the same."""
    return (
        f"create namespace {namespace} if it does not exist, and give the daemon's service account "
        "the Role in docs/guides/kubernetes.md there"
    )


def translated(exc: ApiRefused, what: str) -> SandkastenError:
    if not exc.namespace:
        hints = {
            _FORBIDDEN: give_rights("backends.kubernetes.namespace"),
            _NOT_FOUND: "check backends.kubernetes.namespace",
        }
        hint = hints.get(exc.status, "see the API server's own log")
        return BackendUnavailable(f"{what}: {exc.message}", hint=hint)
    hints = {
        _FORBIDDEN: give_rights(exc.namespace),
        _NOT_FOUND: f"create namespace {exc.namespace}, or correct "
        "backends.kubernetes.tenant_namespaces",
    }
    return BackendUnavailable(
        f"{what} in namespace {exc.namespace}: {exc.message}",
        hint=hints.get(exc.status, "see the API server's own log"),
        place=exc.namespace,
    )


# ---- named workspaces


def unmade_claim(workspace: str, exc: ApiRefused) -> SandkastenError:
    """Return the error for a workspace whose objects the API server did not accept."""
    what = f"workspace {plain_name(workspace)} could not be made: {exc.message}"
    if exc.over_quota:
        return QuotaExceeded(what, hint=f"delete workspaces, request less, or {_more_quota(exc)}")
    if exc.outside_limit_range:
        return _outside_range(what)
    if exc.status == _INVALID:
        return InvalidRequest(what, hint="check backends.kubernetes.workspaces")
    return translated(exc, f"workspace {plain_name(workspace)} could not be made")


def no_volume(workspace: str, namespace: str, reason: str) -> SandkastenError:
    """Return the error for a claim that stays without a volume, and is removed."""
    what = f"the cluster has no volume for workspace {plain_name(workspace)}"
    what += f": {reason}" if reason else " and gives no reason"
    if any(word in reason.lower() for word in _FULL):
        return QuotaExceeded(
            what, hint="delete workspaces, request less, or give the storage class more space"
        )
    return BackendUnavailable(
        what,
        hint="check backends.kubernetes.workspaces.storage_class and its provisioner; see "
        f"kubectl -n {namespace} get events",
    )


def no_claim(workspace: str, claim: str, reason: str) -> SandkastenError:
    return BackendUnavailable(
        f"workspace {plain_name(workspace)} cannot be used: {reason}",
        hint=f"create the claim {claim}, or change backends.kubernetes.workspaces.claim",
    )


def not_mounted(workspace: str, reason: str) -> SandkastenError:
    return BackendUnavailable(
        f"workspace {plain_name(workspace)} could not be mounted: {reason}",
        hint="try again; a volume with ReadWriteOnce may still be attached to another node",
    )


def not_enlarged(workspace: str, exc: ApiRefused) -> SandkastenError:
    what = f"workspace {plain_name(workspace)} could not be enlarged: {exc.message}"
    if exc.over_quota:
        return QuotaExceeded(what, hint=_more_quota(exc))
    if exc.status == _FORBIDDEN and "resize" in exc.message:
        return UnsupportedByBackend(
            what,
            hint="use a StorageClass with allowVolumeExpansion: true, or copy the files to a "
            "larger workspace",
        )
    return translated(exc, f"workspace {plain_name(workspace)} could not be enlarged")


def still_used(workspace: str, namespace: str, pod: str) -> SandkastenError:
    return Busy(
        f"workspace {plain_name(workspace)} may still be written by Pod {pod}, which has not ended",
        hint="try again; if its node is gone for good: "
        f"kubectl -n {namespace} delete pod {pod} --grace-period=0 --force",
        workspace=plain_name(workspace),
    )


def still_removed(workspace: str, namespace: str, claim: str) -> SandkastenError:
    return Busy(
        f"the claim {claim} of workspace {plain_name(workspace)} is still being removed",
        hint=f"try again; kubectl -n {namespace} describe pvc {claim} shows the Pods that use it",
        workspace=plain_name(workspace),
    )


def failed_task(workspace: str, reason: str) -> SandkastenError:
    what = f"the files of workspace {plain_name(workspace)} could not be copied or erased: {reason}"
    if any(word in reason.lower() for word in _FULL):
        return QuotaExceeded(what, hint="enlarge the workspace, or delete files")
    return BackendUnavailable(
        what, hint="the root of the volume must be writable for user and group 1000"
    )
