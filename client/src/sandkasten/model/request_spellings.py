"""Requests as callers spell them, folded into the one spelling of `model`.

The public contract has two names for some fields (`cmd` and `command`, `cwd` and `workdir`,
`timeout_ms` and `timeout_seconds`, `workspace` and `workspace_id`, `image` and `runtime`). HTTP
bodies, tool arguments and the client's keyword arguments all pass through here and nowhere else.
Limits have their own table in `model.sandbox.limit_names`. Pure; refusals are InvalidRequest.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from sandkasten.errors import InvalidRequest
from sandkasten.model.commands.exec_values import ExecRequest, Pty
from sandkasten.model.numbers import number
from sandkasten.model.sandbox.oneshot_values import StoredKey
from sandkasten.model.sandbox.sandbox_options import SandboxOptions

_OPTIONS: Final = frozenset(field.name for field in fields(SandboxOptions))
_LISTS: Final = frozenset(field.name for field in fields(SandboxOptions) if field.default == ())

_COMMAND: Final = frozenset(field.name for field in fields(ExecRequest))
_MAX_TIMEOUT_MS: Final = 10**10
_CONTENTS: Final = ("content", "content_base64", "file_key")
_DOUBLES: Final = (("cmd", "command"), ("cwd", "workdir"))


def without_doubles(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with one name for each field; a caller may use both names at once."""
    result = dict(arguments)
    for first, second in _DOUBLES:
        value = agreed(arguments, first, second)
        result.pop(second, None)
        if value is not None:
            result[first] = value
    return result


def agreed(arguments: Mapping[str, Any], *names: str) -> Any:
    """Return the value given under any of these names; None when under none.

    InvalidRequest when two of them have different values.
    """
    values = [(name, arguments[name]) for name in names if arguments.get(name) is not None]
    if any(value != values[0][1] for _, value in values):
        raise InvalidRequest(
            f"{' and '.join(name for name, _ in values)} contradict each other",
            hint="they mean the same; give one of them",
            field=values[0][0],
        )
    return values[0][1] if values else None


def sandbox_options(arguments: Mapping[str, Any]) -> SandboxOptions:
    """Return the options in `arguments`; other fields are ignored. None and absent are the same."""
    values: dict[str, Any] = {
        name: tuple_of(value, name) if name in _LISTS else value
        for name, value in arguments.items()
        if name in _OPTIONS and value is not None
    }
    if "image" not in values and arguments.get("runtime") is not None:
        values["image"] = arguments["runtime"]
    if isinstance(values.get("gpus"), list):
        values["gpus"] = tuple(values["gpus"])
    workspace = agreed(arguments, "workspace", "workspace_id")
    if workspace is not None:
        values["workspace_id"] = workspace
    return SandboxOptions(**values)


def exec_request(arguments: Mapping[str, Any]) -> ExecRequest:
    """Return the command in `arguments`; other fields are ignored. None and absent are the same."""
    values = {
        name: value for name, value in arguments.items() if name in _COMMAND and value is not None
    }
    values["command"] = command_of(arguments)
    if "cwd" not in values and arguments.get("workdir") is not None:
        values["cwd"] = arguments["workdir"]
    values["stdin"] = input_of(arguments, "stdin")
    values["timeout_seconds"] = timeout_of(arguments)
    values["pty"] = pty_of(arguments.get("pty"))
    if type(arguments.get("user")) is int:
        values["user"] = str(arguments["user"])
    return ExecRequest(**values)


def run_files(listed: object) -> dict[str, str | bytes | StoredKey]:
    """Return the files of a run: a mapping of paths to contents, or a list of stored files.

    A content is a string, bytes, or an object with one of `content`, `content_base64` and
    `file_key`. An entry of a list has `file_key` and, if the file is not to have the last part of
    the key as its name, `path` (or `destination`).
    """
    if listed is None:
        return {}
    if isinstance(listed, Mapping):
        return {path: _content(str(path), content) for path, content in listed.items()}
    files: dict[str, str | bytes | StoredKey] = {}
    for entry in listed if isinstance(listed, list | tuple) else (None,):
        key = entry.get("file_key") if isinstance(entry, Mapping) else None
        if not isinstance(key, str) or entry.keys() - {"file_key", "path", "destination"}:
            raise InvalidRequest(
                "files must map paths to contents, or be a list of stored files",
                hint='give {"in.csv": "a,b"}, or [{"file_key": "data/in.csv", "path": "in.csv"}]',
                field="files",
                http_status=422,
            )
        path = agreed(entry, "path", "destination") or key.rpartition("/")[2]
        if path in files:
            raise InvalidRequest(
                f"two files have the path {path[:80]}",
                hint="give each of them another path",
                field="files",
                http_status=422,
            )
        files[path] = StoredKey(key)
    return files


