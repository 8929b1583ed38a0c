"""The unisolated backend as a choice of the setting `backend`, in this process alone.

The product knows nothing of it: `install` adds its name to the choices and has the engine assembly
open it. `python -m tests.unisolated` is the command line of a process where that was done.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten_runtime.assembly import backend_registry
from sandkasten_runtime.assembly.settings import backend_names
from tests.store.memory_store import MemoryStore
from tests.unisolated.backend import UnisolatedBackend

if TYPE_CHECKING:
    from sandkasten.ports import EventSink
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.images.layers.image_store import LayerStore

NAME: Final = UnisolatedBackend.name
REPOSITORY: Final = Path(__file__).resolve().parents[2]


def install() -> None:
    """Twice is fine."""
    if NAME in backend_names.BACKENDS:
        return
    backend_names.BACKENDS = (*backend_names.BACKENDS, NAME)
    open_others = backend_registry.open_backing

    def open_backing(
        settings: Settings, layers: LayerStore, events: EventSink
    ) -> backend_registry.Backing:
        if settings.named("backend") != NAME:
            return open_others(settings, layers, events)
        # Sandboxes of one process: a ledger that other processes read would be wrong.
        backend = UnisolatedBackend(settings.data_dir / NAME)
        return backend_registry.Backing({NAME: backend}, MemoryStore(), backend.workspaces)

    backend_registry.open_backing = open_backing


def environ(**more: str) -> dict[str, str]:
    """The environment of a process that finds this package."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **more}
