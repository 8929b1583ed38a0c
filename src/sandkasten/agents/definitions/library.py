"""The operator's directories of agents (`*.prompt`) and workflows (`*.yaml`, `*.yml`).

Directories are scanned on each call, and only changed files are read again. An invalid file is
listed with its error and does not affect others. Subdirectories are not searched; links that point
outside their directory, and special files, are listed with an error. When two files have the same
name, the first one counts, in the order of the directories.

Blocking: the files are small, but call this from a thread where latency matters.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from sandkasten.agents.definitions.prompt_file import MAX_FILE_BYTES, Agent, parse_agent, slug
from sandkasten.agents.definitions.sandbox_field import OPTION_FIELDS
from sandkasten.agents.definitions.strict_yaml import checked_text
from sandkasten.errors import (
    AgentNotFound,
    InvalidAgent,
    InvalidWorkflow,
    NotFound,
    RequestError,
    WorkflowNotFound,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.run_values import Definition
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sandkasten.agents.definitions.agent_sandbox import AgentSandbox
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
        self._dirs = tuple(Path(one) for one in dirs)
        self._known: dict[Path, tuple[tuple[int, ...], LibraryEntry]] = {}
        self._lock = Lock()

    def entries(self, kind: RunKind) -> list[LibraryEntry]:
        """Return all files of that kind, sorted by name; of equal names only the first."""
        found: dict[str, LibraryEntry] = {}
        for entry in self._read():
            if entry.kind == kind:
                found.setdefault(slug(entry.name), entry)
        return sorted(found.values(), key=lambda entry: slug(entry.name))

    def definitions(self, kind: RunKind) -> Sequence[Definition]:
        return [_definition(entry) for entry in self.entries(kind)]

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
        return [(one.stem, one.source) for one in self.entries("workflow") if one.error is None]

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
                seen = _fingerprint(path)
                known = self._known.get(path)
                if known is not None and known[0] == seen:
                    fresh[path] = known
                else:
                    fresh[path] = (seen, _entry(path, root))
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
        with os.scandir(directory) as found:
            names = [entry.name for entry in found]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if not name.startswith(".")]


def _fingerprint(path: Path) -> tuple[int, ...]:
    """Return a fingerprint that changes with the file. Links are followed, since the target is
    read.
    """
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


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


def _definition(entry: LibraryEntry) -> Definition:
    error = entry.error
    agent = entry.agent
    return Definition(
        kind=entry.kind,
        name=entry.name,
        description=agent.description if agent is not None else "",
        path=str(entry.path),
        source=entry.source,
        fields={} if agent is None else agent_details(agent),
        warnings=agent.warnings if agent is not None else (),
        error=None
        if error is None
        else {"code": error.code, "message": error.message, "hint": error.hint},
    )


def agent_details(agent: Agent) -> dict[str, Any]:
    """Return the fields of an agent without its source, as JSON."""
    sandbox = agent.sandbox
    return {
        "slug": agent.slug,
        "model": agent.model,
        "mode": None if sandbox is None else sandbox.mode,
        "sandbox": None if sandbox is None else _sandbox(sandbox),
        "tools": None if agent.tools is None else list(agent.tools),
        "agents": list(agent.agents),
        "input_schema": agent.input_schema,
        "output_schema": agent.output_schema,
        "output_format": agent.output_format,
        "max_steps": agent.max_steps,
        "max_tokens": agent.max_tokens,
        "timeout_seconds": agent.timeout_s,
    }


def _sandbox(sandbox: AgentSandbox) -> dict[str, Any]:
    options = sandbox.options
    return {
        "runtime": sandbox.runtime,
        "session": sandbox.session,
        "timeout_seconds": sandbox.timeout_seconds,
        **{name: _json(getattr(options, name)) for name in OPTION_FIELDS},
        "network": options.network not in (None, "none"),
    }


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
