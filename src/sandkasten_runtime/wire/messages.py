"""The runner's answers as closed values. Pure.

Each `decode_*` takes the JSON object of a hostile program, checks the type and the range of every
field it keeps, ignores unknown fields, and raises ProtocolViolation for invalid ones. Nothing of
the input is kept by reference.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from sandkasten.errors import ProtocolViolation
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.wire.json_bodies import from_bytes_json, to_bytes_json
from sandkasten_runtime.wire.runner_errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Disk",
    "ExecReply",
    "FileIdentity",
    "FileStat",
    "FileStatPage",
    "Hello",
    "ProcessInfo",
    "Processes",
    "RunnerStats",
    "ShellInfo",
    "decode_attributes",
    "decode_base_environment",
    "decode_entry",
    "decode_exec",
    "decode_execs",
    "decode_hello",
    "decode_identity",
    "decode_page",
    "decode_processes",
    "decode_shells",
    "decode_stats",
    "from_bytes_json",
    "to_bytes_json",
]

ExecState = Literal["queued", "running", "exited", "signaled", "lost"]
EntryType = Literal["file", "directory", "symlink", "fifo", "socket", "char", "block"]
_EXEC_STATES = frozenset(get_args(ExecState))
_ENTRY_TYPES = frozenset(get_args(EntryType))

_U32 = 2**32 - 1
_I64 = 2**63 - 1
_U64 = 2**64 - 1
_MAX_TEXT = 256
_MAX_PATH = 1024 * 1024
_MAX_EXECS = 256
_MAX_ENTRIES = 5000
_MAX_ATTRIBUTES = 256
_MAX_VALUE = 64 * 1024
_MAX_PROCESSES = 2000
_MAX_ARGUMENTS = 4096
_MAX_SHELLS = 64
_MAX_VARIABLES = 64 * 1024
_MAX_DISKS = 64
_MAX_FEATURES = 256

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hello:
    generation: int
    version: str
    uid: int
    user_uid: int
    shell: str | None
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class ExecReply:
    """State of one command, *Exec* in the protocol."""

    exec_id: str
    kind: Literal["argv", "shell"]
    shell: str | None
    state: ExecState
    exit_code: int | None
    signal: int | None
    timed_out: bool
    killed: bool
    shell_reset: bool
    cwd: str | None
    pid: int | None
    started_ms: int
    duration_ms: int
    cpu_ms: int
    peak_rss_bytes: int
    io_read_bytes: int
    io_write_bytes: int
    stdout_bytes: int
    stderr_bytes: int
    truncated: bool
    last_seq: int
    oom_suspect: bool
    sigsys: bool

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True, slots=True)
class FileStat:
    path: str
    name: str
    type: EntryType
    size: int
    mode: int
    mtime_unix: int
    uid: int
    gid: int
    target: str | None = None


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The file that a descriptor is announced to be."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class FileStatPage:
    """One page of a listing. `next` is the opaque cursor of the following page, None on the
    last.
    """

    entries: tuple[FileStat, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    pid: int
    ppid: int
    uid: int
    state: str
    name: str
    cmdline: tuple[str, ...]
    rss_bytes: int
    cpu_ms: int
    started_ms: int
    threads: int
    exec_id: str | None


@dataclass(frozen=True, slots=True)
class Processes:
    processes: tuple[ProcessInfo, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class ShellInfo:
    name: str
    pid: int | None
    busy: bool
    queued: int
    cwd: str | None
    program: str
    env: Mapping[str, str] | None = None
    """What it has exported, if that was asked for and fits in an answer."""


@dataclass(frozen=True, slots=True)
class Disk:
    total: int
    used: int
    free: int
    inodes: int
    inodes_free: int


@dataclass(frozen=True, slots=True)
class RunnerStats:
    uptime_ms: int
    processes: int
    running: int
    shells: int
    connections: int
    disk: Mapping[str, Disk]


class _Fields:
    """Typed access to one hostile object; every error names the message and the field."""

    __slots__ = ("_body", "_what")

    def __init__(self, body: object, what: str) -> None:
        if type(body) is not dict:
            raise ProtocolViolation(f"{what} was not a JSON object")
        self._body = cast("dict[str, Any]", body)
        self._what = what

    def _bad(self, name: str) -> ProtocolViolation:
        return ProtocolViolation(f"{self._what} had no usable field {name!r}")

    def number(self, name: str, *, low: int = 0, high: int = _I64) -> int:
        value = self._body.get(name)
        # bool is an int to isinstance, but not a number in the protocol.
        if type(value) is int and low <= value <= high:
            return value
        raise self._bad(name)

    def number_or_none(self, name: str, *, low: int = 0, high: int = _I64) -> int | None:
        return None if self._body.get(name) is None else self.number(name, low=low, high=high)

    def flag(self, name: str) -> bool:
        value = self._body.get(name)
        if value is None:
            return False
        if type(value) is bool:
            return value
        raise self._bad(name)

    def text(self, name: str) -> str:
        value = self._body.get(name)
        if type(value) is str and len(value) <= _MAX_TEXT:
            return printable(value)
        raise self._bad(name)

    def text_or_none(self, name: str) -> str | None:
        return None if self._body.get(name) is None else self.text(name)

    def path(self, name: str) -> str:
        value = from_bytes_json(self._body.get(name), f"{name!r} of {self._what}")
        if len(value) > _MAX_PATH:
            raise self._bad(name)
        return value

    def path_or_none(self, name: str) -> str | None:
        return None if self._body.get(name) is None else self.path(name)

    def one_of(self, name: str, choices: frozenset[str]) -> str:
        value = self._body.get(name)
        if type(value) is str and value in choices:
            return value
        raise self._bad(name)

    def items(self, name: str, most: int, decode: Callable[[Any], T]) -> tuple[T, ...]:
        value = self._body.get(name)
        if type(value) is not list or len(value) > most:
            raise self._bad(name)
        return tuple([decode(item) for item in value])

    def inner(self, name: str, most: int) -> dict[str, Any]:
        value = self._body.get(name)
        if type(value) is not dict or len(value) > most:
            raise self._bad(name)
        return value

    def inner_or_none(self, name: str, most: int) -> dict[str, Any] | None:
        return None if self._body.get(name) is None else self.inner(name, most)


def decode_hello(body: Mapping[str, Any]) -> Hello:
    fields = _Fields(body, "the hello")
    return Hello(
        generation=fields.number("generation", low=1, high=_U32),
        version=fields.text("version"),
        uid=fields.number("uid", high=_U32),
        user_uid=fields.number("user_uid", high=_U32),
        shell=fields.path_or_none("shell"),
        features=frozenset(fields.items("features", _MAX_FEATURES, _feature)),
    )


def _feature(value: object) -> str:
    if type(value) is not str or len(value) > _MAX_TEXT:
        raise ProtocolViolation("the hello has a feature that is not a string")
    return printable(value)


def decode_exec(body: Mapping[str, Any]) -> ExecReply:
    fields = _Fields(body, "an exec")
    return ExecReply(
        exec_id=fields.text("exec_id"),
        kind=cast("Literal['argv', 'shell']", fields.one_of("kind", frozenset({"argv", "shell"}))),
        shell=fields.text_or_none("shell"),
        state=cast("ExecState", fields.one_of("state", _EXEC_STATES)),
        exit_code=fields.number_or_none("exit_code", high=255),
        signal=fields.number_or_none("signal", low=1, high=128),
        timed_out=fields.flag("timed_out"),
        killed=fields.flag("killed"),
        shell_reset=fields.flag("shell_reset"),
        cwd=fields.path_or_none("cwd"),
        pid=fields.number_or_none("pid", high=_U32),
        started_ms=fields.number_or_none("started_ms") or 0,
        duration_ms=fields.number_or_none("duration_ms") or 0,
        cpu_ms=fields.number_or_none("cpu_ms") or 0,
        peak_rss_bytes=fields.number_or_none("peak_rss_bytes") or 0,
        io_read_bytes=fields.number_or_none("io_read_bytes") or 0,
        io_write_bytes=fields.number_or_none("io_write_bytes") or 0,
        stdout_bytes=fields.number("stdout_bytes"),
        stderr_bytes=fields.number("stderr_bytes"),
        truncated=fields.flag("truncated"),
        last_seq=fields.number("last_seq"),
        oom_suspect=fields.flag("oom_suspect"),
        sigsys=fields.flag("sigsys"),
    )


def decode_execs(body: Mapping[str, Any]) -> tuple[ExecReply, ...]:
    """Decode the RESULT of `exec.list`."""
    return _Fields(body, "the list of execs").items("execs", _MAX_EXECS, decode_exec)


def decode_entry(body: Mapping[str, Any]) -> FileStat:
    fields = _Fields(body, "a file entry")
    return FileStat(
        path=fields.path("path"),
        name=fields.path("name"),
        type=cast("EntryType", fields.one_of("type", _ENTRY_TYPES)),
        size=fields.number("size"),
        mode=fields.number("mode", high=0o7777),
        mtime_unix=fields.number("mtime_unix", low=-_I64),
        uid=fields.number("uid", high=_U32),
        gid=fields.number("gid", high=_U32),
        target=fields.path_or_none("target"),
    )


def decode_identity(body: object) -> FileIdentity:
    fields = _Fields(body, "a descriptor")
    return FileIdentity(
        device=fields.number("device", high=_U64), inode=fields.number("inode", high=_U64)
    )


def decode_page(body: Mapping[str, Any]) -> FileStatPage:
    fields = _Fields(body, "a page of entries")
    return FileStatPage(
        entries=fields.items("entries", _MAX_ENTRIES, decode_entry),
        next=fields.path_or_none("next"),
    )


def decode_attributes(body: Mapping[str, Any], most: int) -> tuple[dict[str, str], ...]:
    """Return the attributes of files, in their order."""
    return _Fields(body, "the attributes").items("attributes", most, _attributes)


def _attributes(body: object) -> dict[str, str]:
    if type(body) is not dict or len(body) > _MAX_ATTRIBUTES:
        raise ProtocolViolation("the attributes of a file were not an object of a few names")
    if not all(type(value) is str and len(value) <= _MAX_VALUE for value in body.values()):
        raise ProtocolViolation("an attribute of a file was not a string")
    return {printable(name): printable(value) for name, value in body.items()}


def decode_processes(body: Mapping[str, Any]) -> Processes:
    fields = _Fields(body, "the list of processes")
    return Processes(
        processes=fields.items("processes", _MAX_PROCESSES, _process),
        truncated=fields.flag("truncated"),
    )


def _process(body: object) -> ProcessInfo:
    fields = _Fields(body, "a process")
    return ProcessInfo(
        pid=fields.number("pid", high=_U32),
        ppid=fields.number("ppid", high=_U32),
        uid=fields.number("uid", high=_U32),
        state=fields.text("state"),
        name=fields.path("name"),
        cmdline=fields.items("cmdline", _MAX_ARGUMENTS, _argument),
        rss_bytes=fields.number("rss_bytes"),
        cpu_ms=fields.number("cpu_ms"),
        started_ms=fields.number("started_ms", low=-_I64),
        threads=fields.number("threads", high=_U32),
        exec_id=fields.text_or_none("exec_id"),
    )


def _argument(value: object) -> str:
    return from_bytes_json(value, "an argument of a process")


def decode_shells(body: Mapping[str, Any]) -> tuple[ShellInfo, ...]:
    """Decode the RESULT of `shell.list`."""
    return _Fields(body, "the list of shells").items("shells", _MAX_SHELLS, _shell)


def decode_base_environment(body: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Decode the environment of all commands in the RESULT of `shell.list` with `state`."""
    return _environment(_Fields(body, "the list of shells"))


