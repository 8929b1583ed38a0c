"""Named errors for what a cluster, or this backend, does not do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.backends.kubernetes import pod_network
from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    PayloadTooLarge,
    PolicyDenied,
    QuotaExceeded,
    SandkastenError,
    UnsupportedByBackend,
)

if TYPE_CHECKING:
    from sandkasten.backends.kubernetes.api.cluster_client import ApiRefused
    from sandkasten.backends.kubernetes.kubernetes_options import KubernetesOptions
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec

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
    if spec.workspace is not None:
        raise UnsupportedByBackend(
            "backend kubernetes does not support named workspaces",
            hint="use the file store to carry files from one session to the next",
        )
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


def unmade(sandbox_id: SandboxId, exc: ApiRefused) -> SandkastenError:
    """Return the error for a Pod that the API server did not accept."""
    what = f"the cluster refused sandbox {sandbox_id}: {exc.message}"
    if exc.exists:
        return Conflict(what, hint="use another id")
    if exc.over_quota:
        return QuotaExceeded(
            what, hint="destroy sandboxes, request less, or raise the namespace's ResourceQuota"
        )
    if exc.status == _FORBIDDEN and "violates PodSecurity" in exc.message:
        return PolicyDenied(
            what, hint="the namespace must allow the level restricted of Pod Security"
        )
    if exc.status == _TOO_LARGE:
        return PayloadTooLarge(
            what, hint="give fewer or shorter variables in env; write larger data to a file"
        )
    if exc.status == _INVALID:
        return InvalidRequest(what, hint="check the image's name and backends.kubernetes")
    return translated(exc, f"sandbox {sandbox_id} could not be made")


def translated(exc: ApiRefused, what: str) -> SandkastenError:
    role = "give the daemon's service account the Role in docs/guides/kubernetes.md"
    if not exc.namespace:
        hints = {_FORBIDDEN: role, _NOT_FOUND: "check backends.kubernetes.namespace"}
        hint = hints.get(exc.status, "see the API server's own log")
        return BackendUnavailable(f"{what}: {exc.message}", hint=hint)
    hints = {
        _FORBIDDEN: f"{role}, in namespace {exc.namespace}",
        _NOT_FOUND: f"create namespace {exc.namespace}, or correct "
        "backends.kubernetes.tenant_namespaces",
    }
    return BackendUnavailable(
        f"{what} in namespace {exc.namespace}: {exc.message}",
        hint=hints.get(exc.status, "see the API server's own log"),
        place=exc.namespace,
    )
