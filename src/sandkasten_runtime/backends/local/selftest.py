"""Self-test of the local backend: its temporary sandbox is inspected from outside."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.disk.process_identity import boot_id
from sandkasten.model.sandbox.cell_spec import root_is_writable
from sandkasten_runtime.backends.launched_selftest import SUBJECT, judge, passed_once
from sandkasten_runtime.linux.confinement import capabilities, id_ranges, posture, posture_probe
from sandkasten_runtime.linux.programs import find_bwrap
from sandkasten_runtime.linux.state_layout import read_pid, read_state

if TYPE_CHECKING:
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell, LaunchedSandboxes
    from sandkasten_runtime.backends.launched_selftest import Create
    from sandkasten_runtime.linux.programs import Programs
    from sandkasten_runtime.wire.channel import Channel


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


async def ensure(sandboxes: LaunchedSandboxes, create: Create, spec: CellSpec) -> None:
    """Raise IsolationRefused on a mismatch; do nothing if this set-up has passed."""

    async def test() -> str:
        await judge(create, spec, lambda cell, channel: _examine(cell, channel, spec))
        return ""

    await passed_once(sandboxes.layout, _key(sandboxes.programs), spec, test)


async def _examine(cell: LaunchedCell, channel: Channel, spec: CellSpec) -> list[str]:
    await channel.call(
        "exec.start", {"exec_id": "selftest", "argv": list(SUBJECT), "follow": False}
    )
    directory = cell.layout.cell(cell.id)
    first, state = read_pid(directory), read_state(directory)
    if first is None or state is None:
        return ["the sandbox left no record of itself"]
    ids = None
    if state.slot is not None:
        base = id_ranges.base_of(state.slot)
        ids = range(base, base + id_ranges.COUNT)
    host = posture.read(os.getpid())
    dev = spec.profile == "dev"
    extra = capabilities.bits(capabilities.DEV_USER) if dev else 0
    writable = ("/", "/run") if dev else ("/",) if root_is_writable(spec) else ()

    def deviations(actual: posture.Posture) -> list[str]:
        return posture.deviations(actual, host, ids=ids, capabilities=extra, writable=writable)

    return await posture_probe.deviations(SUBJECT, first[0], deviations)
