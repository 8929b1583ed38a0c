"""Resource usage of a container, from the kernel's own files if visible here, else from the engine.
Also the one limit that an engine does not write itself.

The engine reports less: it has no peak on cgroups v2 and does not count how often a limit was hit;
memory kills are among its events, of which it remembers the last few hundred.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten.model.sandbox.usage import Usage
from sandkasten_runtime.linux.cgroup import cgroups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_docker.docker_engine.docker_client import DockerClient

_GROUP = re.compile(r"^[0-9]+:[^:]*:(/.*)$", re.MULTILINE)


def from_kernel(container: Mapping[str, Any]) -> Usage | None:
    """Return the usage, or None if the processes are not on this machine or their cgroups are
    not visible.
    """
    path = group(container)
    if path is None:
        return None
    parent, name = os.path.split(path)
    usage = cgroups.usage(cgroups.detect(), name, parent=parent.strip("/"))
    return usage if usage.memory_bytes is not None else None


def limit_sockets(container: Mapping[str, Any], size: int) -> bool:
    """Limit the buffers of sockets on cgroup v1, and return whether that was possible from here.

    runc ignores the limit that the engine passes on; crun sets it.
    """
    path, at = group(container), cgroups.detect().v1.get("memory")
    if path is None or at is None:
        return False
    try:
        Path(f"{at}{path}", cgroups.SOCKET_LIMIT).write_text(str(size))
    except OSError:
        return False
    return True


def joinable(container: Mapping[str, Any]) -> dict[str, object]:
    """Return the part of the launcher's plan with which a process joins the container's cgroups.

    Nothing of it where this process does not see them or may not write to them.
    """
    path, on = group(container), cgroups.detect()
    if path is None:
        return {"cgroup_tasks": [], "cgroup_v2": None}
    tasks = dict.fromkeys(f"{at}{path}/tasks" for at in on.v1.values())
    v2 = None if on.v2 is None else f"{on.v2}{path}"
    return {
        "cgroup_tasks": [file for file in tasks if os.access(file, os.W_OK)],
        "cgroup_v2": v2 if v2 and os.access(f"{v2}/cgroup.procs", os.W_OK) else None,
    }


def group(container: Mapping[str, Any]) -> str | None:
    """Return the cgroup of a container whose processes are visible here."""
    pid, the_id = (container.get("State") or {}).get("Pid") or 0, str(container.get("Id", ""))
    if not pid or not the_id:
        return None
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return None
    # An unrelated process with the same pid has another cgroup.
    return next((cgroup for cgroup in _GROUP.findall(text) if the_id in cgroup), None)


class DockerUsage:
    """Usage from the engine. Remembers the kills it has seen: the engine forgets them, and a
    count must not fall.
    """

    def __init__(self, api: DockerClient, container: str) -> None:
        self._api = api
        self._container = container
        self._since = int(time.time()) - 24 * 3600
        self._kills: set[int] = set()

    async def usage(self) -> Usage:
        stats = await self._api.stats(self._container)
        self._kills.update(
            await self._api.oom_events(self._container, self._since, int(time.time()) + 1)
        )
        return usage_of(stats, len(self._kills))


def usage_of(stats: Mapping[str, Any], oom_kills: int | None) -> Usage:
    memory = _part(stats, "memory_stats")
    pids = _part(stats, "pids_stats")
    cpu = _part(_part(stats, "cpu_stats"), "cpu_usage")
    total = _whole(cpu.get("total_usage"))
    return Usage(
        memory_bytes=_whole(memory.get("usage")),
        memory_peak_bytes=_whole(memory.get("max_usage")),
        memory_limit_bytes=_whole(memory.get("limit")),
        cpu_usec=None if total is None else total // 1000,
        pids=_whole(pids.get("current")),
        pids_limit=_whole(pids.get("limit")),
        oom_kills=oom_kills,
    )


def _part(stats: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = stats.get(name)
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
