"""The local backend: bubblewrap on this machine, as root or as an ordinary user.

Knows isolation and nothing else. As root every sandbox has its own range of host ids, its own
cgroups and a workspace image. An ordinary user has one id, no cgroups and a workspace in memory;
`unenforced` lists what that loses. No process here is a parent of a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.disk.os_errors import disk_error
from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import BackendUnavailable
from sandkasten.model.backends.capabilities import Capabilities, check_features
from sandkasten.model.sandbox.cell_spec import RUNNER_ID, CellSpec, user_id
from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell, LaunchedSandboxes
from sandkasten_runtime.backends.launched_selftest import kind_of
from sandkasten_runtime.backends.local import probe, selftest
from sandkasten_runtime.backends.local.bwrap_arguments import (
    BwrapPlatform,
    bwrap_args,
    memory_plan,
    own_network,
    runner_command,
)
from sandkasten_runtime.backends.local.capabilities import LOCAL
from sandkasten_runtime.linux import egress, launch_plan
from sandkasten_runtime.linux.cgroup import cgroups
from sandkasten_runtime.linux.confinement import id_ranges, seccomp_bpf
from sandkasten_runtime.linux.host_requirements import make_group
from sandkasten_runtime.linux.launcher import LAUNCH_DEADLINE_MS, StartedLauncher, binds, listen
from sandkasten_runtime.linux.programs import Programs, find_bwrap
from sandkasten_runtime.linux.state_layout import CellState, Layout, write_state
from sandkasten_runtime.linux.storage import host_root
from sandkasten_runtime.linux.system_trust import trusting_host, trusting_image
from sandkasten_runtime.linux.trust_files import prepare_trust
from sandkasten_runtime.wire.unix_socket import connect_unix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.limits import Limits
    from sandkasten.model.sandbox.network_policy import NetworkCounts
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.ports import ByteStream

# The whole machine has about 3,000; a session uses one or two.
_TERMINALS = 32


class LocalBackend:
    """Implements `ports.Backend`. One instance per data directory is enough; more do no harm."""

    def __init__(
        self, data_dir: Path, runner: Path | None = None, launcher: Path | None = None
    ) -> None:
        self._layout = Layout(data_dir)
        programs = Programs.found(runner, launcher)
        self._sandboxes = LaunchedSandboxes(self._layout, programs, self._connect)
        self._root = os.geteuid() == 0
        self._examined: set[str] = set()
        self._preparing = asyncio.Lock()

    @property
    def name(self) -> str:
        return "local"

    @cached_property
    def capabilities(self) -> Capabilities:
        # An ordinary user has no cgroup, only limits of processes.
        resizes = self._root and cgroups.limits_all(self._hierarchies)
        return replace(LOCAL, resizes=resizes, copies_files=self._root)

    @property
    def _hierarchies(self) -> cgroups.Hierarchies:
        return self._sandboxes.hierarchies

    async def _connect(self, sandbox_id: SandboxId) -> ByteStream:
        path = os.fspath(self._layout.cell(sandbox_id) / "socket")
        return await connect_unix(path, same_kernel=True)

    @cached_property
    def _host_root(self) -> host_root.HostRoot:
        return host_root.look()

    @cached_property
    def _stage(self) -> str:
        # The sandbox's mapped user must be able to traverse this path; ours is covered by a private
        # mount.
        if self._root:
            return "/mnt" if os.path.isdir("/mnt") else "/run"
        return os.fspath(self._layout.shared("stage"))

    async def probe(self) -> Readiness:
        return await asyncio.to_thread(
            probe.look, self._layout, self._sandboxes.programs, self._hierarchies, self._root
        )

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> LaunchedCell:
        check_features(self.name, self.capabilities.features, spec)
        await self._check(spec)
        return await self._make(sandbox_id, spec)

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

    async def resize(self, sandbox_id: SandboxId, limits: Limits) -> None:
        """See `ports.Resizes`."""
        try:
            # A few small writes to kernel files: faster than handing them to a thread.
            cgroups.resize(cgroups.plan(self._hierarchies, sandbox_id, limits))
        except OSError as exc:
            raise disk_error(f"change limits of {sandbox_id}", exc, BackendUnavailable) from exc

    async def _check(self, spec: CellSpec) -> None:
        launch_plan.refuse(spec, root=self._root)
        kind = kind_of(spec)
        if kind not in self._examined:
            async with self._preparing:
                if kind not in self._examined:
                    await asyncio.to_thread(self._sandboxes.prepare)
                    await selftest.ensure(self._sandboxes, self._make, spec)
                    self._examined.add(kind)

    async def _make(self, sandbox_id: SandboxId, spec: CellSpec) -> LaunchedCell:
        return await self._sandboxes.make(
            sandbox_id, lambda directory: self._fill(sandbox_id, directory, spec), spec.files
        )

    def _fill(self, sandbox_id: SandboxId, cell: Path, spec: CellSpec) -> LaunchedCell:
        spec, authority = prepare_trust(cell, sandbox_id, spec)
        if authority is not None:
            spec = trusting_image(cell, spec, authority)
        bwrap = find_bwrap()
        if bwrap is None:
            raise BackendUnavailable(
                "bubblewrap is not installed", hint="apt-get install bubblewrap"
            )
        slot = id_ranges.lease(id_ranges.HOST_DIRECTORY, sandbox_id) if self._root else None
        base = id_ranges.base_of(slot) if slot is not None else 0
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(listen(cell / "socket"))
            passed = [listener.fileno()]
            way_out = None
            if not spec.network.closed:
                user = None if slot is None else base + id_ranges.COUNT - 1
                way_out = egress.prepare(
                    cell, self._sandboxes.programs.egress, spec.network, spec.ceiling, user
                )
                opened.callback(way_out.close)
                passed.append(way_out.control.fileno())
            # It starts while we prepare its plan.
            started = opened.enter_context(
                StartedLauncher(self._sandboxes.programs.launcher, *passed)
            )
            planned = cgroups.plan(self._hierarchies, sandbox_id, spec.limits)
            state = CellState(
                boot_id(),
                slot,
                planned.directories,
                planned.v2_directory,
                volume=spec.workspace.path if spec.workspace else None,
                workspace_at=spec.workspace_at,
                first_ids=launch_plan.first_ids(spec),
            )
            # On disk before any of it exists, so that it can be removed after a crash.
            write_state(cell, state)
            group = make_group(self._hierarchies, planned, root=self._root)
            unenforced = group.unenforced
            if unenforced:
                lost = tuple((u.limit, u.reason, u.remedy) for u in unenforced)
                plan = group.plan
                write_state(
                    cell,
                    replace(
                        state,
                        cgroups=plan.directories,
                        v2_directory=plan.v2_directory,
                        unenforced=lost,
                    ),
                )
            filters = seccomp_bpf.compiled(self._layout.shared("seccomp"))
            platform = BwrapPlatform(self._stage, self._root, self._host_root, len(filters))
            runner = self._sandboxes.programs.runner
            shown = [(launch_plan.private_runner(self._stage, runner), "runner", False)]
            private: dict[str, Path | str] = {}
            shared: tuple[str, ...] = ()
            if spec.image.kind == "host":
                private = {name: f"/{name}" for name in self._host_root.private}
                etc = host_root.etc_skeleton(
                    self._layout.shared("etc"), network=not spec.network.closed
                )
                if authority is not None:
                    spec = trusting_host(cell, spec, etc)
                private["etc"] = etc
                shared = self._host_root.shared
            elif not spec.network.closed:
                resolver = host_root.resolver_file(self._layout.shared("etc"))
                private["resolver"] = resolver.parent
                shown.append((Path(self._stage, "resolver", resolver.name), "resolv.conf", False))
            launched = started.launch(
                {
                    "listen_fd": listener.fileno(),
                    "cgroup_tasks": list(group.plan.tasks),
                    "cgroup_v2": group.plan.v2_directory,
                    "id_map": None
                    if slot is None
                    else {"base": base, "count": id_ranges.COUNT, "expect": base + RUNNER_ID},
                    "stage": self._stage,
                    "root": launch_plan.root_plan(self._layout, cell, spec),
                    "workspace": launch_plan.workspace_plan(self._layout, cell, spec),
                    "workspace_owner": user_id(spec),
                    "private": launch_plan.private_plan(runner, private),
                    "own_devices": self._root,
                    "own_network": own_network(spec, platform),
                    "binds": binds(shown),
                    "memory": memory_plan(spec, platform),
                    "mounts": launch_plan.mounts_plan(spec),
                    "masks": {
                        "files": self._host_root.proc_files,
                        "directories": self._host_root.proc_dirs,
                    },
                    "network": None if way_out is None else way_out.plan,
                    "bwrap": bwrap,
                    "args": bwrap_args(spec, platform),
                    "command": runner_command(spec, platform),
                    "seccomp": [os.fspath(f) for f in filters],
                    "limits": self._rlimits(spec.limits),
                    "terminals": _TERMINALS,
                    "pid_file": os.fspath(cell / "pid"),
                    "timeout_ms": LAUNCH_DEADLINE_MS,
                }
            )
        if authority is not None and spec.inspection is not None:
            egress.begin_inspection(cell, authority, spec.inspection)
        shared += tuple(name for name in launched.shared if f"/{name}" == private.get(name))
        warnings = host_root.sharing(shared)
        return self._sandboxes.cell(sandbox_id, unenforced, warnings)

    def _rlimits(self, limits: Limits) -> list[dict[str, int]]:
        wanted = {resource.RLIMIT_NOFILE: limits.open_files, resource.RLIMIT_CORE: 0}
        if not self._root:
            # Without cgroups, processes are counted per user namespace and memory only per process.
            wanted[resource.RLIMIT_NPROC] = limits.pids
            wanted[resource.RLIMIT_DATA] = limits.memory_bytes
        return [{"resource": r, "value": v} for r, v in wanted.items()]
