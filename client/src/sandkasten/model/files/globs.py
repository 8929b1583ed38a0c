"""Globs over relative paths: `*` and `?` match within a component, `**` any number of them.

The matched names are chosen by a sandbox, so matching must not consume the host's time: components
are matched without backtracking and `**` with a set of states.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.environment import text_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_GLOB = 512
MAX_GLOBS = 64


@dataclass(frozen=True, slots=True)
class Glob:
    """A compiled glob; `parts` holds one pattern for each component, None for `**`."""

    text: str
    parts: tuple[re.Pattern[str] | None, ...]

    def matches(self, path: str) -> bool:
        states = self._skip({0})
        for name in path.split("/"):
            after: set[int] = set()
            for state in states:
                if state == len(self.parts):
                    continue
                part = self.parts[state]
                if part is None:
                    after.add(state)
                elif part.match(name):
                    after.add(state + 1)
            if not after:
                return False
            states = self._skip(after)
        return len(self.parts) in states

    def _skip(self, states: set[int]) -> set[int]:
        """Add the states after a `**`, which may match no component."""
        for state in sorted(states):
            while state < len(self.parts) and self.parts[state] is None:
                state += 1
                states.add(state)
        return states


def compile_globs(globs: Iterable[str]) -> tuple[Glob, ...]:
    """Compile globs; a leading `/workspace/`, `/work/` or `./` is dropped."""
    compiled = tuple(_compile(glob) for glob in globs)
    if len(compiled) > MAX_GLOBS:
        raise InvalidRequest(
            f"{len(compiled)} globs are too many", hint=f"at most {MAX_GLOBS}", field="artifacts"
        )
    return compiled


def _compile(glob: str) -> Glob:
    text_bytes("an artifact glob", glob)
    for prefix in ("/workspace/", "/work/", "./"):
        if glob.startswith(prefix):
            glob = glob[len(prefix) :]
            break
    parts = glob.split("/")
    if not glob or "" in parts or ".." in parts or len(glob) > MAX_GLOB:
        raise InvalidRequest(
            f"{glob[:80]!r} is not a glob inside the workspace",
            hint="write it relative to the workspace, for instance out/**/*.png",
            field="artifacts",
        )
    return Glob(glob, tuple(None if part == "**" else _component(part) for part in parts))


def _component(part: str) -> re.Pattern[str]:
    """Match one component. The first match between two stars suffices, so time is linear."""
    fixed: list[list[str]] = [[]]
    i = 0
    while i < len(part):
        char = part[i]
        if char == "*":
            fixed.append([])
        elif char == "?":
            fixed[-1].append(".")
        elif char == "[" and (close := part.find("]", i + 2)) > 0:
            body = part[i + 1 : close]
            negated = body[:1] in ("!", "^")
            inner = re.escape(body[1:] if negated else body).replace(r"\-", "-")
            fixed[-1].append(f"[{'^' if negated else ''}{inner}]")
            i = close
        else:
            fixed[-1].append(re.escape(char))
        i += 1
    runs = ["".join(run) for run in fixed]
    pattern = runs[0] + "".join(f"(?>.*?{run})" for run in runs[1:-1] if run)
    if len(runs) > 1:
        pattern += ".*" + runs[-1]
    try:
        return re.compile(pattern + r"\Z", re.DOTALL)
    except re.error as exc:
        raise InvalidRequest(
            f"{part[:80]!r} is not a glob", hint="check its brackets", field="artifacts"
        ) from exc