def _content(path: str, content: object) -> str | bytes | StoredKey:
    if isinstance(content, str | bytes | StoredKey):
        return content
    field = f"files.{path[:80]}"
    if not isinstance(content, Mapping):
        return bytes_of(content, field) or b""
    names = [name for name in _CONTENTS if content.get(name) is not None]
    if len(names) != 1 or not isinstance(content[names[0]], str):
        raise InvalidRequest(
            "a file must have exactly one of content, content_base64 and file_key",
            hint="give one of them, as a string",
            field=field,
            http_status=422,
        )
    value: str = content[names[0]]
    if names[0] == "file_key":
        return StoredKey(value)
    return value if names[0] == "content" else decoded(value, field)


def command_of(arguments: Mapping[str, Any]) -> str | tuple[str, ...]:
    """Return the command: a string for the persistent shell, or a tuple of arguments."""
    command, other = arguments.get("cmd"), arguments.get("command")
    if (command is None) == (other is None):
        raise InvalidRequest(
            "exactly one of cmd and command is required",
            hint="use cmd",
            field="cmd",
            http_status=422,
        )
    command = other if command is None else command
    if isinstance(command, str):
        return command
    if isinstance(command, bytes | bytearray | memoryview) or not isinstance(command, Sequence):
        raise InvalidRequest(
            f"command must be a str or a list of str, got {type(command).__name__}",
            hint='give "ls -l" or ["ls", "-l"]',
            field="cmd",
        )
    for word in command:
        if not isinstance(word, str):
            raise InvalidRequest(
                f"every argument of a command must be a str, got {type(word).__name__}",
                hint="convert it with str() first",
                field="cmd",
            )
    return tuple(command)


def timeout_of(arguments: Mapping[str, Any]) -> float | None:
    """Return the timeout in seconds; milliseconds win where both are given."""
    milliseconds = arguments.get("timeout_ms")
    if milliseconds is None:
        return arguments.get("timeout_seconds")
    return number("timeout_ms", milliseconds, low=0, high=_MAX_TIMEOUT_MS) / 1000


def input_of(arguments: Mapping[str, Any], name: str) -> bytes | None:
    """Return the bytes of `name` (a string or bytes) or of `<name>_b64` (base64)."""
    data, encoded = arguments.get(name), arguments.get(f"{name}_b64")
    if data is not None and encoded is not None:
        raise InvalidRequest(
            f"{name} and {name}_b64 exclude each other",
            hint="give one of them",
            field=name,
            http_status=422,
        )
    return bytes_of(data, name) if encoded is None else decoded(encoded, f"{name}_b64")


def bytes_of(data: object, name: str) -> bytes | None:
    """Return a string or bytes as bytes."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise InvalidRequest(
        f"{name} must be str or bytes, got {type(data).__name__}",
        hint="encode it first",
        field=name,
    )


def decoded(encoded: str, name: str) -> bytes:
    """Decode strict base64."""
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(
            f"{name} is not valid base64",
            hint="use the standard alphabet with padding",
            field=name,
            http_status=422,
        ) from exc


def pty_of(value: bool | Pty | Sequence[int] | Mapping[str, int] | None) -> Pty | None:
    """Return the terminal: from a flag, a (rows, columns) pair or an object with both."""
    if isinstance(value, bool) or value is None:
        return Pty() if value else None
    if isinstance(value, Pty):
        return value
    try:
        return Pty(**value) if isinstance(value, Mapping) else Pty(*value)
    except TypeError as exc:
        raise InvalidRequest(
            "pty must be true, false or a size of rows and columns",
            hint="give pty=True or pty=(24, 80)",
            field="pty",
        ) from exc


def tuple_of(names: object, field: str) -> tuple[str, ...]:
    """Return a list of names as a tuple. A lone string would be taken for its letters."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        example = names[:80] if isinstance(names, str) else "name"
        raise InvalidRequest(
            f"{field} must be a list of names, got {type(names).__name__}",
            hint=f"give [{example!r}]",
            field=field,
        )
    return tuple(names)
