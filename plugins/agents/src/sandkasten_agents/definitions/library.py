"""The operator's directories of agents (`*.prompt`) and workflows (`*.yaml`, `*.yml`).

Directories are scanned on each call, and only changed files are read again. An invalid file is
listed with its error and does not affect others. Subdirectories are searched one level deep. Links
that point outside their directory, and special files, are listed with an error. When two files have
the same name, the first one counts, in the order of the directories.

Blocking: the files are small, but call this from a thread where latency matters.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from sandkasten.errors import (
    AgentNotFound,
    InvalidAgent,
    InvalidWorkflow,
    NotFound,
    RequestError,
    WorkflowNotFound,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_agents.definitions.prompt_file import MAX_FILE_BYTES, Agent, parse_agent, slug
from sandkasten_agents.definitions.strict_yaml import checked_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sandkasten.model.runs.run_values import RunKind

MAX_FILES: Final = 10_000
MAX_WORKFLOW_BYTES: Final = 256 * 1024
_KINDS: Final[dict[str, RunKind]] = {
    ".prompt": "agent",
    ".yaml": "workflow",
    ".yml": "workflow",
}


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """One file: its agent, the source of its workflow, or its error."""

    kind: RunKind
    path: Path
    stem: str
    agent: Agent | None = None
    source: str = ""
    error: RequestError | None = None

    @property
    def name(self) -> str:
        return self.agent.name if self.agent is not None else self.stem


class Library:
    def __init__(self, dirs: Iterable[Path | str]) -> None:
        self._dirs = tuple(Path(directory) for directory in dirs)
        self._known: dict[Path, tuple[tuple[int, ...], LibraryEntry]] = {}
        self._lock = Lock()

    def entries(self, kind: RunKind) -> list[LibraryEntry]:
        """Return all files of that kind, sorted by name; of equal names only the first."""
        entries: dict[str, LibraryEntry] = {}
        for entry in self._read():
            if entry.kind == kind:
                entries.setdefault(slug(entry.name), entry)
        return sorted(entries.values(), key=lambda entry: slug(entry.name))

    def agent(self, name: str) -> Agent:
        """Return an agent by its name or file name (see `slug`). Raise AgentNotFound or the
        file's error.
        """
        entry = self._find("agent", name, AgentNotFound)
        if entry.agent is None:
            raise entry.error or InvalidAgent(
                f"agent {shown(name)} cannot be used", hint="check the agent's file"
            )
        return entry.agent

    def workflow_source(self, workflow_id: str) -> str:
        """Return the source of the file with that name. Raise WorkflowNotFound."""
        entry = self._find("workflow", workflow_id, WorkflowNotFound)
        if entry.error is not None:
            raise entry.error
        return entry.source

    def workflow_sources(self) -> list[tuple[str, str]]:
        """Return the name and the source of every readable workflow file."""
        return [
            (entry.stem, entry.source) for entry in self.entries("workflow") if entry.error is None
        ]

    def _find(self, kind: RunKind, name: str, missing: type[NotFound]) -> LibraryEntry:
        wanted = slug(name[:200])
        entries = self.entries(kind)
        for entry in entries:
            if slug(entry.name) == wanted:
                return entry
        for entry in entries:
            if slug(entry.stem) == wanted:
                return entry
        hint = f"no {kind}s are installed; see the setting {kind}s.dirs"
        if entries:
            hint = did_you_mean(wanted, {slug(entry.name) for entry in entries})
        raise missing(f"{kind} {shown(name)} not found", hint=hint, name=name[:200])

    def _read(self) -> list[LibraryEntry]:
        with self._lock:
            fresh: dict[Path, tuple[tuple[int, ...], LibraryEntry]] = {}
            for path, root in self._files():
                if len(fresh) >= MAX_FILES:
                    break
                fingerprint = _fingerprint(path)
                cached = self._known.get(path)
                if cached is not None and cached[0] == fingerprint:
                    fresh[path] = cached
                else:
                    fresh[path] = (fingerprint, _entry(path, root))
            self._known = fresh
            return [entry for _, entry in fresh.values()]

    def _files(self) -> Iterator[tuple[Path, Path]]:
        """Return the files, each with the directory it must stay in. An unreadable directory is
        empty.
        """
        for root in self._dirs:
            inner: list[Path] = []
            for path in _listed(root):
                if path.suffix in _KINDS:
                    yield path, root
                elif path.is_dir() and not path.is_symlink():
                    inner.append(path)
            for directory in inner:
                for path in _listed(directory):
                    if path.suffix in _KINDS:
                        yield path, root


def _listed(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if not name.startswith(".")]


def _fingerprint(path: Path) -> tuple[int, ...]:
    """Return a fingerprint that changes with the file. Links are followed, since the target is
    read.
    """
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _entry(path: Path, root: Path) -> LibraryEntry:
    kind = _KINDS[path.suffix]
    invalid = InvalidAgent if kind == "agent" else InvalidWorkflow
    most = MAX_FILE_BYTES if kind == "agent" else MAX_WORKFLOW_BYTES
    stem = path.stem
    text = ""
    try:
        data = _content(path, root, most, invalid)
        text = checked_text(data, max_bytes=most, what=path.name, error=invalid)
        agent = replace(parse_agent(text, stem), installed=True) if kind == "agent" else None
    except RequestError as exc:
        return LibraryEntry(kind, path, stem, source=text, error=exc)
    return LibraryEntry(kind, path, stem, agent, text)


def _content(path: Path, root: Path, most: int, invalid: type[RequestError]) -> bytes:
    """Read at most one byte more than allowed, so that an oversized file can be detected."""
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root.resolve(strict=True)):
            raise invalid(
                f"{path.name} is a link that points outside its directory",
                hint="copy the file into the directory",
            )
        # Do not block: opening a FIFO without a writer would wait forever.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(real, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise invalid(f"{path.name} is not a regular file", hint="remove it")
            return file.read(most + 1)
    except OSError as exc:
        raise invalid(
            f"{path.name} cannot be read: {exc.strerror or exc}", hint="check its owner and mode"
        ) from exc
