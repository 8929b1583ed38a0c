"""The composition root: build an engine from the settings."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandkasten.daemon.settings.settings_file import read_tree
from sandkasten.engine.clock import SystemClock
from sandkasten.engine.engine import Engine
from sandkasten.errors import BackendUnavailable, InvalidConfiguration
from sandkasten.images.catalog import Images
from sandkasten.images.image_sources import Sources
from sandkasten.images.layers.image_store import LayerStore
from sandkasten.images.packages.provisioner import Provisioner
from sandkasten.linux.storage.host_mount_check import HostMountCheck
from sandkasten.model.optional_extras import install_command
from sandkasten.telemetry.log_events import LogEvents

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.ports import Backend, EventSink, FileStore, Journal, Store, Workspaces


@dataclass(frozen=True, slots=True)
class Backing:
    """The parts below an engine: backends, the ledger of their sandboxes, named workspaces."""

    backends: Mapping[str, Backend]
    store: Store
    workspaces: Workspaces


async def open_engine(
    settings: Settings,
    *,
    events: EventSink | None = None,
    journal: Journal | None = None,
    stored_files: FileStore | None = None,
) -> Engine:
    """Open an engine, which sweeps once in the background. Requires Linux."""
    if sys.platform != "linux":
        raise BackendUnavailable(
            "the embedded engine requires Linux",
            hint="run the daemon on a Linux machine and pass its address as url",
        )
    layers = LayerStore(settings.data_dir.absolute() / "images")
    backing = open_backing(settings, layers)
    sources = Sources(
        layers,
        registries=settings.registries,
        pull_timeout_s=settings.pull_timeout_s,
        read_recipe=read_tree,
    )
    images = Images(
        layers,
        allowed=settings.allowed_images,
        strict=settings.images_strict,
        aliases=settings.image_aliases,
        pull=settings.images_pull,
        sources=sources,
    )
    packages = Provisioner(settings.data_dir.absolute() / "packages", settings.packages, os.environ)
    engine = Engine(
        backends=backing.backends,
        default_backend=settings.backend,
        store=backing.store,
        images=images,
        library=images,
        policy=settings.policy,
        clock=SystemClock(),
        events=events if events is not None else LogEvents(),
        oneshot_spares=settings.oneshot_spares,
        workspaces=backing.workspaces,
        host_mounts=HostMountCheck(settings.data_dir),
        journal=journal,
        packages=packages,
        stored_files=stored_files,
    )
    engine.sweep_soon()
    return engine


def open_backing(settings: Settings, layers: LayerStore) -> Backing:
    """Open the default backend; import the others when a request names them."""
    from sandkasten.backends.local import LocalBackend
    from sandkasten.daemon.lazy_backends import LazyBackend, LazyImageBackend
    from sandkasten.linux.storage.named_volumes import NamedVolumes
    from sandkasten.store.ledger_directory import DirectoryStore

    data_dir = prepare_data_dir(settings.data_dir)

    def oci() -> Backend:
        from sandkasten.backends.oci import OciBackend

        return OciBackend(data_dir, settings.oci_runtime, strict=settings.oci_strict)

    def gvisor() -> Backend:
        from sandkasten.backends.oci import OciBackend

        return OciBackend(data_dir, "runsc")

    def docker() -> Backend:
        return _docker(settings, data_dir, layers)

    backends: dict[str, Backend] = {
        "local": LocalBackend(data_dir),
        "oci": LazyBackend("oci", data_dir / "oci", oci),
        "gvisor": LazyBackend("gvisor", data_dir / "gvisor", gvisor),
        "docker": LazyImageBackend("docker", data_dir / "docker", docker),
    }
    return Backing(
        backends, DirectoryStore(data_dir / "ledger"), NamedVolumes(data_dir / "workspaces")
    )


def _docker(settings: Settings, data_dir: Path, layers: LayerStore) -> Backend:
    """Raise BackendUnavailable if the settings contradict each other or the library is missing."""
    trouble = settings.docker.trouble
    if trouble is not None:
        raise BackendUnavailable(trouble.message, hint=trouble.hint, backend="docker")
    try:
        from sandkasten.backends.docker.backend import DockerBackend
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "sandkasten":
            raise
        raise BackendUnavailable(
            f"backend docker requires the library {exc.name}, which is not installed",
            hint=install_command("docker"),
            backend="docker",
        ) from exc
    from sandkasten.images.store_packer import StorePacker

    return DockerBackend(data_dir, settings.docker.options, packer=StorePacker(layers))


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
