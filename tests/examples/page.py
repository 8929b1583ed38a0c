"""A page of the documents as a script: what a reader would type, in order, in one shell.

A block `console` is commands (after `$ `, continued after a backslash) and lines that they print;
a block `python` is a program; a block below "Save this as `NAME`:" is a file.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = re.compile(
    r"(?:Save (?:this|it) as `(?P<name>[^`]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# What differs each time: ids, keys, times.
_CHANGING = re.compile(r"sbx_[0-9a-f]+|f_[0-9A-Z]{26}|key_[0-9a-f]+|sk-[\w-]+|run_\w+")


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    prints: tuple[str, ...] = ()
    """Lines that its output contains; one with an ellipsis is not compared."""

    @property
    def fails(self) -> bool:
        return any(line.startswith("error: ") for line in self.prints)

    def missing(self, said: str) -> list[str]:
        """Return the lines of the page that the output lacks."""
        lines = {_steady(line) for line in said.splitlines()}
        return [
            line
            for line in self.prints
            if line and "…" not in line and "..." not in line and _steady(line) not in lines
        ]


def _steady(line: str) -> str:
    return _CHANGING.sub("ID", line.strip())


def steps_of(page: str, left_out: dict[str, str]) -> list[Step]:
    """Return the steps of a page. `left_out` has patterns of commands and why they are not run;
    one that matches nothing is an error.
    """
    unused = set(left_out)
    steps: list[Step] = []
    for block in _BLOCK.finditer(page):
        if block["name"]:
            steps.append(Step(f"cat > {block['name']} <<'SAVED'\n{block['text']}SAVED"))
            continue
        if block["kind"] == "python":
            steps.append(Step(f"python -W error - <<'PROGRAM'\n{block['text']}PROGRAM"))
        if block["kind"] != "console":
            continue
        for step in _commands(block["text"]):
            why = [pattern for pattern in left_out if re.search(pattern, step.command)]
            unused.difference_update(why)
            if not why:
                steps.append(step)
    assert unused == set(), f"these match no command: {unused}"
    return steps


def _commands(block: str) -> Iterator[Step]:
    prints: list[str] = []
    command, open_line = "", False
    for line in block.splitlines():
        if line.startswith("$ "):
            if command:
                yield Step(command, tuple(prints))
            # A reader puts something in the place of an ellipsis.
            command, prints = line[2:].replace("…", "0123456789"), []
        elif open_line:
            command += "\n" + line
        else:
            prints.append(line)
        open_line = (line.startswith("$ ") or open_line) and line.endswith("\\")
    if command:
        yield Step(command, tuple(prints))


def script_of(steps: list[Step], log: str) -> str:
    """Return a shell script. Each step leaves its output and its status in `log`."""
    lines = ["set -u", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    for number, step in enumerate(steps):
        out = shlex.quote(f"{log}/{number}")
        lines.append(f"{{ {step.command}\n}} </dev/null >{out} 2>&1; echo $? >{out}.status")
        if re.search(r"\bserve\b.*&", step.command):
            # A reader waits for the line that says it is ready.
            lines.append(f"until grep -q 'sandkasten serves' {out}; do sleep 0.05; done")
        # A reader stops at the first surprise.
        expected = "-ne" if step.fails else "-eq"
        lines.append(f"[ $(cat {out}.status) {expected} 0 ] || exit 3")
    return "\n".join(lines) + "\n"
