"""Self-test before the first sandbox of a boot: create a throw-away one with the runtime and
inspect it.

With runc a command inside is inspected from outside, with the requirements of the local backend.
With gVisor its own processes on the host are inspected, and whether ordinary programs work inside:
builds of 2022 return EINVAL for statx, so that `ls` and `stat` fail; they are refused by trying.
The result is kept in a file named after all it depends on, so the test runs once per boot.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.backends.oci import oci_config, runtimes
from sandkasten.backends.oci.runtimes import PLATFORMS
from sandkasten.disk.cleanup import finish
from sandkasten.disk.file_lock import locked
from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import BackendUnavailable, IsolationRefused, SandkastenError
from sandkasten.linux.confinement import capabilities, id_ranges, posture, posture_probe
from sandkasten.linux.sandbox_removal import remove
from sandkasten.linux.state_layout import read_pid, read_state
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.cell_spec import CellSpec, root_is_writable
from sandkasten.wire.channel import Channel
from sandkasten.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandkasten.backends.oci.cell import OciCell
    from sandkasten.backends.oci.runtimes import Name, Platform
    from sandkasten.linux.programs import Programs
    from sandkasten.linux.state_layout import CellState, Layout

    Create = Callable[[Platform | None, SandboxId, CellSpec], Awaitable[OciCell]]

_DEADLINE_S = 30.0
_PREFIX = "trial_"
# Long enough to be inspected, short enough not to matter if we are killed meanwhile.
_SUBJECT = (f"{oci_config.RUNNER_DIR}/runner", "--rest")
# Programs that fail with Debian 12's own build.
_ORDINARY = (("stat", "/"), ("ls", "/"))


def kind_of(spec: CellSpec) -> str:
    """Return the kind; sandboxes of one kind are assembled the same way."""
    if spec.image.kind == "host":
        return "host"
    return f"image-{spec.profile}{'-writable' if spec.writable_root else ''}"


async def ensure(
    layout: Layout, programs: Programs, runtime: Name, create: Create, spec: CellSpec
) -> Platform | None:
    """Return the platform to use (gVisor), or None. Raise if no sandbox passes."""
    key = _key(programs, runtime)
    mark = layout.data_dir / f"trial-{key}-{kind_of(spec)}"
    # Nothing of the caller's: no kept workspace, no mounts, no environment.
    bare = CellSpec(image=spec.image, profile=spec.profile, writable_root=spec.writable_root)
    async with locked(layout.data_dir / "trial"):
        with contextlib.suppress(FileNotFoundError):
            return _platform(mark.read_text())
        # One at a time, so this was left by a process that was killed.
        for left in layout.cells(_PREFIX):
            await asyncio.to_thread(remove, layout, left)
        chosen = await _choose(layout, runtime, create, bare)
        for old in layout.data_dir.glob("trial-*"):
            if not old.name.startswith(f"trial-{key}-"):
                old.unlink(missing_ok=True)
        mark.write_text(chosen or "")
        return chosen


def _platform(text: str) -> Platform | None:
    return next((known for known in PLATFORMS if known == text), None)


def _key(programs: Programs, runtime: Name) -> str:
    parts = [boot_id(), os.uname().release, runtime]
    # Our own sources decide what is requested; a change runs the test again.
    sources = (__file__, oci_config.__file__, runtimes.__file__, posture.__file__)
    for path in (runtimes.find(runtime) or "", programs.runner, programs.launcher, *sources):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            parts.append(f"{found.st_mtime_ns}:{found.st_size}")
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]


async def _choose(layout: Layout, runtime: Name, create: Create, spec: CellSpec) -> Platform | None:
    if runtime != "runsc":
        await _judge(layout, create, None, spec)
        return None
    failures = []
    for platform in PLATFORMS:
        try:
            await _judge(layout, create, platform, spec)
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


async def _judge(layout: Layout, create: Create, platform: Platform | None, spec: CellSpec) -> None:
    # Not an id that `owned` reports: it has no ledger record and must not look like a leftover.
    sandbox_id = SandboxId(_PREFIX + secrets.token_hex(8))
    cell = await create(platform, sandbox_id, spec)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            channel = await Channel.open(await cell.dial())
            try:
                found = await _examine(layout, cell, channel, spec)
            finally:
                await channel.aclose()
    except TimeoutError as exc:
        raise BackendUnavailable("a new sandbox does not answer in time") from exc
    finally:
        await finish(cell.destroy())
    if found:
        raise IsolationRefused(
            f"a new sandbox is less isolated than required: {'; '.join(found)}",
            hint="run `sandkasten doctor`; no sandbox is created until this is fixed",
            deviations=found,
        )


async def _examine(layout: Layout, cell: OciCell, channel: Channel, spec: CellSpec) -> list[str]:
    directory = layout.cell(cell.id)
    first, state = read_pid(directory), read_state(directory)
    if first is None or state is None or state.slot is None:
        return ["the sandbox left no record of itself"]
    base = id_ranges.base_of(state.slot)
    ids = range(base, base + id_ranges.COUNT)
    host = await asyncio.to_thread(posture.read, os.getpid())
    dev = spec.profile == "dev"
    kept = capabilities.bits(capabilities.DEV_USER) if dev else 0
    if cell.kind == "gvisor":
        if spec.image.kind == "host":
            await _try_ordinary_programs(channel)
        return await asyncio.to_thread(_of_gvisor, state, host, ids, kept)
    await channel.call("exec.start", {"exec_id": "t", "argv": list(_SUBJECT), "follow": False})
    writable = ("/", "/run") if root_is_writable(spec) else ("/run",)

    def judge(seen: posture.Posture) -> list[str]:
        return posture.deviations(seen, host, ids=ids, capabilities=kept, writable=writable)

    return await posture_probe.deviations(_SUBJECT, first[0], judge)


async def _try_ordinary_programs(channel: Channel) -> None:
    for number, argv in enumerate(_ORDINARY):
        exec_id = f"try-{number}"
        await channel.call("exec.start", {"exec_id": exec_id, "argv": list(argv), "follow": False})
        fields = {"exec_id": exec_id, "timeout_ms": int(_DEADLINE_S * 1000)}
        code = decode_exec(await channel.call("exec.wait", fields)).exit_code
        if code != 0:
            raise BackendUnavailable(
                f"{' '.join(argv)} fails inside with status {code}, as in builds before 2024",
                hint=runtimes.missing("runsc").remedy,
            )


def _of_gvisor(state: CellState, host: posture.Posture, ids: range, kept: int) -> list[str]:
    found: list[str] = []
    members = _members(state)
    if len(members) < 2:
        found.append("gVisor's processes were not found in their group")
    for pid in members:
        with contextlib.suppress(OSError):
            seen = posture.read(pid)
            found += [
                f"{seen.status.get('Name')}: {line}"
                for line in posture.kernel_deviations(seen, host, ids=ids, capabilities=kept)
            ]
    return found


def _members(state: CellState) -> list[int]:
    for directory in (state.v2_directory, *state.cgroups):
        with contextlib.suppress(OSError, TypeError):
            return [int(pid) for pid in Path(str(directory), "cgroup.procs").read_text().split()]
    return []
