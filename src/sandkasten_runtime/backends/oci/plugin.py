"""The plugin of the backends oci and gvisor. Imports nothing of it before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten_runtime.backends.lazy_backend import LazyBackend
from sandkasten_runtime.backends.oci.capabilities import GVISOR, OCI
from sandkasten_runtime.backends.oci.oci_options import OciOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports import Backend
    from sandkasten.ports.backend_plugins import BackendContext


def _open_oci(context: BackendContext) -> Mapping[str, Backend]:
    options: OciOptions = context.settings

    def opener() -> Backend:
        from sandkasten_runtime.backends.oci.backend import OciBackend
        from sandkasten_runtime.backends.oci.cdi import DeviceSpecs

        devices = DeviceSpecs(options.cdi_dirs, options.cdi_hooks, context.read_yaml)
        return OciBackend(context.data_dir, options.runtime, strict=options.strict, devices=devices)

    return {"oci": LazyBackend("oci", OCI, context.data_dir / "oci", opener)}


def _open_gvisor(context: BackendContext) -> Mapping[str, Backend]:
    def opener() -> Backend:
        from sandkasten_runtime.backends.oci.backend import OciBackend

        return OciBackend(context.data_dir, "runsc")

    return {"gvisor": LazyBackend("gvisor", GVISOR, context.data_dir / "gvisor", opener)}


OCI_PLUGIN: Final = BackendPlugin("oci", OCI, _open_oci, settings=OciOptions)
GVISOR_PLUGIN: Final = BackendPlugin("gvisor", GVISOR, _open_gvisor)
