"""What `doctor` shows of a cluster: its version, and the rights that we have in a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.model.sandbox.readiness import Requirement
from sandkasten_kubernetes import refusals
from sandkasten_kubernetes.api.cluster_client import ApiRefused

if TYPE_CHECKING:
    from sandkasten_kubernetes.agent_sandboxes import AgentSandboxes
    from sandkasten_kubernetes.api.cluster_client import ClusterClient
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions

_NEEDED: Final = (
    ("create", "pods", ""),
    ("get", "pods", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("delete", "pods", ""),
    ("create", "secrets", ""),
    ("get", "secrets", ""),
    ("list", "secrets", ""),
    ("delete", "secrets", ""),
)


async def of_cluster(client: ClusterClient, options: KubernetesOptions) -> list[Requirement]:
    """Return what is the same in every namespace. Raise BackendUnavailable."""
    version = await client.version()
    at = f"Kubernetes {version.get('gitVersion')} at {await client.server()}"
    return [
        Requirement("API server", True, f"{at}, namespace {await client.namespace()}"),
        Requirement(
            "runner image",
            bool(options.runner_image),
            options.runner_image or "not set",
            "set backends.kubernetes.runner_image to the image of the daemon",
        ),
    ]


async def of_namespace(
    client: ClusterClient,
    options: KubernetesOptions,
    sandboxes: AgentSandboxes,
    more: tuple[tuple[str, str, str], ...] = (),
) -> list[Requirement]:
    """Return what our credentials allow in the client's namespace; `more` is needed besides what
    every sandbox needs. Raise BackendUnavailable.
    """
    try:
        missing = [
            f"{verb} {kind}"
            for verb, kind, part in (*_NEEDED, *more)
            if not await client.may(verb, kind, part)
        ]
        streams = await client.may("create", "pods", "exec")
        agent_sandbox = await sandboxes.requirement()
    except ApiRefused as exc:
        raise refusals.translated(exc, "our permissions cannot be looked at") from exc
    lines = [
        Requirement(
            "permissions",
            not missing,
            "as needed" if not missing else f"missing: {', '.join(missing)}",
            refusals.give_rights(await client.namespace()),
        )
    ]
    if options.reach != "direct":
        lines.append(
            Requirement(
                "exec",
                streams,
                "as needed" if streams else "missing: create pods/exec",
                "needed only where Pods cannot be reached at their addresses",
                required=options.reach == "exec",
            )
        )
    return [*lines, agent_sandbox]
