"""The distributions of this repository: directories, wheels, and what an extra needs of others.

    distributions.py directories            one line for each, the runtime first
    distributions.py needs EXTRA...         requirements of other projects, for `pip compile`
    distributions.py wheels OUT [KIND]      builds all wheels (KIND: standard or editable)
    distributions.py installs EXTRA...      names of our wheels that these extras install

Reads the pyproject.toml files; needs no library but the one that builds.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = "sandkasten-runtime"
CLIENT = "sandkasten-client"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[([A-Za-z0-9,._ -]+)\])?")


def directories() -> list[Path]:
    """Return the directory of every distribution that users install, the runtime first."""
    rest = [ROOT / "client", ROOT / "server", *sorted((ROOT / "plugins").iterdir())]
    return [ROOT, *(path for path in rest if (path / "pyproject.toml").is_file())]


def sources() -> list[str]:
    """Return the directories with a package each, relative to the repository."""
    return [str((path / "src").relative_to(ROOT)) for path in directories()]


def projects() -> dict[str, dict[str, Any]]:
    """Return the table `project` of every distribution by its name."""
    tables = (tomllib.loads((path / "pyproject.toml").read_text()) for path in directories())
    return {table["project"]["name"]: table["project"] for table in tables}


def needs(*extras: str) -> list[str]:
    """Return the requirements of other projects that extras of the runtime bring."""
    return [line for line in _closure(*extras) if _parsed(line)[0] not in projects()]


def installs(*extras: str) -> list[str]:
    """Return the names of our distributions that extras of the runtime install."""
    own_names = {_parsed(line)[0] for line in _closure(*extras)} & projects().keys()
    return [RUNTIME, *sorted(own_names - {RUNTIME})]


def _closure(*extras: str) -> list[str]:
    """Follow our own distributions and their extras; return every line that was met."""
    own_projects = projects()
    met: dict[str, None] = {}
    waiting = [f"{RUNTIME}[{extra}]" for extra in extras] or [RUNTIME]
    while waiting:
        line = waiting.pop()
        if line in met:
            continue
        met[line] = None
        name, its_extras = _parsed(line)
        if name in own_projects:
            project = own_projects[name]
            waiting += project.get("dependencies", [])
            for extra in its_extras:
                waiting += project.get("optional-dependencies", {})[extra]
    return list(met)


def _parsed(requirement: str) -> tuple[str, list[str]]:
    """Return the name and the extras of a requirement."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        raise ValueError(f"{requirement!r} is not a requirement")
    return match[1].lower(), [extra.strip() for extra in (match[2] or "").split(",") if extra]


def build_wheels(out: Path, kind: str = "standard") -> None:
    """Build the wheel of every distribution into a directory."""
    out.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "hatchling", "build", "-t", f"wheel:{kind}", "-d", str(out)]

    def build(directory: Path) -> None:
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the wheel of {directory.name} could not be built:\n{done.stderr}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build, directories()))


def main(words: list[str]) -> None:
    match words:
        case ["directories"]:
            lines = [str(path.relative_to(ROOT)) for path in directories()]
        case ["needs", *extras]:
            lines = sorted(needs(*extras))
        case ["installs", *extras]:
            lines = installs(*extras)
        case ["wheels", out]:
            lines = []
            build_wheels(Path(out).absolute())
        case ["wheels", out, ("standard" | "editable") as kind]:
            lines = []
            build_wheels(Path(out).absolute(), kind)
        case _:
            raise SystemExit(__doc__)
    if lines:
        print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
