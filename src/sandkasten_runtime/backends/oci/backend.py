"""The oci backend: runc (or crun) under the name `oci`, gVisor's runsc under the name `gvisor`.

Knows isolation and nothing else. Every sandbox has its own range of host ids, its own cgroups and a
workspace image, like those of the local backend. The launcher runs the runtime in its own mount
namespace, so that no mount is ever visible on the host. Requires root. No process here is a parent
of a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import stat
import time
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import BackendUnavailable, SandkastenError
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import RUNNER_ID, CellSpec, user_id
from sandkasten.model.sandbox.gpus import check_gpus_on
from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell, LaunchedSandboxes
from sandkasten_runtime.backends.launched_selftest import kind_of
from sandkasten_runtime.backends.oci import probe, runtimes, selftest
from sandkasten_runtime.backends.oci.capabilities import GVISOR, OCI
from sandkasten_runtime.backends.oci.cdi import DeviceSpecs
from sandkasten_runtime.backends.oci.oci_config import SOCKET_NAME, OciPlatform, config, places
from sandkasten_runtime.linux import egress, host_requirements, launch_plan
from sandkasten_runtime.linux.cgroup import cgroups
from sandkasten_runtime.linux.confinement import id_ranges, seccomp_bpf, seccomp_oci
from sandkasten_runtime.linux.host_requirements import make_group
from sandkasten_runtime.linux.launcher import LAUNCH_DEADLINE_MS, Launched, binds, launch, listen
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.linux.sandbox_removal import alive
from sandkasten_runtime.linux.state_layout import CellState, Layout, write_state
from sandkasten_runtime.linux.storage import host_root
from sandkasten_runtime.linux.system_trust import trusting_host, trusting_image
from sandkasten_runtime.linux.trust_files import prepare_trust
from sandkasten_runtime.wire.unix_socket import connect_unix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.network_policy import NetworkCounts
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.ports import ByteStream
    from sandkasten_runtime.backends.launched_selftest import Create
    from sandkasten_runtime.backends.oci.cdi import DeviceEdits
    from sandkasten_runtime.backends.oci.runtimes import Name, Platform

_BUNDLE = "bundle"
# A runner that binds its own socket removes it briefly when it is told to stop accepting, and a
# pause may come in between.
_REBIND_S, _LOOK_AGAIN_S = 2.0, 0.005


class OciBackend:
    """Implements `ports.Backend`. One instance per data directory is enough; more do no harm.

    `strict`: refuse a runc with known escapes instead of warning about it.
    """

    def __init__(
        self,
        data_dir: Path,
        runtime: Name = "runc",
        *,
        strict: bool = False,
        runner: Path | None = None,
        launcher: Path | None = None,
        devices: DeviceSpecs | None = None,
    ) -> None:
        self._devices = devices or DeviceSpecs()
        self._runtime: Name = runtime
        self._kind = runtimes.kind_of(runtime)
        # A separate one: `owned` must not report another backend's sandboxes.
        self._layout = Layout(data_dir / self.name, data_dir)
        programs = Programs.found(runner, launcher)
        self._sandboxes = LaunchedSandboxes(
            self._layout, programs, self._connect, shows_memory=self._kind != "gvisor"
        )
        self._strict = strict
        self._root = os.geteuid() == 0
        self._platform: Platform | None = None
        self._prepared: set[str] = set()
        self._warnings: tuple[str, ...] = ()
        self._preparing = asyncio.Lock()

    @property
    def name(self) -> str:
        return "gvisor" if self._kind == "gvisor" else "oci"

    @property
    def capabilities(self) -> Capabilities:
        return GVISOR if self._kind == "gvisor" else OCI

    @property
    def _hierarchies(self) -> cgroups.Hierarchies:
        return self._sandboxes.hierarchies

    @cached_property
    def _host_root(self) -> host_root.HostRoot:
        host = host_root.look()
        return replace(host, private=()) if self._kind == "gvisor" else host

    @cached_property
    def _stage(self) -> str:
        # Covered by a private mount; short, because a runtime's own socket path must fit 107 bytes.
        return "/mnt" if os.path.isdir("/mnt") else "/run"

    async def _connect(self, sandbox_id: SandboxId) -> ByteStream:
        directory = self._layout.cell(sandbox_id)
        if self._kind != "gvisor":
            return await _connect_to(directory / "socket", same_kernel=True)
        # Bound by the runner, in a directory shared with us.
        path = directory / "listen" / SOCKET_NAME
        deadline = time.monotonic() + _REBIND_S
        while True:
            try:
                return await _connect_to(path, same_kernel=False)
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() >= deadline or not alive(self._layout, sandbox_id):
                    raise
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def probe(self) -> Readiness:
        readiness = await asyncio.to_thread(self._look)
        if not readiness.ready:
            return readiness
        try:
            await self._prepare(CellSpec(image=Image("host")))
        except SandkastenError as exc:
            return probe.refused(readiness, self._runtime, exc)
        network = await asyncio.to_thread(
            host_requirements.network, self._sandboxes.programs, device=self._kind == "gvisor"
        )
        return replace(readiness, requirements=(*readiness.requirements, network))

    def _look(self) -> Readiness:
        return probe.look(
            self._layout,
            self._sandboxes.programs,
            self._hierarchies,
            self._runtime,
            strict=self._strict,
        )

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> LaunchedCell:
        launch_plan.refuse(spec, root=self._root)
        edits = await asyncio.to_thread(self._edits, spec)
        await self._prepare(spec)
        return await self._make(sandbox_id, spec, edits)

    def _edits(self, spec: CellSpec) -> DeviceEdits | None:
        """Return what the requested devices add, or raise before anything is made."""
        if spec.gpus is None:
            return None
        check_gpus_on(self.name, self.capabilities)
        return self._devices.edits(spec.gpus, host_image=spec.image.kind == "host")

    async def attach(self, sandbox_id: SandboxId) -> LaunchedCell:
        return await self._sandboxes.attach(sandbox_id)

    async def owned(self) -> Sequence[SandboxId]:
        return self._layout.cells()

    async def final_counts(self, sandbox_id: SandboxId) -> NetworkCounts:
        return await self._sandboxes.final_counts(sandbox_id)

    async def discard(self, sandbox_id: SandboxId) -> None:
        await self._sandboxes.discard(sandbox_id)

    async def ping(self) -> None:
        """Do nothing: only this machine is needed."""

    async def aclose(self) -> None:
        """Do nothing: no connection is kept open."""

    async def _prepare(self, spec: CellSpec) -> None:
        """Test a temporary sandbox, once for each kind of sandbox."""
        kind = kind_of(spec)
        if kind in self._prepared:
            return
        async with self._preparing:
            if kind in self._prepared:
                return
            readiness = await asyncio.to_thread(self._look)
            if not readiness.ready:
                raise BackendUnavailable(
                    f"{self.name} cannot be used: {readiness.reason}", hint=readiness.remedy
                )
            self._warnings = probe.warnings(readiness)
            await asyncio.to_thread(self._sandboxes.prepare)
            self._platform = await selftest.ensure(
                self._sandboxes, self._runtime, self._create_on, spec
            )
            self._prepared.add(kind)

    def _create_on(self, platform: Platform | None) -> Create:
        async def create(sandbox_id: SandboxId, spec: CellSpec) -> LaunchedCell:
            self._platform = platform
            return await self._make(sandbox_id, spec)

        return create

    async def _make(
        self, sandbox_id: SandboxId, spec: CellSpec, edits: DeviceEdits | None = None
    ) -> LaunchedCell:
        if edits is not None:
            env = {**spec.env, **dict(edits.env)}
            spec = replace(spec, env=env, mounts=(*spec.mounts, *edits.mounts))
        return await self._sandboxes.make(
            sandbox_id, lambda directory: self._fill(sandbox_id, directory, spec, edits), spec.files
        )

    def _fill(
        self, sandbox_id: SandboxId, cell: Path, spec: CellSpec, edits: DeviceEdits | None
    ) -> LaunchedCell:
        spec, authority = prepare_trust(cell, sandbox_id, spec)
        if authority is not None:
            spec = trusting_image(cell, spec, authority)
        program = runtimes.find(self._runtime)
        if program is None:
            absent = runtimes.missing(self._runtime)
            raise BackendUnavailable(f"{absent.name} is {absent.state}", hint=absent.remedy)
        slot = id_ranges.lease(id_ranges.HOST_DIRECTORY, sandbox_id)
        planned = cgroups.plan(self._hierarchies, sandbox_id, spec.limits)
        everywhere = cgroups.everywhere(Path("/proc/self/mountinfo").read_text(), sandbox_id)
        state = CellState(
            boot_id(),
            slot,
            everywhere,
            planned.v2_directory,
            volume=spec.workspace.path if spec.workspace else None,
            first_ids=launch_plan.first_ids(spec),
        )
        # On disk before any of it exists, so that it can be removed after a crash.
        write_state(cell, state)
        group = make_group(self._hierarchies, planned, root=True)
        if self._kind != "gvisor":
            cgroups.reserve(everywhere)
        if group.unenforced:
            lost = tuple((u.limit, u.reason, u.remedy) for u in group.unenforced)
            write_state(cell, replace(state, unenforced=lost))
        base = id_ranges.base_of(slot)
        etc = host_root.etc_skeleton(self._layout.shared("etc"), network=not spec.network.closed)
        if authority is not None and spec.image.kind == "host":
            spec = trusting_host(cell, spec, etc)
        cell_platform = replace(self._cell_platform(sandbox_id, spec, base), devices=edits)
        runner = self._sandboxes.programs.runner
        resolver = host_root.resolver_file(self._layout.shared("etc"))
        resolves = spec.image.kind == "layers" and not spec.network.closed
        bound = [(self._bundle(cell, spec, cell_platform), _BUNDLE, True)]
        private: dict[str, Path | str] = {}
        if self._kind == "gvisor":
            # It has its own locks and events, so overlays would only cost.
            bound += [(etc, "etc", True), (runner, "runner", False)]
            bound.append((_socket_directory(cell, base), "listen", True))
        else:
            bound.append((launch_plan.private_runner(self._stage, runner), "runner", False))
            if spec.image.kind == "host":
                private = {name: f"/{name}" for name in self._host_root.private}
                private["etc"] = etc
            elif resolves:
                private["resolver"] = resolver.parent
                resolver = Path(self._stage, "resolver", resolver.name)
        if resolves:
            bound.append((resolver, "resolv.conf", False))
        bundle = f"{self._stage}/{_BUNDLE}"
        plan: dict[str, object] = {
            "id_map": {"base": base, "count": id_ranges.COUNT, "expect": self._expect(base)},
            "stage": self._stage,
            "root": self._image_root(cell, spec, cell_platform),
            "workspace": launch_plan.workspace_plan(self._layout, cell, spec),
            "workspace_owner": user_id(spec),
            "private": [] if self._kind == "gvisor" else launch_plan.private_plan(runner, private),
            "own_devices": self._kind != "gvisor",
            "binds": binds(bound),
            "mounts": launch_plan.mounts_plan(spec, overlays=self._kind != "gvisor"),
            "runtime": {
                "program": program,
                "argv": runtimes.command(
                    self._runtime,
                    program,
                    sandbox_id,
                    bundle,
                    self._platform,
                    network=not spec.network.closed,
                ),
                "runtime_pid_file": f"{bundle}/{runtimes.PID_FILE}",
                "log": os.fspath(cell / "log"),
            },
            "limits": self._rlimits(spec),
            "pid_file": os.fspath(cell / "pid"),
            "timeout_ms": LAUNCH_DEADLINE_MS,
            **self._joined(group.plan),
        }
        launched = self._launch(cell, plan, spec, base)
        if authority is not None and spec.inspection is not None:
            egress.begin_inspection(cell, authority, spec.inspection)
        shared = [name for name in launched.shared if f"/{name}" == private.get(name)]
        if spec.image.kind == "host" and self._kind != "gvisor":
            shared += self._host_root.shared
        warnings = (*self._warnings, *host_root.sharing(shared))
        return self._sandboxes.cell(sandbox_id, group.unenforced, warnings)

    def _launch(self, cell: Path, plan: dict[str, object], spec: CellSpec, base: int) -> Launched:
        own_stack = self._kind == "gvisor"
        with contextlib.ExitStack() as stack:
            fds: list[int] = []
            if not own_stack:
                fds.append(stack.enter_context(listen(cell / "socket")).fileno())
            plan = {**plan, "listen_fd": fds[0] if fds else 0}
            if not spec.network.closed:
                user = base + id_ranges.COUNT - 1
                way_out = egress.prepare(
                    cell,
                    self._sandboxes.programs.egress,
                    spec.network,
                    spec.ceiling,
                    user,
                    device=own_stack,
                )
                stack.callback(way_out.close)
                plan = {**plan, "network": way_out.plan}
                fds.append(way_out.control.fileno())
            return launch(self._sandboxes.programs.launcher, plan, *fds)

    def _joined(self, group: cgroups.CgroupPlan) -> dict[str, object]:
        """Return the cgroups that gVisor starts in; runc requires an empty group and joins it
        itself.
        """
        if self._kind == "gvisor":
            return {"cgroup_tasks": list(group.tasks), "cgroup_v2": group.v2_directory}
        return {"cgroup_tasks": [], "cgroup_v2": None}

    def _expect(self, base: int) -> int:
        """Return the host id of the first process: the runner's, or gVisor's own, which is 0
        inside.
        """
        return base if self._kind == "gvisor" else base + RUNNER_ID

    def _cell_platform(self, sandbox_id: SandboxId, spec: CellSpec, base: int) -> OciPlatform:
        shared_kernel = self._kind == "runc"
        return OciPlatform(
            kind=self._kind,
            stage=self._stage,
            base=base,
            host=self._host_root,
            cgroups_path=f"/{cgroups.GROUP}/{sandbox_id}" if shared_kernel else None,
            seccomp=seccomp_oci.profile(seccomp_bpf.machine()),
            files=frozenset(m.path for m in spec.mounts if not os.path.isdir(m.path)),
        )

    def _rlimits(self, spec: CellSpec) -> list[dict[str, int]]:
        if self._kind == "gvisor":
            return []  # gVisor's own kernel enforces them; of the host's it needs more
        wanted = {resource.RLIMIT_NOFILE: spec.limits.open_files, resource.RLIMIT_CORE: 0}
        return [{"resource": r, "value": v} for r, v in wanted.items()]

    def _bundle(self, cell: Path, spec: CellSpec, cell_platform: OciPlatform) -> Path:
        bundle = cell / _BUNDLE
        bundle.mkdir(mode=0o700)
        (bundle / "config.json").write_text(json.dumps(config(spec, cell_platform)))
        return bundle

    def _image_root(
        self, cell: Path, spec: CellSpec, cell_platform: OciPlatform
    ) -> dict[str, object]:
        """Return the layers and mount points; the launcher also assembles the host image."""
        plan = launch_plan.root_plan(self._layout, cell, spec)
        if plan is None:
            skeleton = host_root.root_skeleton(self._layout.shared("root"), self._host_root)
            plan = {"layers": [os.fspath(skeleton)], "writable": False}
        return {**plan, "places": [asdict(place) for place in places(spec, cell_platform)]}


def _socket_directory(cell: Path, base: int) -> Path:
    """Return the directory of the runner's socket: owned by it, and closed to the user's code."""
    directory = cell / "listen"
    directory.mkdir(mode=0o700)
    os.chown(directory, base + RUNNER_ID, base + RUNNER_ID)
    return directory


async def _connect_to(path: Path, *, same_kernel: bool) -> ByteStream:
    # Code that broke out of gVisor could write to the socket's directory: a link there must not
    # lead us to another socket of this machine. So we connect to what was opened.
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
        return await connect_unix(f"/proc/self/fd/{descriptor}", same_kernel=same_kernel)
    finally:
        os.close(descriptor)
