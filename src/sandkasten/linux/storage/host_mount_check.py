"""Check an operator's host mount when it is used: does it exist, and what is it really.

Settings are read much earlier; by now the directory may be gone, be a symlink into something
secret, or contain a socket (a read-only mount does not prevent connecting to one). Raises
BackendUnavailable if it is missing and PolicyDenied if it must not be shown.
"""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, InvalidRequest, PolicyDenied
from sandkasten.model.sandbox.cell_spec import HostMount
from sandkasten.model.sandbox.host_mounts import check_source

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
            mode = os.stat(real, follow_symlinks=False).st_mode
        except OSError as exc:
            raise BackendUnavailable(
                f"mount {rule.name}: {rule.source} cannot be mounted: {exc.strerror or exc}",
                hint="the operator's policy.mounts names it; create it or remove the entry",
                mount=rule.name,
            ) from exc
        try:
            check_source(rule.name, real, self._data_dir)
        except InvalidRequest as exc:
            raise _denied(rule, exc.message) from exc
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise _denied(
                rule, f"mount {rule.name}: {rule.source} is neither a directory nor a file"
            )
        for path in sockets:
            if path == real or path.startswith(real.rstrip("/") + "/"):
                raise _denied(rule, f"mount {rule.name}: a process listens on {path}")
        return HostMount(real, rule.target)


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
