"""What a caller wrote, turned into what the engine is asked. Pure; nothing is guessed.

Rules about values (ranges, names, policy) are the engine's; here only the shapes that Python
allows and the contract does not are refused, as InvalidRequest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sandkasten.errors import InvalidRequest
from sandkasten.model.commands.exec_values import ExecRequest, Pty

Command = str | Sequence[str]
"""A text for the persistent shell, or the arguments of a fresh process."""
Size = tuple[int, int]
"""Rows and columns of a terminal."""

_NOTHING: Final[Mapping[str, str]] = {}


def command_of(cmd: Command) -> str | tuple[str, ...]:
    if isinstance(cmd, str):
        return cmd
    if isinstance(cmd, bytes | bytearray | memoryview) or not isinstance(cmd, Sequence):
        raise InvalidRequest(
            f"a command is a text or a list of texts, not {type(cmd).__name__}",
            hint='give "ls -l" or ["ls", "-l"]',
            field="cmd",
        )
    for word in cmd:
        if not isinstance(word, str):
            raise InvalidRequest(
                f"a command's arguments are texts; one is {type(word).__name__}",
                hint="convert it with str() first",
                field="cmd",
            )
    return tuple(cmd)


def seconds_of(timeout_ms: float | None, timeout_seconds: float | None) -> float | None:
    """Milliseconds win where both are given, as everywhere in the contract."""
    return timeout_seconds if timeout_ms is None else timeout_ms / 1000


def bytes_of(data: str | bytes | bytearray | memoryview | None, what: str) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise InvalidRequest(
        f"{what} is a text or bytes, not {type(data).__name__}", hint="encode it first", field=what
    )


def one_workspace(workspace: str | None, workspace_id: str | None) -> str | None:
    """Both spellings of the contract; naming two workspaces is a mistake."""
    if workspace is not None and workspace_id is not None and workspace != workspace_id:
        raise InvalidRequest(
            "workspace and workspace_id name two workspaces",
            hint="they mean the same; give one of them",
            field="workspace_id",
        )
    return workspace if workspace is not None else workspace_id


def names_of(names: Sequence[str], what: str) -> tuple[str, ...]:
    """A list of names; a lone text would be taken for its letters."""
    if isinstance(names, str):
        raise InvalidRequest(f"{what} is a list of names", hint=f"say [{names[:80]!r}]", field=what)
    return tuple(names)


def pty_of(pty: bool | Size) -> Pty | None:
    if isinstance(pty, bool):
        return Pty() if pty else None
    rows, cols = pty
    return Pty(rows=rows, cols=cols)


def exec_request(
    cmd: Command,
    *,
    timeout_ms: float | None,
    timeout_seconds: float | None,
    cwd: str | None,
    env: Mapping[str, str] | None,
    stdin: str | bytes | None,
    shell: str,
    pty: bool | Size,
    stateful: bool | None,
    idempotency_key: str | None,
    max_output_bytes: int | None,
    raw_output: bool = False,
    keep_stdin_open: bool = False,
) -> ExecRequest:
    return ExecRequest(
        command=command_of(cmd),
        stateful=stateful,
        cwd=cwd,
        env=_NOTHING if env is None else env,
        stdin=bytes_of(stdin, "stdin"),
        timeout_s=seconds_of(timeout_ms, timeout_seconds),
        shell=shell,
        pty=pty_of(pty),
        idempotency_key=idempotency_key,
        max_output_bytes=max_output_bytes,
        keep_stdin_open=keep_stdin_open,
        raw_output=raw_output,
    )
