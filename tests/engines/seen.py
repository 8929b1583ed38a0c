"""What an engine has of one sandbox, as the engine and the kernel show it: not as we say it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.engines.reached import Reached

_CGROUPS = Path("/sys/fs/cgroup")


def first_process(engine: Reached, name: str) -> int:
    """The host's number of it; engines of tests share the kernel of the machine."""
    return int(engine.ask("GET", f"/containers/{name}/json")["State"]["Pid"])


def cgroups(pid: int) -> list[str]:
    """Directories, as far as they can be seen from here."""
    found = []
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        tops = [kinds.removeprefix("name="), *kinds.split(","), "unified" if not kinds else ""]
        if path != "/":
            found += [
                str(at)
                for top in dict.fromkeys(tops)
                if top and (at := _CGROUPS / top / path.lstrip("/")).is_dir()
            ]
    return found


def things(engine: Reached, sandbox_id: str) -> list[str]:
    """Containers and volumes that bear its id."""
    return [
        *(f"container {name}" for name in engine.containers() if sandbox_id in name),
        *(f"volume {name}" for name in engine.volumes() if sandbox_id in name),
    ]
