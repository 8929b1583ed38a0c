"""Open the backends of an engine, its ledger and its workspaces, from the settings.

A backend is opened when a request names it; `backends/backend_catalog.py` lists the plugins.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from sandkasten.backends.backend_catalog import PLUGINS
from sandkasten.daemon.settings.settings_file import read_tree
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.backend_plugins import BackendContext

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.images.layers.image_store import LayerStore
    from sandkasten.ports import Backend, EventSink, ImagePacker, Store, Workspaces

# A specification of devices nests deeper than settings, and so does a kubeconfig.
read_nested = partial(read_tree, max_depth=12)


@dataclass(frozen=True, slots=True)
class Backing:
    """The parts below an engine: backends, the ledger of their sandboxes, named workspaces."""

    backends: Mapping[str, Backend]
    store: Store
    workspaces: Workspaces


def shared_backends(settings: Settings) -> frozenset[str]:
    """Return the backends whose sandboxes every daemon of `store.url` can reach. Their rows in the
    ledger belong to all of these daemons, and not to the one that made them.
    """
    return frozenset(
        plugin.name for plugin in PLUGINS if plugin.shares(settings.plugins.get(plugin.name))
    )


def open_backing(settings: Settings, layers: LayerStore, events: EventSink) -> Backing:
    """Return every backend of the catalog; each is imported when a request names it."""
    from sandkasten.linux.storage.workspace_directory import WorkspaceDirectory
    from sandkasten.store.ledger_directory import DirectoryStore

    data_dir = prepare_data_dir(settings.data_dir)

    def packer() -> ImagePacker:
        from sandkasten.images.store_packer import StorePacker

        return StorePacker(layers)

    backends: dict[str, Backend] = {}
    for plugin in PLUGINS:
        context = BackendContext(
            data_dir=data_dir,
            settings=settings.plugins.get(plugin.name),
            read_yaml=read_nested,
            packer=packer,
            pull_limits=settings.pull_limits,
            events=events,
        )
        backends.update(plugin.open(context))
    return Backing(
        backends,
        DirectoryStore(data_dir / "ledger"),
        WorkspaceDirectory(data_dir / "workspaces", disk=settings.policy.disk),
    )


def prepare_data_dir(path: Path) -> Path:
    """Create the directory with mode 0700: its files give access to every sandbox."""
    try:
        path = path.absolute()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise InvalidConfiguration(
                f"data_dir {path} belongs to another user",
                hint="set SANDKASTEN_DATA_DIR to a directory that you own",
                setting="data_dir",
            )
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as exc:
        raise InvalidConfiguration(
            f"data_dir {path} cannot be used: {exc.strerror or type(exc).__name__}",
            hint="set SANDKASTEN_DATA_DIR to a directory that you can write",
            setting="data_dir",
        ) from exc
    return path
