"""Writes docs/reference/grounds.md from build/matrix.json: where the suites pass.

.venv/bin/python scripts/matrix.py     write; after a run of tests/conformance, tests/security and
                                       tests/matrix together, as `make test` does it

tests/matrix checks that the page says what the run found: marks and reasons, not numbers of tests.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "grounds.md"
FOUND = ROOT / "build" / "matrix.json"
SUITES = ("contract", "security")
GROUNDS = {
    "local": "bubblewrap on the machine's own files",
    "local/debian": "bubblewrap on a Debian image",
    "local/busybox": "bubblewrap on a busybox image: no bash, no Python",
    "local/dev": "bubblewrap on a Debian image with the dev profile: root inside",
    "user local": "bubblewrap on the machine's own files, by an ordinary user",
    "user local/debian": "bubblewrap on a Debian image, by an ordinary user",
    "oci": "runc on the machine's own files",
    "gvisor": "gVisor on the machine's own files",
    "docker/bind": "Docker on this machine, workspaces are directories that both see",
    "docker/volume": "Docker on this machine, workspaces are the engine's volumes",
    "docker/shared": "Docker, from inside a container that has the volume of all sessions",
    "docker/inside": "Docker, from inside a container that has the socket and nothing else",
    "docker/remote": "Docker on a machine far away, over TCP with certificates of both sides",
    "docker/busybox": "Docker on a busybox image: no bash, no Python",
}
HEAD = """\
<!-- made from a run of the tests by scripts/matrix.py; do not edit -->

# Where the suites pass

Two suites are run on every ground a sandbox can stand on.
The contract (`tests/conformance`) is what the engine relies on: commands, shells, files, archives.
The security suite (`tests/security`) attacks it.

A number stands for something that is not asked there, with its reason below.
Nothing else is left out.

"""
EVERY_DAY = """
## Every day and in full

`make test-long` runs both suites in full on every ground, `make test` a part of some:

"""


def render(cells: dict[str, dict[str, Any]]) -> str:
    reasons: list[str] = []
    rows, daily = [], []
    for ground, title in GROUNDS.items():
        marks = []
        for suite in SUITES:
            cell = cells.get(f"{suite} {ground}")
            marks.append("not run" if cell is None else _mark(cell, reasons))
            if cell is not None and cell["every_day"]:
                daily.append(f"- {suite} on `{ground}`: `{cell['every_day']}`\n")
        rows.append(f"| `{ground}` | {title} | {' | '.join(marks)} |\n")
    table = f"| ground | what it is | {' | '.join(SUITES)} |\n|---|---|---|---|\n{''.join(rows)}"
    listed = "".join(
        f"{number}. {why} ({_files(why, cells)})\n" for number, why in enumerate(reasons, 1)
    )
    return f"{HEAD}{table}\n## Not asked\n\n{listed}{EVERY_DAY}{''.join(daily)}"


def _mark(cell: dict[str, Any], reasons: list[str]) -> str:
    if cell["failed"]:
        return "**fails**"
    reasons += [why for why in sorted(cell["not_asked"]) if why not in reasons]
    numbers = sorted(reasons.index(why) + 1 for why in cell["not_asked"])
    return " ".join(["passes", *(f"[{number}]" for number in numbers)])


def _files(why: str, cells: dict[str, dict[str, Any]]) -> str:
    named = {
        f"`{file.removeprefix('test_').removesuffix('.py')}`"
        for cell in cells.values()
        for file in cell["not_asked"].get(why, ())
    }
    return ", ".join(sorted(named))


def said(page: str) -> dict[str, tuple[str, set[str]]]:
    """What a page says, by suite and ground: the mark, and the reasons for what is not asked."""
    reasons = dict(re.findall(r"^(\d+)\. (.*) \(`.*`\)$", page, re.MULTILINE))
    found = {}
    for ground, *marks in re.findall(r"^\| `(.*?)` \| .*? \| (.*) \| (.*) \|$", page, re.MULTILINE):
        for suite, text in zip(SUITES, marks, strict=True):
            numbers = re.findall(r"\[(\d+)\]", text)
            found[f"{suite} {ground}"] = text.partition(" [")[0], {reasons[n] for n in numbers}
    return found


if __name__ == "__main__":
    if not FOUND.exists():
        sys.exit("build/matrix.json is not there: run tests/matrix first")
    PAGE.write_text(render(json.loads(FOUND.read_text())))
