"""Open the backends of an engine, its ledger and its workspaces, from the settings.

A backend is opened when a request names it; `backends/backend_catalog.py` finds the plugins.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.plugins.plugin_failure import failure, is_its_own, opening
from sandkasten.ports.backend_plugins import BACKENDS_GROUP, BackendContext
from sandkasten.ports.pull_limits import PullLimits
from sandkasten_runtime.assembly.settings.settings_file import read_tree
from sandkasten_runtime.backends.lazy_backend import LazyBackend
from sandkasten_runtime.backends.plugin_rules import foreign_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandkasten.ports import Backend, EventSink, ImagePacker, Store, Workspaces
    from sandkasten.ports.backend_plugins import BackendPlugin
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.images.layers.image_store import LayerStore

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
        plugin.name for plugin in settings.backend_plugins if _shares(plugin, settings)
    )


def _shares(plugin: BackendPlugin, settings: Settings) -> bool:
    with opening(BACKENDS_GROUP, plugin.name):
        return plugin.shares(settings.plugins.get(plugin.name))


def open_backing(settings: Settings, layers: LayerStore, events: EventSink) -> Backing:
    """Return every backend of the settings' plugins; each is imported when a request names it.

    A plugin that opens a backend of another name is not used at all. One that raises an exception
    is a backend that is not available, and stops no other.
    """
    from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory
    from sandkasten_runtime.store.ledger_directory import DirectoryStore

    data_dir = prepare_data_dir(settings.data_dir)

    def packer() -> ImagePacker:
        from sandkasten_runtime.images.store_packer import StorePacker

        return StorePacker(layers)

    backends: dict[str, Backend] = {}
    for plugin in settings.backend_plugins:
        context = BackendContext(
            data_dir=data_dir,
            settings=settings.plugins.get(plugin.name),
            read_yaml=read_nested,
            packer=packer,
            pull_limits=settings.of(PullLimits),
            events=events,
        )
        opened = _opened(plugin, context)
        foreign = foreign_names(plugin, opened)
        if foreign:
            names = ", ".join(foreign)
            events.emit("plugin.unusable", {"backend": plugin.name, "foreign_names": names})
            continue
        backends.update(opened)
    return Backing(
        backends,
        DirectoryStore(data_dir / "ledger"),
        WorkspaceDirectory(data_dir / "workspaces", disk=settings.policy.disk),
    )


def _opened(plugin: BackendPlugin, context: BackendContext) -> Mapping[str, Backend]:
    try:
        return dict(plugin.open(context))
    except BaseException as exc:
        if not is_its_own(exc):
            raise
        raised = exc
    context.events.emit(
        "plugin.unusable", {"problem": failure(BACKENDS_GROUP, plugin.name, raised)}
    )

    def open_again() -> Backend:
        raise raised.with_traceback(None)

    # It may have sandboxes: with an existing directory, no sweep takes them for gone.
    return {
        plugin.name: LazyBackend(plugin.name, plugin.capabilities, context.data_dir, open_again)
    }


def prepare_data_dir(path: Path) -> Path:
    """Create the directory with mode 0700: its files give access to every sandbox."""
    try:
        path = path.absolute()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise InvalidConfiguration(
                f"data_dir {path} belongs to another user",
                hint="set SANDKASTEN_DATA_DIR to a directory that you own",
                setting="data_dir",
            )
        if stat.S_IMODE(status.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as exc:
        raise InvalidConfiguration(
            f"data_dir {path} cannot be used: {exc.strerror or type(exc).__name__}",
            hint="set SANDKASTEN_DATA_DIR to a directory that you can write",
            setting="data_dir",
        ) from exc
    return path
