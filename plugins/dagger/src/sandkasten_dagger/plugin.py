"""The plugin of the backend dagger. Imports nothing of it before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten_dagger.capabilities import DAGGER, dagger_capabilities
from sandkasten_dagger.dagger_options import DaggerOptions
from sandkasten_runtime.backends.lazy_backend import LazyBackend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports import Backend
    from sandkasten.ports.backend_plugins import BackendContext


def _open(context: BackendContext) -> Mapping[str, Backend]:
    options: DaggerOptions = context.settings

    def opener() -> Backend:
        from sandkasten_dagger.backend import DaggerBackend

        return DaggerBackend(context.data_dir, options, packer=context.packer())

    can = dagger_capabilities(options)
    return {"dagger": LazyBackend("dagger", can, context.data_dir / "dagger", opener)}


PLUGIN: Final = BackendPlugin("dagger", DAGGER, _open, settings=DaggerOptions)
