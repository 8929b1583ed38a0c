"""The registry of backends: add a backend here, and it can be named in settings and requests.

Its strength is listed in `model/sandbox/isolation_levels.py`, its name in `BACKENDS` of
`daemon/settings/backends/backend_names.py` and of `cli/completions.py`; `doctor` lists it in
`engine/lifecycle/isolation_tiers.py`. Most processes need one backend, so the others are imported
on first use. A backend whose directory does not exist owns nothing, so a sweep need not import it
either. One that cannot be opened reports the reason in `probe`; other calls raise
BackendUnavailable.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from functools import partial
from typing import TYPE_CHECKING

from sandkasten.daemon.settings.docker_settings import DockerSettings
from sandkasten.daemon.settings.settings_file import read_tree
from sandkasten.errors import BackendUnavailable, InternalError, InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import install_command
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten.ports import (
    Closes,
    Discards,
    FixesNetworks,
    KeepsImages,
    KeepsWorkspaces,
    MaintainsWorkspaces,
    Pings,
    Places,
    RefusesNetworks,
    Remote,
    RunsOnce,
    StartsSlowly,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sandkasten.backends.cloud.machine_plan import CloudOptions, ProviderOptions
    from sandkasten.backends.cloud.provider import Provider
    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.errors import UnsupportedByBackend
    from sandkasten.images.layers.image_store import LayerStore
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.model.sandbox.oneshot_values import RunOrder, RunOutcome
    from sandkasten.ports import Backend, Cell, EventSink, Store, Workspaces

# A specification of devices nests deeper than settings, and so does a kubeconfig.
_DEVICE_DEPTH = 12
read_kubeconfig = partial(read_tree, max_depth=_DEVICE_DEPTH)


class LazyBackend:
    """A `ports.Backend`; `directory` holds everything that the backend may own."""

    def __init__(self, name: str, directory: Path, opener: Callable[[], Backend]) -> None:
        self._name = name
        self._directory = directory
        self._opener = opener
        self._opening = threading.Lock()
        self._opened: Backend | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def _backend(self) -> Backend:
        return self._opened or self._open()

    def _open(self) -> Backend:
        with self._opening:
            if self._opened is None:
                self._opened = self._opener()
        return self._opened

    async def _ready(self) -> Backend:
        """Return the backend. Open it in a thread: some libraries take half a second to import, and
        other requests must not wait for that.
        """
        return await asyncio.to_thread(self._open) if self._opened is None else self._opened

    async def probe(self) -> Readiness:
        try:
            backend = await self._ready()
        except BackendUnavailable as exc:
            return Readiness(ready=False, reason=exc.message, remedy=exc.hint)
        return await backend.probe()

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        return await (await self._ready()).create(sandbox_id, spec)

    async def attach(self, sandbox_id: SandboxId) -> Cell:
        return await (await self._ready()).attach(sandbox_id)

    async def owned(self) -> Sequence[SandboxId]:
        if not self._directory.exists():
            return ()
        return await (await self._ready()).owned()

    async def discard(self, sandbox_id: SandboxId) -> None:
        if self._directory.exists():
            backend = await self._ready()
            if isinstance(backend, Discards):
                await backend.discard(sandbox_id)

    async def aclose(self) -> None:
        """Close the backend if it was opened."""
        if isinstance(self._opened, Closes):
            await self._opened.aclose()


class LazyImageBackend(LazyBackend):
    """A lazy backend that is a `ports.KeepsImages`, `ports.KeepsWorkspaces`,
    `ports.MaintainsWorkspaces`, `ports.Pings`, `ports.Places`, `ports.Remote`,
    `ports.RefusesNetworks` and `ports.StartsSlowly`; the engine tests for these.
    """

    @property
    def _keeper(self) -> KeepsImages:
        backend = self._backend
        if not isinstance(backend, KeepsImages):
            raise InternalError(
                f"backend {self._name} does not keep images", hint="open it as a LazyBackend"
            )
        return backend

    async def ping(self) -> None:
        backend = await self._ready()
        if isinstance(backend, Pings):
            await backend.ping()

    def may_fetch(self, *, in_full: bool) -> bool:
        return self._keeper.may_fetch(in_full=in_full)

    async def find_image(self, names: Sequence[str], *, fetch: bool = False) -> Image | None:
        return await self._keeper.find_image(names, fetch=fetch)

    async def bring_image(self, image: Image) -> None:
        await self._keeper.bring_image(image)

    async def bring_contents(self, mounts: Sequence[HostMount]) -> None:
        await self._keeper.bring_contents(mounts)

    @property
    def _workspaces(self) -> KeepsWorkspaces:
        backend = self._backend
        if not isinstance(backend, KeepsWorkspaces):
            raise InternalError(
                f"backend {self._name} keeps no workspaces", hint="open it as a LazyBackend"
            )
        return backend

    async def keeps_workspaces(self) -> bool:
        return (
            isinstance(self._backend, KeepsWorkspaces) and await self._workspaces.keeps_workspaces()
        )

    async def copy_workspace(self, source: str, target: str) -> None:
        await self._workspaces.copy_workspace(source, target)

    async def remove_workspace(self, name: str) -> None:
        await self._workspaces.remove_workspace(name)

    async def resize_workspace(self, name: str, size_bytes: int) -> None:
        if isinstance(self._backend, MaintainsWorkspaces):
            await self._backend.resize_workspace(name, size_bytes)

    async def interrupted_workspaces(self) -> Sequence[str]:
        if self._directory.exists() and isinstance(self._backend, MaintainsWorkspaces):
            return await self._backend.interrupted_workspaces()
        return ()

    async def clear_workspace(self, name: str, *, recorded: bool) -> None:
        if isinstance(self._backend, MaintainsWorkspaces):
            await self._backend.clear_workspace(name, recorded=recorded)

    async def sees_files(self) -> bool:
        backend = self._backend
        return not isinstance(backend, Remote) or await backend.sees_files()

    def create_timeout_s(self) -> float | None:
        backend = self._backend
        return backend.create_timeout_s() if isinstance(backend, StartsSlowly) else None

    async def network_refusal(self, policy: NetworkPolicy) -> UnsupportedByBackend | None:
        backend = await self._ready()
        if not isinstance(backend, RefusesNetworks):
            return None
        return await backend.network_refusal(policy)

    def fixes_networks(self) -> bool:
        backend = self._backend
        return isinstance(backend, FixesNetworks) and backend.fixes_networks()

    def place(self, tenant: str) -> str:
        backend = self._backend
        return backend.place(tenant) if isinstance(backend, Places) else ""

    def note_place(self, sandbox_id: SandboxId, place: str) -> None:
        backend = self._backend
        if isinstance(backend, Places):
            backend.note_place(sandbox_id, place)


class LazyRunBackend(LazyImageBackend):
    """A lazy backend that is a `ports.RunsOnce`; the engine tests for it."""

    async def reach(self, spec: CellSpec) -> None:
        await (await self._once()).reach(spec)

    async def run(self, order: RunOrder) -> RunOutcome:
        return await (await self._once()).run(order)

    async def _once(self) -> RunsOnce:
        backend = await self._ready()
        if not isinstance(backend, RunsOnce):
            raise InternalError(
                f"backend {self._name} keeps sandboxes", hint="open it as a LazyBackend"
            )
        return backend


class LazyCloudBackend(LazyImageBackend):
    """The lazy backend of a provider. It is a `ports.NeedsEnabling`: every key that may create a
    sandbox could otherwise make machines that cost money. Without a setting that every request to
    the provider needs, it is as closed. If it is closed later, the sandboxes that it has can still
    be used, and are removed when they end.
    """

    def __init__(
        self, name: str, directory: Path, opener: Callable[[], Backend], options: ProviderOptions
    ) -> None:
        super().__init__(name, directory, opener)
        self._options = options

    def check_enabled(self) -> None:
        if not self._options.cloud.enabled:
            variable = f"SANDKASTEN_{self._name.upper()}_ENABLED"
            raise BackendUnavailable(
                f"backend {self._name} is not enabled",
                hint=f"the operator sets backends.{self._name}.enabled: true, or {variable}=true",
                backend=self._name,
            )
        missing = self._options.missing()
        if missing is not None:
            raise BackendUnavailable(missing.reason, hint=missing.remedy, backend=self._name)

    async def probe(self) -> Readiness:
        try:
            self.check_enabled()
        except BackendUnavailable as exc:
            return Readiness(ready=False, reason=exc.message, remedy=exc.hint)
        return await super().probe()

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        self.check_enabled()
        return await super().create(sandbox_id, spec)

    async def owned(self) -> Sequence[SandboxId]:
        options = self._options
        closed = not options.cloud.enabled or options.missing() is not None
        if closed and self._directory.exists():
            from sandkasten.backends.cloud.machine_records import MachineRecords

            # Its credentials may be gone, and without a record it has nothing.
            if not await asyncio.to_thread(MachineRecords(self._directory).ids):
                return ()
        return await super().owned()


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
    # Without a name of its own, an installation is one data directory.
    return frozenset({"kubernetes"} if settings.kubernetes.installation else ())


def open_backing(settings: Settings, layers: LayerStore, events: EventSink) -> Backing:
    """Open the default backend; import the others when a request names them."""
    from sandkasten.backends.local import LocalBackend
    from sandkasten.linux.storage.workspace_directory import WorkspaceDirectory
    from sandkasten.store.ledger_directory import DirectoryStore

    data_dir = prepare_data_dir(settings.data_dir)

    def oci() -> Backend:
        from sandkasten.backends.oci import OciBackend
        from sandkasten.backends.oci.cdi import DeviceSpecs

        read = partial(read_tree, max_depth=_DEVICE_DEPTH)
        devices = DeviceSpecs(settings.cdi_dirs, settings.cdi_hooks, read)
        return OciBackend(
            data_dir, settings.oci_runtime, strict=settings.oci_strict, devices=devices
        )

    def gvisor() -> Backend:
        from sandkasten.backends.oci import OciBackend

        return OciBackend(data_dir, "runsc")

    def docker(name: str, engine: DockerSettings) -> Backend:
        directory = data_dir / name.replace("/", "-")
        opener = partial(_docker, name, engine, settings, data_dir, layers, events)
        return LazyImageBackend(name, directory, opener)

    def kubernetes() -> Backend:
        from sandkasten.backends.kubernetes.tenant_namespaces import TenantNamespaces

        return TenantNamespaces(data_dir, settings.kubernetes, read_kubeconfig)

    def fly() -> Backend:
        from sandkasten.backends.cloud.fly.fly_provider import FlyProvider

        return _cloud(data_dir, "fly", settings.fly.cloud, partial(FlyProvider, settings.fly))

    def e2b() -> Backend:
        from sandkasten.backends.cloud.e2b.e2b_provider import E2bProvider

        return _cloud(data_dir, "e2b", settings.e2b.cloud, partial(E2bProvider, settings.e2b))

    def modal() -> Backend:
        from sandkasten.backends.cloud.modal.modal_provider import ModalProvider

        provider = partial(ModalProvider, settings.modal)
        return _cloud(data_dir, "modal", settings.modal.cloud, provider)

    def dagger() -> Backend:
        from sandkasten.backends.dagger.backend import DaggerBackend
        from sandkasten.images.store_packer import StorePacker

        return DaggerBackend(data_dir, settings.dagger, packer=StorePacker(layers))

    # With a name of its own, an installation may own Pods that another data directory made.
    shared = data_dir if settings.kubernetes.installation else data_dir / "kubernetes"
    backends: dict[str, Backend] = {
        "local": LocalBackend(data_dir),
        "oci": LazyBackend("oci", data_dir / "oci", oci),
        "gvisor": LazyBackend("gvisor", data_dir / "gvisor", gvisor),
        "docker": docker("docker", settings.docker),
        "kubernetes": LazyImageBackend("kubernetes", shared, kubernetes),
        "fly": LazyCloudBackend("fly", data_dir / "fly", fly, settings.fly),
        "e2b": LazyCloudBackend(
            "e2b", data_dir / "e2b", partial(_with_extra, "e2b", e2b), settings.e2b
        ),
        "modal": LazyCloudBackend(
            "modal", data_dir / "modal", partial(_with_extra, "modal", modal), settings.modal
        ),
        "dagger": LazyRunBackend("dagger", data_dir / "dagger", dagger),
    }
    for name, options in settings.docker_engines.items():
        backends[name] = docker(name, DockerSettings(options))
    return Backing(
        backends,
        DirectoryStore(data_dir / "ledger"),
        WorkspaceDirectory(data_dir / "workspaces", disk=settings.policy.disk),
    )


def _docker(
    name: str,
    engine: DockerSettings,
    settings: Settings,
    data_dir: Path,
    layers: LayerStore,
    events: EventSink,
) -> Backend:
    """Raise BackendUnavailable if the settings contradict each other or the library is missing."""
    trouble = engine.trouble
    if trouble is not None:
        raise BackendUnavailable(trouble.message, hint=trouble.hint, backend=name)
    try:
        from sandkasten.backends.docker.backend import DockerBackend
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "sandkasten":
            raise
        raise BackendUnavailable(
            f"backend docker requires the library {exc.name}, which is not installed",
            hint=install_command("docker"),
            backend=name,
        ) from exc
    from sandkasten.images.store_packer import StorePacker

    return DockerBackend(
        data_dir,
        engine.options,
        name=name,
        packer=StorePacker(layers),
        pull_limits=settings.pull_limits,
        events=events,
    )


def _with_extra(name: str, opener: Callable[[], Backend]) -> Backend:
    """Raise BackendUnavailable if the library of a provider is missing."""
    try:
        return opener()
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "sandkasten":
            raise
        raise BackendUnavailable(
            f"backend {name} requires the library {exc.name}, which is not installed",
            hint=install_command(name),
            backend=name,
        ) from exc


def _cloud(
    data_dir: Path, name: str, options: CloudOptions, provider: Callable[[str], Provider]
) -> Backend:
    """Open the backend of a provider, which gets the name of this installation."""
    from sandkasten.backends.cloud.backend import CloudBackend
    from sandkasten.backends.cloud.machine_records import MachineRecords

    records = MachineRecords(data_dir / name)
    owner = records.owner()
    return CloudBackend(provider(owner), records, owner, options)


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
