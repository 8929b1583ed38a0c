"""Check an operator's host mount when it is used: does it exist, and what is it really.

Settings are read much earlier; by now the directory may be gone, be a symlink into something
secret, or contain a socket (a read-only mount does not prevent connecting to one). Raises
BackendUnavailable if it is missing and PolicyDenied if it must not be shown. The launcher walks the
path again when it mounts, without following any link; this check is for the message.
"""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, InvalidRequest, PolicyDenied
from sandkasten.model.sandbox.cell_spec import HostMount, HostOwner
from sandkasten.model.sandbox.host_mounts import check_source, check_writable_source
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sandkasten.model.sandbox.host_mounts import MountRule

_SOCKETS = "/proc/net/unix"


class HostMountCheck:
    """Implements `ports.HostMounts`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = os.path.realpath(data_dir)

    async def resolve(self, rules: Sequence[MountRule]) -> tuple[HostMount, ...]:
        # In a thread: a source may be on a network file system that does not answer.
        return await asyncio.to_thread(self._resolve, rules) if rules else ()

    def _resolve(self, rules: Sequence[MountRule]) -> tuple[HostMount, ...]:
        sockets = tuple(_bound_sockets())
        return tuple(self._checked(rule, sockets) for rule in rules)

    def _checked(self, rule: MountRule, sockets: Sequence[str]) -> HostMount:
        try:
            real = os.path.realpath(rule.source, strict=True)
            status = os.stat(real, follow_symlinks=False)
        except OSError as exc:
            raise BackendUnavailable(
                f"mount {rule.name}: {rule.source} cannot be mounted: {exc.strerror or exc}",
                hint="the operator's policy.mounts names it; create it or remove the entry",
                mount=rule.name,
            ) from exc
        try:
            check_source(rule.name, real, self._data_dir)
            if rule.mode == "rw":
                check_writable_source(rule.name, real)
        except InvalidRequest as exc:
            raise _denied(rule, exc.message) from exc
        path = real
        if rule.below:
            status, path = _below(real, rule), f"{real}/{rule.below}"
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            raise _denied(
                rule, f"mount {rule.name}: {rule.source} is neither a directory nor a file"
            )
        for socket in sockets:
            if socket == path or socket.startswith(path.rstrip("/") + "/"):
                raise _denied(rule, f"mount {rule.name}: a process listens on {socket}")
        owner = _owner(rule, status) if rule.mode == "rw" else None
        return HostMount(real, rule.target, below=rule.below, owner=owner)


def _below(real: str, rule: MountRule) -> os.stat_result:
    """Look at the directory that a request names, without following a link on the way."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open("/", flags)
    try:
        for part in (*real.strip("/").split("/"), *rule.below.split("/")):
            try:
                there = os.open(part, flags, dir_fd=here)
            except OSError as exc:
                raise PolicyDenied(
                    f"mount {rule.name} has no directory {shown(rule.below)}",
                    hint="name a directory that exists below the mount; links are not followed",
                    mount=rule.name,
                ) from exc
            os.close(here)
            here = there
        status = os.fstat(here)
    finally:
        os.close(here)
    if stat.S_ISLNK(status.st_mode):
        raise PolicyDenied(
            f"mount {rule.name}: {shown(rule.below)} is a link",
            hint="name a directory; links below a mount are not followed",
            mount=rule.name,
        )
    return status


def _owner(rule: MountRule, status: os.stat_result) -> HostOwner:
    """Return the owner of what the sandbox writes. Files of root would be trusted by the host."""
    path = f"{rule.source}/{rule.below}" if rule.below else rule.source
    if not stat.S_ISDIR(status.st_mode):
        raise _denied(rule, f"mount {rule.name}: {path} is not a directory, so it is not writable")
    if status.st_uid == 0 or (status.st_gid == 0 and os.geteuid() == 0):
        raise PolicyDenied(
            f"mount {rule.name}: {path} belongs to root, and a sandbox may not write files of root",
            hint=f"give the directory to an ordinary user and group: chown USER:GROUP {path}",
            mount=rule.name,
        )
    if os.geteuid() not in (0, status.st_uid):
        raise PolicyDenied(
            f"mount {rule.name}: {path} belongs to user {status.st_uid}, not to the daemon's user",
            hint="run the daemon as root, or name a directory of its user in policy.mounts",
            mount=rule.name,
        )
    return HostOwner(status.st_uid, status.st_gid)


def _bound_sockets() -> Iterator[str]:
    """Return the real paths of bound sockets, as the kernel lists them for this network
    namespace.
    """
    try:
        with open(_SOCKETS, "rb") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 7)
        # A path below /proc is relative to its binder's view, not ours.
        if len(fields) == 8 and fields[7].startswith(b"/") and not fields[7].startswith(b"/proc/"):
            yield os.path.realpath(os.fsdecode(fields[7]))


def _denied(rule: MountRule, message: str) -> PolicyDenied:
    return PolicyDenied(
        message, hint="the operator must name another source in policy.mounts", mount=rule.name
    )
