"""Which files of a directory a `.dockerignore` leaves out. Pure.

A pattern also holds for everything below what it matches; of several, the last one decides.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Final

from sandkasten.errors import InvalidRequest
from sandkasten.model.spelling import shown


@dataclass(frozen=True, slots=True)
class DockerIgnore:
    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()
    """Each with whether it takes back what an earlier one left out."""

    @property
    def has_exceptions(self) -> bool:
        return any(back for _, back in self.patterns)

    def excludes(self, path: str) -> bool:
        """Return whether a path below the directory is left out."""
        parts = path.split("/")
        above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        out = False
        for pattern, back in self.patterns:
            # Cheap first: most patterns cannot change the result.
            if out == back and any(pattern.match(one) for one in above):
                out = not back
        return out


NOTHING: Final = DockerIgnore()


def parse_dockerignore(data: bytes) -> DockerIgnore:
    found = []
    for number, raw in enumerate(data.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
        line = raw.strip()
        if not line or raw.startswith("#"):
            continue
        back = line.startswith("!")
        clean = posixpath.normpath("/" + line.removeprefix("!").strip()).lstrip("/")
        if clean:
            try:
                found.append((glob(clean), back))
            except (ValueError, re.error) as exc:
                raise InvalidRequest(
                    f".dockerignore line {number}: {shown(line)} is not a valid pattern",
                    hint="use *, ?, ** and [a-z]",
                    line=number,
                ) from exc
    return DockerIgnore(tuple(found))


def glob(pattern: str) -> re.Pattern[str]:
    """Return the expression of a pattern: `*` and `?` stay within a name, `**` does not. Raise
    ValueError.
    """
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**", at):
            at += 2
            if pattern.startswith("/", at):
                at += 1
                out += "(?:.*/)?"
            else:
                out += ".*"
            continue
        one = pattern[at]
        at += 1
        if one == "*":
            out += "[^/]*"
        elif one == "?":
            out += "[^/]"
        elif one == "[":
            close = pattern.index("]", at + 1)
            inner = pattern[at:close].replace("\\", "\\\\").replace("[", "\\[")
            out += f"(?!/)[{inner}]"
            at = close + 1
        elif one == "\\" and at < len(pattern):
            out += re.escape(pattern[at])
            at += 1
        else:
            out += re.escape(one)
    return re.compile(out + r"\Z", re.DOTALL)
