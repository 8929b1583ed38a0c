"""The plugin of the backend local. Imports nothing of it before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten_runtime.backends.local.capabilities import LOCAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports import Backend
    from sandkasten.ports.backend_plugins import BackendContext


def _open(context: BackendContext) -> Mapping[str, Backend]:
    from sandkasten_runtime.backends.local.backend import LocalBackend

    return {"local": LocalBackend(context.data_dir)}


PLUGIN: Final = BackendPlugin("local", LOCAL, _open)
