"""The capabilities of backend kubernetes. Imports nothing of the backend itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.model.backends.backend_features import ALL_NETWORKS, BackendFeatures
from sandkasten.model.backends.capabilities import Capabilities

if TYPE_CHECKING:
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions

# For everything of a create but the start of its Pods.
_ANSWERS_S: Final = 60.0
KUBERNETES: Final = Capabilities(
    strength=1,
    external=True,
    platform="cluster",
    own_images=True,
    own_workspaces=True,
    maintains_workspaces=True,
    remote=True,
    refuses_networks=True,
    features=BackendFeatures(
        summary="Pods of a cluster",
        sessions=True,
        networks=ALL_NETWORKS,
        network_updates=True,
        limits=("cpu", "memory"),
        workspaces=True,
        notes=(
            "A network requires backends.kubernetes.networks.full or .rules; without them there is "
            "none.",
            "Only rules can be changed later, and only with .rules.",
            "Named workspaces require backends.kubernetes.workspaces.enabled.",
            "Images are those of a registry that the nodes reach.",
        ),
    ),
)


def kubernetes_capabilities(options: KubernetesOptions) -> Capabilities:
    # The first create may wait for trial Pods: one, and one more that tries its network.
    pods = 3 if options.network_policy == "checked" else 2
    return replace(
        KUBERNETES,
        # The nodes pull images.
        pulls="never" if options.pull_policy == "Never" else "missing",
        # The class of a Pod cannot be changed, its rules can.
        fixed_network=not options.network_rules,
        create_timeout_s=pods * options.start_s + _ANSWERS_S,
        places=options.tenant_namespaces,
        default_place=options.namespace,
    )
