"""Self-test before the first sandbox on an engine: make a throw-away one and inspect it from
inside.

The engine may be remote, so the test uses what a user's command sees of itself, reported by the
runner's own program. `deviations` is pure. The verdict is kept in a file named after everything it
depends on.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from sandkasten.backends.docker import resource_names
from sandkasten.errors import BackendUnavailable, IsolationRefused
from sandkasten.model.sandbox.cell_spec import HOME, ROOT_HOME, TMP, VAR_TMP, WORKSPACE
from sandkasten.wire.call import OutputChunk
from sandkasten.wire.channel import Channel
from sandkasten.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.backends.docker.cell import DockerCell

_DEADLINE_S = 30.0
_STDOUT = 1
_SUBJECT = (resource_names.RUNNER_PATH, "--posture")
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
# Mounted by the engine for every container: private to it, small, in memory.
_ENGINES_OWN = ("/dev", "/proc")
_OURS = (
    *(WORKSPACE, HOME, TMP, VAR_TMP, "/run"),
    *(resource_names.STATE_DIR, resource_names.LISTEN_DIR),
)
# Files are hidden by mounting the null device over them.
_MASKS = (("/null", "tmpfs"), ("/null", "devtmpfs"))
_FIELDS = 6
# The engine's files for this container alone; read-only if its root is.
_KEPT_READ_ONLY = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


async def examine(cell: DockerCell, *, writable_root: bool, dev: bool) -> None:
    """Raise IsolationRefused if the sandbox is less closed than required."""
    try:
        async with asyncio.timeout(_DEADLINE_S):
            seen = await _posture(cell)
    except TimeoutError as exc:
        raise BackendUnavailable("a new sandbox does not answer in time") from exc
    found = deviations(seen, writable_root=writable_root, dev=dev)
    if found:
        raise IsolationRefused(
            f"a new sandbox is less isolated than required: {'; '.join(found)}",
            hint="run `sandkasten doctor`; no sandbox is created until this is fixed",
            deviations=found,
        )


async def _posture(cell: DockerCell) -> Mapping[str, Any]:
    channel = await Channel.open(await cell.dial())
    try:
        fields: dict[str, Any] = {"exec_id": "trial", "argv": list(_SUBJECT), "follow": False}
        await channel.call("exec.start", fields)
        wait = {"exec_id": "trial", "timeout_ms": int(_DEADLINE_S * 1000)}
        ended = decode_exec(await channel.call("exec.wait", wait))
        text = await _output(channel)
    finally:
        await channel.aclose()
    if ended.exit_code != 0:
        raise BackendUnavailable(
            f"the runner's own program fails inside with status {ended.exit_code}",
            hint="the Docker Engine's machine may have another architecture than this one",
        )
    found: Mapping[str, Any] = json.loads(text)
    return found


async def _output(channel: Channel) -> bytes:
    found = bytearray()
    async with channel.stream("exec.output", {"exec_id": "trial"}) as call:
        async for item in call:
            if isinstance(item, OutputChunk) and item.source == _STDOUT:
                found += item.data
    return bytes(found)


def deviations(
    seen: Mapping[str, Any], *, writable_root: bool = False, dev: bool = False
) -> list[str]:
    """Return everything that is less closed than required; empty is good."""
    status: Mapping[str, str] = seen.get("status") or {}
    found = []
    if not dev:
        found += [
            f"{name} is not empty: {status.get(name)}"
            for name in _CAPABILITY_SETS
            if int(status.get(name) or "1", 16)
        ]
        for field in ("Uid", "Gid"):
            if "0" in (status.get(field) or "0").split():
                found.append(f"{field} is 0")
    if status.get("NoNewPrivs") != "1":
        found.append("no_new_privs is not set")
    if status.get("Seccomp") != "2":
        found.append("no seccomp filter is in force")
    if (status.get("Groups") or "").strip():
        found.append(f"supplementary groups were inherited: {status['Groups']}")
    if any(int(fd) > 2 for fd in seen.get("descriptors") or ()):
        found.append(f"descriptors were inherited: {seen['descriptors']}")
    mounted = str(seen.get("mountinfo", ""))
    return found + mount_deviations(mounted, writable_root=writable_root, dev=dev)


def mount_deviations(
    mountinfo: str, *, writable_root: bool = False, dev: bool = False
) -> list[str]:
    with_root = ("/", *_KEPT_READ_ONLY) if writable_root or dev else ()
    open_to_all = {*_OURS, *_ENGINES_OWN, *with_root, *((ROOT_HOME,) if dev else ())}
    found: list[str] = []
    sys_hidden = False
    # From the last mount to the first: a mount that is covered cannot be reached any more.
    for line in reversed(mountinfo.splitlines()):
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < _FIELDS:
            continue
        where, options, kind = fields[4], set(fields[5].split(",")), right.split()[0]
        if where == "/sys" and kind == "tmpfs" and "ro" in options:
            sys_hidden = True
        masked = where.startswith("/proc/") and (fields[3], kind) in _MASKS
        excused = where in open_to_all or where.startswith("/dev/") or masked
        if "rw" in options and not excused and not (sys_hidden and where.startswith("/sys/")):
            found.append(f"{where} is writable")
    if not sys_hidden:
        found.append("/sys is not hidden")
    return found
