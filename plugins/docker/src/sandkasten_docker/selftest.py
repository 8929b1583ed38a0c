"""Self-test before the first sandbox on an engine: make a temporary one and inspect it from
inside.

The engine may be remote, so the test uses what a user's command sees of itself, reported by the
runner's own program. `deviations` is pure. The verdict is kept in a file named after everything it
depends on.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from sandkasten.errors import BackendUnavailable, IsolationRefused
from sandkasten.model.sandbox.cell_spec import HOME, ROOT_HOME, TMP, VAR_TMP, WORKSPACE
from sandkasten_docker import resource_names
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_docker.cell import DockerCell

_DEADLINE_S = 30.0
_STDOUT = 1
_SUBJECT = (resource_names.RUNNER_PATH, "--posture")
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
# Mounted by the engine for every container: private to it, small, in memory.
_DOCKER_OWNED = ("/dev", "/proc")
_OURS = (
    *(WORKSPACE, HOME, TMP, VAR_TMP, "/run"),
    *(resource_names.STATE_DIR, resource_names.LISTEN_DIR),
)
# Files are hidden by mounting the null device over them.
_MASKS = (("/null", "tmpfs"), ("/null", "devtmpfs"))
_FIELDS = 6
# Files that the engine makes for each container; read-only if the container's root is.
_KEPT_READ_ONLY = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


async def examine(cell: DockerCell, *, writable_root: bool, dev: bool) -> None:
    """Raise IsolationRefused if the sandbox is less closed than required."""
    try:
        async with asyncio.timeout(_DEADLINE_S):
            posture = await _posture(cell)
    except TimeoutError as exc:
        raise BackendUnavailable("a new sandbox does not answer in time") from exc
    problems = deviations(posture, writable_root=writable_root, dev=dev)
    if problems:
        raise IsolationRefused(
            f"a new sandbox is less isolated than required: {'; '.join(problems)}",
            hint="run `sandkasten doctor`; no sandbox is created until this is fixed",
            deviations=problems,
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
    posture: Mapping[str, Any] = json.loads(text)
    return posture


async def _output(channel: Channel) -> bytes:
    output = bytearray()
    async with channel.stream("exec.output", {"exec_id": "trial"}) as call:
        async for item in call:
            if isinstance(item, OutputChunk) and item.source == _STDOUT:
                output += item.data
    return bytes(output)


def deviations(
    posture: Mapping[str, Any], *, writable_root: bool = False, dev: bool = False
) -> list[str]:
    """Return everything that is less closed than required; empty is good."""
    status: Mapping[str, str] = posture.get("status") or {}
    problems = []
    if not dev:
        problems += [
            f"{name} is not empty: {status.get(name)}"
            for name in _CAPABILITY_SETS
            if int(status.get(name) or "1", 16)
        ]
        for field in ("Uid", "Gid"):
            if "0" in (status.get(field) or "0").split():
                problems.append(f"{field} is 0")
    if status.get("NoNewPrivs") != "1":
        problems.append("no_new_privs is not set")
    if status.get("Seccomp") != "2":
        problems.append("no seccomp filter is in force")
    if (status.get("Groups") or "").strip():
        problems.append(f"supplementary groups were inherited: {status['Groups']}")
    if any(int(fd) > 2 for fd in posture.get("descriptors") or ()):
        problems.append(f"descriptors were inherited: {posture['descriptors']}")
    mounted = str(posture.get("mountinfo", ""))
    return problems + mount_deviations(mounted, writable_root=writable_root, dev=dev)


def mount_deviations(
    mountinfo: str, *, writable_root: bool = False, dev: bool = False
) -> list[str]:
    with_root = ("/", *_KEPT_READ_ONLY) if writable_root or dev else ()
    open_to_all = {*_OURS, *_DOCKER_OWNED, *with_root, *((ROOT_HOME,) if dev else ())}
    problems: list[str] = []
    sys_hidden = False
    # From the last mount to the first: a mount that is covered cannot be reached any more.
    for line in reversed(mountinfo.splitlines()):
        head, _, tail = line.partition(" - ")
        fields = head.split()
        if len(fields) < _FIELDS:
            continue
        where, options, kind = fields[4], set(fields[5].split(",")), tail.split()[0]
        if where == "/sys" and kind == "tmpfs" and "ro" in options:
            sys_hidden = True
        masked = where.startswith("/proc/") and (fields[3], kind) in _MASKS
        excused = where in open_to_all or where.startswith("/dev/") or masked
        if "rw" in options and not excused and not (sys_hidden and where.startswith("/sys/")):
            problems.append(f"{where} is writable")
    if not sys_hidden:
        problems.append("/sys is not hidden")
    return problems
