"""Read the entry points of the groups `sandkasten.*` from the metadata of distributions.

Reads `*.dist-info/entry_points.txt` on `sys.path` itself: importing `importlib.metadata` takes
60 ms, more than a short command takes, and this takes one or two. A distribution that is there
twice counts once, as the one that Python imports. Files are bounded in number and size; one that
exceeds a bound is a problem, and one that cannot be read is ignored. Imports no plugin.
"""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PREFIX: Final = "sandkasten."
MAX_DISTRIBUTIONS: Final = 10_000
MAX_FILE_BYTES: Final = 256 * 1024
# Memory for the largest file takes longer to get than most files take to read.
_USUAL_BYTES: Final = 8 * 1024
_SUFFIX: Final = ".dist-info"
_MARK: Final = b"[" + PREFIX.encode()
# A FIFO would block for ever.
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    group: str
    name: str
    target: str
    """As it is written, `module:object`."""
    distribution: str

    def __str__(self) -> str:
        return f"plugin {self.name} ({self.target}) of the distribution {self.distribution}"


@dataclass(frozen=True, slots=True)
class EntryPoints:
    entries: tuple[EntryPoint, ...] = ()
    problems: tuple[str, ...] = ()
    """One sentence for each file that exceeds a bound."""

    def of(self, group: str) -> tuple[EntryPoint, ...]:
        """Return the entry points of a group, by their names."""
        return tuple(entry for entry in self.entries if entry.group == group)


def entry_points(path: Sequence[str] | None = None) -> EntryPoints:
    """Return the entry points of the distributions on `path` (`sys.path`), read once for each."""
    return _read(tuple(sys.path if path is None else path))


@lru_cache(maxsize=8)
def _read(path: tuple[str, ...]) -> EntryPoints:
    entries: list[EntryPoint] = []
    problems: list[str] = []
    for number, (distribution, directory) in enumerate(_distributions(path)):
        if number == MAX_DISTRIBUTIONS:
            problems.append(f"plugins of more than {MAX_DISTRIBUTIONS} distributions are not used")
            break
        content = _content(os.path.join(directory, "entry_points.txt"))
        if len(content) > MAX_FILE_BYTES:
            problems.append(
                f"plugins of the distribution {distribution} are not used: its entry_points.txt "
                f"is larger than {MAX_FILE_BYTES} bytes"
            )
        elif _MARK in content:
            entries += _entries(distribution, content)
    entries.sort(key=lambda entry: (entry.name, entry.distribution, entry.target))
    return EntryPoints(tuple(entries), tuple(problems))


def _distributions(path: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and metadata directory of each distribution, once for each name."""
    seen: set[str] = set()
    for directory in dict.fromkeys(path):
        try:
            with os.scandir(directory or ".") as files:
                names = sorted(file.name for file in files if file.name.endswith(_SUFFIX))
        except OSError:
            continue
        for name in names:
            written = name.removesuffix(_SUFFIX).rpartition("-")[0]
            distribution = re.sub("[-_.]+", "-", written).lower()
            if distribution not in seen:
                seen.add(distribution)
                yield distribution, os.path.join(directory, name)


def _content(file: str) -> bytes:
    """Return a file, cut off one byte beyond the bound; most distributions have none."""
    try:
        descriptor = os.open(file, _FLAGS)
    except OSError:
        return b""
    try:
        content = os.read(descriptor, _USUAL_BYTES)
        if len(content) == _USUAL_BYTES:
            content += os.read(descriptor, MAX_FILE_BYTES + 1 - _USUAL_BYTES)
        return content
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _entries(distribution: str, content: bytes) -> Iterator[EntryPoint]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line[1:-1].strip() if line.endswith("]") else ""
        elif group.startswith(PREFIX) and not line.startswith(("#", ";")):
            name, equals, target = line.partition("=")
            if equals:
                yield EntryPoint(group, name.strip(), target.strip(), distribution)
