"""Prints which locked packages known advisories name: advisories.py DIRECTORY...

The directories have advisories of OSV's format, JSON or YAML, as the databases of GitHub and PyPA,
and the branch `osv` of RustSec's. Nothing is fetched. Exits with 1 if a locked version is affected.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = Path(__file__).resolve().parents[1] / "requirements" / "packages.json"
_ECOSYSTEMS = {"PyPI": "python", "npm": "npm", "crates.io": "rust"}


def affected(directory: Path, packages: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Return a line for every locked version that an advisory names."""
    for file in (file for file in directory.rglob("*") if file.suffix in (".json", ".yaml")):
        is_json, text = file.suffix == ".json", file.read_text()
        advisory = json.loads(text) if is_json else yaml.load(text, yaml.CSafeLoader)
        for entry in () if advisory.get("withdrawn") else advisory.get("affected", ()):
            ecosystem = _ECOSYSTEMS.get(entry["package"]["ecosystem"], "")
            name = entry["package"]["name"]
            name = re.sub(r"[-_.]+", "-", name.lower()) if ecosystem == "python" else name
            for version in packages.get(ecosystem, {}).get(name, ()):
                ranges = (r["events"] for r in entry.get("ranges", ()) if r["type"] != "GIT")
                if version in entry.get("versions", ()) or any(_holds(r, version) for r in ranges):
                    yield f"{ecosystem} {name} {version} {advisory['id']}"


def _holds(events: list[dict[str, Any]], version: str) -> bool:
    inside = False
    for kind, bound in (pair for event in events for pair in event.items()):
        this, other = Version(version), Version(str(bound))
        if kind == "introduced" and this >= other:
            inside = True
        elif (kind == "fixed" and this >= other) or (kind == "last_affected" and this > other):
            inside = False
    return inside


if __name__ == "__main__":
    locked = json.loads(PACKAGES.read_text())
    lines = [line for path in sys.argv[1:] for line in affected(Path(path), locked)]
    print("\n".join(lines) or "no locked version is affected")
    sys.exit(bool(lines))
