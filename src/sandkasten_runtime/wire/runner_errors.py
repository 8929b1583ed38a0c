"""The runner's closed set of error codes as our errors. Pure.

The message of a runner is hostile: it is shortened, stripped of control characters and only
displayed. An unknown code is itself a ProtocolViolation.
"""

from __future__ import annotations

from errno import EROFS
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sandkasten.errors import (
    Busy,
    Cancelled,
    CommandNotExecutable,
    CommandNotFound,
    Conflict,
    ConnectionRefused,
    DirectoryNotEmpty,
    ExecNotFound,
    FileExists,
    FileNotFound,
    FilePermission,
    FileTrouble,
    InternalError,
    InvalidRequest,
    IsADirectory,
    NotADirectory,
    NotRegular,
    PayloadTooLarge,
    PolicyDenied,
    ProtocolViolation,
    QuotaExceeded,
    SandkastenError,
    ShellNotFound,
    UnsupportedByBackend,
    WorkspaceDamaged,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MESSAGE_CHARS = 500


class _Meaning(NamedTuple):
    error: type[SandkastenError]
    hint: str


MEANINGS: Mapping[str, _Meaning] = MappingProxyType(
    {
        "invalid": _Meaning(InvalidRequest, "check the fields of the request"),
        "not_found": _Meaning(FileNotFound, "check the path; relative ones count from /workspace"),
        "exists": _Meaning(FileExists, "choose another path, or allow overwriting"),
        "not_regular": _Meaning(NotRegular, "only regular files can be read and written"),
        "not_directory": _Meaning(NotADirectory, "a part of the path is not a directory"),
        "is_directory": _Meaning(IsADirectory, "name a file, or ask for the whole directory"),
        "not_empty": _Meaning(DirectoryNotEmpty, "remove recursively"),
        "permission": _Meaning(FilePermission, "see its mode and owner"),
        "blocked": _Meaning(PolicyDenied, "write under /workspace, /tmp or the home directory"),
        "too_large": _Meaning(PayloadTooLarge, "ask for a range, or use the streaming call"),
        "no_space": _Meaning(QuotaExceeded, "the disk quota is used up; remove files"),
        "too_many_processes": _Meaning(QuotaExceeded, "the process limit is reached; end some"),
        "no_memory": _Meaning(QuotaExceeded, "the memory limit is reached; end something"),
        "loop": _Meaning(FileTrouble, "the path runs through a loop of symbolic links"),
        "name_too_long": _Meaning(InvalidRequest, "use a shorter path"),
        "busy": _Meaning(Busy, "try again in a moment"),
        "cancelled": _Meaning(Cancelled, ""),
        "unsupported": _Meaning(UnsupportedByBackend, "this sandbox's runner is too old for it"),
        "no_shell": _Meaning(ShellNotFound, "the image has no shell; give the command as a list"),
        "unknown_exec": _Meaning(ExecNotFound, "results are kept for the newest 256 commands"),
        "command_not_found": _Meaning(CommandNotFound, "check the name and the image's PATH"),
        "not_executable": _Meaning(CommandNotExecutable, "check its mode and its format"),
        "connection_refused": _Meaning(ConnectionRefused, "nothing listens on that port yet"),
        "closed": _Meaning(Conflict, "what it was meant for has already ended"),
        "io": _Meaning(FileTrouble, "the sandbox's file system reported a fault"),
        "internal": _Meaning(InternalError, "this is a defect of the runner; please report it"),
    }
)


# The `runner_code` of a FilePermission whose cause is the file system and not a mode.
READ_ONLY = "read_only"


def error_for(code: str, message: str, what: str, *, errno: object = None) -> SandkastenError:
    """Return the error for a runner that answered `code` to `what`.

    The message is only the runner's: the name of a verb means nothing to a user.
    """
    meaning = MEANINGS.get(code)
    if meaning is None:
        return ProtocolViolation(
            f"{what}: the runner answered with an unknown error code",
            hint="the sandbox may have been tampered with; destroy it",
        )
    text = printable(message) if message else f"the runner answered {code}"
    if code == "permission" and errno == EROFS:
        return FilePermission(text, hint="its file system is read-only", runner_code=READ_ONLY)
    return meaning.error(text, hint=meaning.hint, runner_code=code)


def printable(text: str) -> str:
    """Make a hostile string safe to display: one line, no control characters, no lone
    surrogates.
    """
    short = text[:MAX_MESSAGE_CHARS]
    if short.isprintable():
        return short
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short)


def became_read_only(exc: SandkastenError) -> WorkspaceDamaged:
    """Everything that file verbs may write was mounted writable, so its file system gave up."""
    return WorkspaceDamaged(
        f"{exc.message}: a write to the host's disk failed, and the workspace became read-only",
        hint="destroy the sandbox; a named workspace is checked when the next one opens it",
    )
