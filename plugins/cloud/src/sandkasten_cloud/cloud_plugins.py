"""The plugin of each provider of machines. Imports nothing of it before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten_cloud.cloud_capabilities import configured
from sandkasten_cloud.e2b.e2b_capabilities import E2B
from sandkasten_cloud.e2b.e2b_options import E2bOptions
from sandkasten_cloud.fly.fly_capabilities import FLY
from sandkasten_cloud.fly.fly_options import FlyOptions
from sandkasten_cloud.modal.modal_capabilities import MODAL
from sandkasten_cloud.modal.modal_options import ModalOptions
from sandkasten_runtime.backends.lazy_backend import LazyBackend, with_library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.ports import Backend
    from sandkasten.ports.backend_plugins import BackendContext, PluginSettings
    from sandkasten_cloud.provider import Provider
    from sandkasten_cloud.provider_options import ProviderOptions


def _fly(options: Any, owner: str) -> Provider:
    from sandkasten_cloud.fly.fly_provider import FlyProvider

    return FlyProvider(options, owner)


def _e2b(options: Any, owner: str) -> Provider:
    from sandkasten_cloud.e2b.e2b_provider import E2bProvider

    return E2bProvider(options, owner)


def _modal(options: Any, owner: str) -> Provider:
    from sandkasten_cloud.modal.modal_provider import ModalProvider

    return ModalProvider(options, owner)


def _plugin(
    name: str,
    can: Capabilities,
    section: type[PluginSettings],
    provider: Callable[[Any, str], Provider],
) -> BackendPlugin:
    def opened(context: BackendContext) -> Mapping[str, Backend]:
        options: ProviderOptions = context.settings
        directory = context.data_dir / name
        capabilities = configured(options, name, can)

        def opener() -> Backend:
            from sandkasten_cloud.backend import CloudBackend
            from sandkasten_cloud.machine_records import MachineRecords

            records = MachineRecords(directory)
            owner = records.owner()
            machines = provider(options, owner)
            return CloudBackend(machines, records, owner, options, capabilities)

        def holds() -> bool:
            from sandkasten_cloud.machine_records import MachineRecords

            return bool(MachineRecords(directory).ids())

        opening = with_library(name, name, opener)
        return {name: LazyBackend(name, capabilities, directory, opening, holds)}

    return BackendPlugin(name, can, opened, settings=section)


FLY_PLUGIN: Final = _plugin("fly", FLY, FlyOptions, _fly)
E2B_PLUGIN: Final = _plugin("e2b", E2B, E2bOptions, _e2b)
MODAL_PLUGIN: Final = _plugin("modal", MODAL, ModalOptions, _modal)
