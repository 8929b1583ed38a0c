"""Self-test of the backends oci and gvisor, by which gVisor's platform is chosen too.

With runc a command inside is inspected from outside, with the requirements of the local backend.
With gVisor its own processes on the host are inspected, and whether ordinary programs work inside:
builds of 2022 return EINVAL for statx, so that `ls` and `stat` fail; they are refused by trying.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import BackendUnavailable, IsolationRefused, SandkastenError
from sandkasten.model.sandbox.cell_spec import root_is_writable
from sandkasten_runtime.backends.launched_selftest import DEADLINE_S, SUBJECT, judge, passed_once
from sandkasten_runtime.backends.oci import oci_config, runtimes
from sandkasten_runtime.backends.oci.runtimes import PLATFORMS
from sandkasten_runtime.linux.confinement import capabilities, id_ranges, posture, posture_probe
from sandkasten_runtime.linux.state_layout import read_pid, read_state
from sandkasten_runtime.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell, LaunchedSandboxes
    from sandkasten_runtime.backends.launched_selftest import Create
    from sandkasten_runtime.backends.oci.runtimes import Name, Platform
    from sandkasten_runtime.linux.programs import Programs
    from sandkasten_runtime.linux.state_layout import CellState
    from sandkasten_runtime.wire.channel import Channel

    CreateOn = Callable[[Platform | None], Create]

# Programs that fail with Debian 12's own build.
_ORDINARY = (("stat", "/"), ("ls", "/"))


async def ensure(
    sandboxes: LaunchedSandboxes, runtime: Name, create_on: CreateOn, spec: CellSpec
) -> Platform | None:
    """Return the platform to use (gVisor), or None. Raise if no sandbox passes."""

    async def test() -> str:
        return await _choose(runtime, create_on, spec) or ""

    key = _key(sandboxes.programs, runtime)
    return _platform(await passed_once(sandboxes.layout, key, spec, test))


def _platform(text: str) -> Platform | None:
    return next((platform for platform in PLATFORMS if platform == text), None)


def _key(programs: Programs, runtime: Name) -> str:
    parts = [boot_id(), os.uname().release, runtime]
    # Our own sources decide what is requested; a change runs the test again.
    sources = (__file__, oci_config.__file__, runtimes.__file__, posture.__file__)
    for path in (runtimes.find(runtime) or "", programs.runner, programs.launcher, *sources):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            parts.append(f"{status.st_mtime_ns}:{status.st_size}")
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]


async def _choose(runtime: Name, create_on: CreateOn, spec: CellSpec) -> Platform | None:
    async def examine(cell: LaunchedCell, channel: Channel) -> list[str]:
        return await _examine(cell, channel, spec, gvisor=runtime == "runsc")

    if runtime != "runsc":
        await judge(create_on(None), spec, examine)
        return None
    failures = []
    for platform in PLATFORMS:
        try:
            await judge(create_on(platform), spec, examine)
        except IsolationRefused:
            raise
        except SandkastenError as exc:
            failures.append(f"{platform}: {exc.message}")
        else:
            return platform
    raise BackendUnavailable(
        f"runsc was tried and does not work here ({'; '.join(failures)})",
        hint=runtimes.missing("runsc").remedy,
    )


async def _examine(
    cell: LaunchedCell, channel: Channel, spec: CellSpec, *, gvisor: bool
) -> list[str]:
    directory = cell.layout.cell(cell.id)
    first, state = read_pid(directory), read_state(directory)
    if first is None or state is None or state.slot is None:
        return ["the sandbox left no record of itself"]
    base = id_ranges.base_of(state.slot)
    ids = range(base, base + id_ranges.COUNT)
    host = await asyncio.to_thread(posture.read, os.getpid())
    dev = spec.profile == "dev"
    extra = capabilities.bits(capabilities.DEV_USER) if dev else 0
    if gvisor:
        if spec.image.kind == "host":
            await _try_ordinary_programs(channel)
        return await asyncio.to_thread(_of_gvisor, state, host, ids, extra)
    await channel.call("exec.start", {"exec_id": "t", "argv": list(SUBJECT), "follow": False})
    writable = ("/", "/run") if root_is_writable(spec) else ("/run",)

    def deviations(actual: posture.Posture) -> list[str]:
        return posture.deviations(actual, host, ids=ids, capabilities=extra, writable=writable)

    return await posture_probe.deviations(SUBJECT, first[0], deviations)


async def _try_ordinary_programs(channel: Channel) -> None:
    for number, argv in enumerate(_ORDINARY):
        exec_id = f"try-{number}"
        await channel.call("exec.start", {"exec_id": exec_id, "argv": list(argv), "follow": False})
        fields = {"exec_id": exec_id, "timeout_ms": int(DEADLINE_S * 1000)}
        code = decode_exec(await channel.call("exec.wait", fields)).exit_code
        if code != 0:
            raise BackendUnavailable(
                f"{' '.join(argv)} fails inside with status {code}, as in builds before 2024",
                hint=runtimes.missing("runsc").remedy,
            )


def _of_gvisor(state: CellState, host: posture.Posture, ids: range, allowed: int) -> list[str]:
    deviations: list[str] = []
    members = _members(state)
    if len(members) < 2:
        deviations.append("gVisor's processes were not found in their group")
    for pid in members:
        with contextlib.suppress(OSError):
            actual = posture.read(pid)
            deviations += [
                f"{actual.status.get('Name')}: {line}"
                for line in posture.kernel_deviations(actual, host, ids=ids, capabilities=allowed)
            ]
    return deviations


def _members(state: CellState) -> list[int]:
    for directory in (state.v2_directory, *state.cgroups):
        with contextlib.suppress(OSError, TypeError):
            return [int(pid) for pid in Path(str(directory), "cgroup.procs").read_text().split()]
    return []
