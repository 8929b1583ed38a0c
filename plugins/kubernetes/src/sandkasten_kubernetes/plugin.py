"""The plugin of the backend kubernetes. Imports nothing of it before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten_kubernetes.capabilities import KUBERNETES, kubernetes_capabilities
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_runtime.backends.lazy_backend import LazyBackend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports import Backend
    from sandkasten.ports.backend_plugins import BackendContext


def _open(context: BackendContext) -> Mapping[str, Backend]:
    options: KubernetesOptions = context.settings

    def opener() -> Backend:
        from sandkasten_kubernetes.tenant_namespaces import TenantNamespaces

        return TenantNamespaces(context.data_dir, options, context.read_yaml)

    # With its own name, an installation may own Pods that another data directory made.
    home = context.data_dir if options.installation else context.data_dir / "kubernetes"
    can = kubernetes_capabilities(options)
    return {"kubernetes": LazyBackend("kubernetes", can, home, opener)}


def _shares(options: KubernetesOptions) -> bool:
    # Without its own name, an installation is one data directory.
    return bool(options.installation)


PLUGIN: Final = BackendPlugin(
    "kubernetes", KUBERNETES, _open, settings=KubernetesOptions, shares=_shares
)
