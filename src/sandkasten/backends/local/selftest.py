"""Self-test before the first sandbox of a boot: create a throw-away one and inspect it from
outside.

A sandbox that is less isolated than promised is refused, and the deviations are named. The host
image, images and the dev profile are assembled differently, so each is tested when first used; the
test runs our own program, because an image may have none. A result is kept in a file named after
everything it depends on, so that the test runs once per boot and set-up.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandkasten.backends.local.cell import LocalCell
from sandkasten.disk.cleanup import finish
from sandkasten.disk.file_lock import locked
from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import IsolationRefused
from sandkasten.linux.confinement import capabilities, id_ranges, posture, posture_probe
from sandkasten.linux.programs import Programs, find_bwrap
from sandkasten.linux.sandbox_removal import remove
from sandkasten.linux.state_layout import Layout, read_pid, read_state
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.cell_spec import RUNNER_DIR, CellSpec, root_is_writable
from sandkasten.wire.channel import Channel

_DEADLINE_S = 30.0
# Long enough to be inspected, short enough not to matter if we are killed meanwhile.
_SUBJECT = (f"{RUNNER_DIR}/runner", "--rest")
_PREFIX = "selftest_"

Create = Callable[[SandboxId, CellSpec], Awaitable[LocalCell]]


def _key(programs: Programs) -> str:
    parts = [boot_id(), os.uname().release, str(os.geteuid())]
    for path in (find_bwrap() or "", programs.runner, programs.launcher):
        try:
            stat = os.stat(path)
        except OSError:
            continue
        parts.append(f"{stat.st_mtime_ns}:{stat.st_size}")
    # Our own sources decide what is requested; a change runs the test again.
    here = Path(__file__)
    sources = (here, here.with_name("bwrap_arguments.py"), Path(posture.__file__))
    parts += [str(source.stat().st_mtime_ns) for source in sources]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]


def kind_of(spec: CellSpec) -> str:
    """Return the kind; sandboxes of one kind are assembled the same way."""
    if spec.image.kind == "host":
        return "host"
    return f"image-{spec.profile}{'-writable' if spec.writable_root else ''}"


async def ensure(layout: Layout, programs: Programs, create: Create, spec: CellSpec) -> None:
    """Raise IsolationRefused on a mismatch; do nothing if this set-up has passed."""
    key = _key(programs)
    mark = layout.data_dir / f"selftest-{key}-{kind_of(spec)}"
    if mark.exists():
        return
    async with locked(layout.data_dir / "selftest"):
        if mark.exists():
            return
        # One at a time, so this was left by a process that was killed.
        for left in layout.cells(_PREFIX):
            await asyncio.to_thread(remove, layout, left)
        await _judge(layout, create, spec)
        for old in layout.data_dir.glob("selftest-*"):
            if not old.name.startswith(f"selftest-{key}-"):
                old.unlink(missing_ok=True)
        mark.touch(mode=0o600)


async def _judge(layout: Layout, create: Create, spec: CellSpec) -> None:
    found = await run(layout, create, spec)
    if found:
        raise IsolationRefused(
            f"a new sandbox is less isolated than required: {'; '.join(found)}",
            hint="run `sandkasten doctor`; no sandbox is created until this is fixed",
            deviations=found,
        )


async def run(layout: Layout, create: Create, spec: CellSpec) -> list[str]:
    """Return the deviations of a throw-away sandbox like this one; it is removed afterwards."""
    # Not an id that `owned` reports: it has no ledger record and must not look like a leftover.
    sandbox_id = SandboxId(_PREFIX + secrets.token_hex(8))
    # Nothing of the caller's: no kept workspace, no mounts, no environment.
    bare = CellSpec(image=spec.image, profile=spec.profile, writable_root=spec.writable_root)
    cell = await create(sandbox_id, bare)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            return await _examine(layout, cell, spec)
    finally:
        await finish(cell.destroy())


async def _examine(layout: Layout, cell: LocalCell, spec: CellSpec) -> list[str]:
    channel = await Channel.open(await cell.dial())
    try:
        await channel.call(
            "exec.start", {"exec_id": "selftest", "argv": list(_SUBJECT), "follow": False}
        )
        directory = layout.cell(cell.id)
        first, state = read_pid(directory), read_state(directory)
        if first is None or state is None:
            return ["the sandbox left no record of itself"]
        ids = None
        if state.slot is not None:
            base = id_ranges.base_of(state.slot)
            ids = range(base, base + id_ranges.COUNT)
        host = posture.read(os.getpid())
        dev = spec.profile == "dev"
        kept = capabilities.bits(capabilities.DEV_USER) if dev else 0
        writable = ("/", "/run") if dev else ("/",) if root_is_writable(spec) else ()

        def judge(seen: posture.Posture) -> list[str]:
            return posture.deviations(seen, host, ids=ids, capabilities=kept, writable=writable)

        return await posture_probe.deviations(_SUBJECT, first[0], judge)
    finally:
        await channel.aclose()
