"""The page of tested platforms, and where it differs from the results of a run."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, get_args

from tests.matrix.runs import OUTCOMES
from tests.ordinary_user import REPOSITORY
from tests.platform_choice import CLUSTER_TITLES, PARTS, TITLES, Suite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.platform_markers import Found

PAGE = REPOSITORY / "docs" / "reference" / "grounds.md"
# Of the last `make test-cluster`; the others do not remove it.
CLUSTER_OUTCOME = REPOSITORY / "build" / "cluster-platforms.json"
SUITES: tuple[Suite, ...] = get_args(Suite)
HEAD = """\
<!-- made from a run of the tests by tests/matrix/page.py; do not edit -->

# Where the suites pass

Two suites run on every platform that a sandbox can use.
The contract (`tests/conformance`) is what the engine relies on: commands, shells, files, archives.
The security suite (`tests/security`) attacks it.

A number stands for tests that do not run there, with the reason below.
Nothing else is left out.

"""
DAILY = """
## `make test` and `make test-long`

`make test-long` runs both suites in full on every platform.
`make test` runs them in full on some, and these files of them on the others:

"""
ON_A_CLUSTER = """
## `make test-cluster`

`make test-cluster` runs both suites on a real cluster of two nodes.
With the second way to reach a Pod, it runs these files of them:

"""


def read() -> dict[str, Found]:
    """Return what the last run found, by suite and platform."""
    found: dict[str, Found] = {}
    for file in (*sorted(OUTCOMES.glob("*.json")), CLUSTER_OUTCOME):
        if file.exists():
            found.update(json.loads(file.read_text()))
    return found


def kept(page: str) -> dict[str, Found]:
    """Return what a page says, for the platforms that a run did not include."""
    listed = re.findall(r"^\d+\. (.*) \((`.*`)\)$", page, re.MULTILINE)
    files = {why: [f"test_{name}.py" for name in re.findall("`(.*?)`", told)]
             for why, told in listed}  # fmt: skip
    return {
        name: {
            "passed": 1,
            "failed": [],
            "skipped": [],
            "not_asked": {why: files[why] for why in reasons},
            "files": [],
            "seconds": 0.0,
        }
        for name, (mark, reasons) in parse(page).items()
        if mark == "passes"
    }


def render(found: Mapping[str, Found]) -> str:
    reasons: list[str] = []
    rows = []
    for platform, title in (*TITLES.items(), *CLUSTER_TITLES.items()):
        marks = [_mark(found.get(f"{suite} {platform}"), reasons) for suite in SUITES]
        rows.append(f"| `{platform}` | {title} | {' | '.join(marks)} |\n")
    table = f"| platform | what it is | {' | '.join(SUITES)} |\n|---|---|---|---|\n{''.join(rows)}"
    listed = "".join(
        f"{number}. {why} ({_files(why, found)})\n" for number, why in enumerate(reasons, 1)
    )
    parts = f"{DAILY}{_parts(TITLES)}{ON_A_CLUSTER}{_parts(CLUSTER_TITLES)}"
    return f"{HEAD}{table}\n## Left out\n\n{listed}{parts}"


def _parts(platforms: Iterable[str]) -> str:
    return "".join(
        f"- {suite} on `{platform}`: {PARTS[suite, platform]}\n"
        for platform in platforms
        for suite in SUITES
        if (suite, platform) in PARTS
    )


def _mark(found: Found | None, reasons: list[str]) -> str:
    if found is None or not found["passed"]:
        return "not run"
    if found["failed"] or found["skipped"]:
        return "**fails**"
    reasons += [why for why in sorted(found["not_asked"]) if why not in reasons]
    numbers = sorted(reasons.index(why) + 1 for why in found["not_asked"])
    return " ".join(["passes", *(f"[{number}]" for number in numbers)])


def _files(why: str, found: Mapping[str, Found]) -> str:
    named = {
        f"`{file.removeprefix('test_').removesuffix('.py')}`"
        for cell in found.values()
        for file in cell["not_asked"].get(why, ())
    }
    return ", ".join(sorted(named))


def parse(page: str) -> dict[str, tuple[str, set[str]]]:
    """Return what a page says by suite and platform: the mark, and the reasons for omissions."""
    reasons = dict(re.findall(r"^(\d+)\. (.*) \(`.*`\)$", page, re.MULTILINE))
    cells = {}
    for name, *marks in re.findall(r"^\| `(.*?)` \| .*? \| (.*) \| (.*) \|$", page, re.MULTILINE):
        for suite, text in zip(SUITES, marks, strict=True):
            numbers = re.findall(r"\[(\d+)\]", text)
            cells[f"{suite} {name}"] = text.partition(" [")[0], {reasons[n] for n in numbers}
    return cells


def problems(
    page: str, found: Mapping[str, Found], platforms: Iterable[str] = TITLES
) -> Iterator[str]:
    """Yield a line for every platform that did not run or pass, and where the page differs."""
    cells = parse(page)
    for platform in platforms:
        for suite in SUITES:
            name = f"{suite} {platform}"
            mark = _mark(found.get(name), [])
            if not mark.startswith("passes"):
                yield f"{name}: {mark}"
            # In its full size a run may leave out more tests than the part that the page is about.
            elif not set(found[name]["not_asked"]) <= cells.get(name, ("", set()))[1]:
                yield f"{name}: the page does not name every reason for a test that did not run"


def main(*arguments: str) -> int:
    found = read()
    if arguments == ("--write",):
        PAGE.write_text(render({**kept(PAGE.read_text()), **found}))
        return 0
    platforms = CLUSTER_TITLES if arguments == ("--cluster",) else TITLES
    if lines := list(problems(PAGE.read_text(), found, platforms)):
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.write("to update the page: .venv/bin/python -m tests.matrix.page --write\n")
        return 1
    tests = sum(
        found[f"{suite} {platform}"]["passed"] for platform in platforms for suite in SUITES
    )
    sys.stdout.write(f"both suites ran on {len(platforms)} platforms: {tests} tests passed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