def _environment(fields: _Fields) -> Mapping[str, str] | None:
    pairs = fields.inner_or_none("env", _MAX_VARIABLES)
    if pairs is None:
        return None
    return {
        name: from_bytes_json(value, "a variable of a shell")
        for name, value in pairs.items()
        if name.isprintable() and len(name) <= _MAX_TEXT
    }


def _shell(body: object) -> ShellInfo:
    fields = _Fields(body, "a shell")
    return ShellInfo(
        name=fields.text("name"),
        pid=fields.number_or_none("pid", high=_U32),
        busy=fields.flag("busy"),
        queued=fields.number("queued"),
        cwd=fields.path_or_none("cwd"),
        program=fields.path("program"),
        env=_environment(fields),
    )


def decode_stats(body: Mapping[str, Any]) -> RunnerStats:
    fields = _Fields(body, "the stats")
    disks = fields.inner("disk", _MAX_DISKS)
    return RunnerStats(
        uptime_ms=fields.number("uptime_ms"),
        processes=fields.number("processes"),
        running=fields.number("running"),
        shells=fields.number("shells"),
        connections=fields.number("connections"),
        disk=MappingProxyType({printable(name): _disk(disk) for name, disk in disks.items()}),
    )


def _disk(body: object) -> Disk:
    fields = _Fields(body, "a disk of the stats")
    return Disk(
        total=fields.number("total"),
        used=fields.number("used"),
        free=fields.number("free"),
        inodes=fields.number("inodes"),
        inodes_free=fields.number("inodes_free"),
    )
