"""Validation and defaults of a command. Pure.

Runs on the path of every command, so a valid request touches each value once. Refusals are
InvalidRequest or PayloadTooLarge and name the rule; nothing is clamped.
"""

from __future__ import annotations

import hashlib
import math
import shlex
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidRequest, PayloadTooLarge, PolicyDenied
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.accounts import account_text
from sandkasten.model.commands.exec_values import MAX_SECONDS, ExecRequest, Pty
from sandkasten.model.environment import checked_environment, text_bytes
from sandkasten.model.field_patterns import PRINTABLE, SHELL_NAME, form
from sandkasten.model.files.sandbox_paths import working_directory
from sandkasten.model.numbers import number, whole
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.limits import FREE_KEPT_BYTES, MAX_KEPT_BYTES, MIB, Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_COMMAND_BYTES = MIB
# All arguments of a list: execve allows a quarter of the stack limit (8 MiB) for them and the
# environment, with 8 bytes for each.
MAX_ARGUMENTS_BYTES = 2 * MIB - 256 * 1024
# execve refuses one argument over 128 KiB (MAX_ARG_STRLEN, its NUL included).
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
_SHELL_NAME = form(SHELL_NAME)
_KEY = form(PRINTABLE + "{1,256}")


@dataclass(frozen=True, slots=True)
class Command:
    """A checked command. Exactly one of `argv` and `text` is set; `text` goes to `shell`."""

    argv: tuple[str, ...] | None
    text: str | None
    shell: str
    cwd: str | None
    env: Mapping[str, str]
    stdin: bytes | None
    keep_stdin_open: bool
    timeout_s: float
    """Infinite: no deadline."""
    stdout_cap: int
    stderr_cap: int
    pty: Pty | None
    key: str | None
    raw_output: bool
    state_of: str | None = None
    """The persistent shell whose directory and exported variables `argv` starts with."""
    user: str | None = None
    """`USER[:GROUP]`; None: the user of the sandbox."""
    held: str | None = None
    """The program that was started for it, if the sandbox has it."""


def checked_command(
    request: ExecRequest,
    limits: Limits,
    shell_program: str,
    *,
    background: bool = False,
    ceiling: Mapping[str, int | float] = MappingProxyType({}),
) -> Command:
    """Return the command to run. `shell_program` runs a string outside the session's shell.

    In the background a command has no deadline unless it asks for one, and a string leaves the
    session's shell free: it runs beside it, with its directory and exported variables. The shells
    belong to the sandbox's own user, so a string for another user is a new process.
    """
    user = None if request.user is None else _user(request)
    beside = background and isinstance(request.command, str) and request.stateful is None
    beside = beside and user is None
    alone = beside or user is not None
    argv, text = _what(replace(request, stateful=False) if alone else request, shell_program)
    timeout_s = math.inf if background else limits.exec_timeout_s
    if request.timeout_seconds is not None:
        longest_s = MAX_SECONDS if background else limits.max_exec_timeout_s
        timeout_s = _timeout(request.timeout_seconds, longest_s)
    stdout_cap, stderr_cap = limits.stdout_bytes, limits.stderr_bytes
    if request.max_output_bytes is not None:
        stdout_cap = stderr_cap = _kept_bytes(request.max_output_bytes, ceiling)
    checked_shell(request.shell)
    cwd = None if request.cwd is None else working_directory(request.cwd)
    if cwd is None and argv is not None and not beside:
        cwd = WORKSPACE
    return Command(
        argv=argv,
        text=text,
        shell=request.shell,
        cwd=cwd,
        env=checked_environment(request.env) if request.env else {},
        stdin=request.stdin,
        keep_stdin_open=request.keep_stdin_open,
        timeout_s=timeout_s,
        stdout_cap=stdout_cap,
        stderr_cap=stderr_cap,
        pty=None if request.pty is None else checked_pty(request.pty),
        key=None if request.idempotency_key is None else _key(request.idempotency_key),
        raw_output=request.raw_output,
        state_of=request.shell if beside else None,
        user=user,
    )


def checked_shell(name: str) -> str:
    if not isinstance(name, str) or not _SHELL_NAME.match(name):
        raise InvalidRequest(
            "shell must be 1 to 64 letters, digits, '_', '.' or '-'",
            hint="leave it out to use the default shell",
            field="shell",
        )
    return name


def fingerprint(request: ExecRequest) -> str:
    """Return a short digest of what a command is: equal for a request that is repeated."""
    digest = hashlib.blake2b(digest_size=8)
    text = request.command if isinstance(request.command, str) else None
    words = request.command if text is None else ("in a shell", text)
    env = [f"{name}={value}" for name, value in sorted(request.env.items())]
    texts = [str(len(words)), *words, str(len(env)), *env, request.shell, request.cwd or ""]
    if request.user is not None:
        texts.append(request.user)
    for part in (*(text.encode("utf-8", "surrogatepass") for text in texts), request.stdin or b""):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def checked_pty(pty: Pty) -> Pty:
    return Pty(
        rows=whole("rows", pty.rows, low=1, high=10_000),
        cols=whole("cols", pty.cols, low=1, high=10_000),
    )


def _what(
    request: ExecRequest, shell_program: str
) -> tuple[tuple[str, ...], None] | tuple[None, str]:
    command = request.command
    if isinstance(command, str):
        size = len(text_bytes("command", command))
        if size > MAX_COMMAND_BYTES:
            raise _too_large(size, MAX_COMMAND_BYTES)
        if request.stateful is not False:
            return None, command
        if size > MAX_ARGUMENT_BYTES:
            raise PayloadTooLarge(
                f"a command of {size} bytes cannot be one argument of {shell_program}",
                hint=f"at most {MAX_ARGUMENT_BYTES} bytes outside the session's shell; "
                "write it to a file and run the file",
                limit=MAX_ARGUMENT_BYTES,
            )
        return (shell_program, "-c", command), None
    if not isinstance(command, tuple | list) or not command or command[0] == "":
        raise InvalidRequest(
            "the command is empty",
            hint='give a program and its arguments: ["ls", "-l"]',
            field="cmd",
        )
    sizes = [len(text_bytes("an argument of the command", part)) for part in command]
    most = MAX_COMMAND_BYTES if request.stateful else MAX_ARGUMENTS_BYTES
    if max(sizes) > MAX_ARGUMENT_BYTES or sum(sizes) > most:
        raise _too_large(sum(sizes), most)
    if request.stateful:
        return None, shlex.join(command)
    return tuple(command), None


def _kept_bytes(requested: int, ceiling: Mapping[str, int | float]) -> int:
    """Return the bytes to keep; over FREE_KEPT_BYTES the operator's ceiling of limits counts."""
    requested = whole("max_output_bytes", requested, low=0, high=MAX_KEPT_BYTES)
    for name in ("max_stdout_bytes", "max_stderr_bytes"):
        most = max(ceiling.get(name, MAX_KEPT_BYTES), FREE_KEPT_BYTES)
        if requested > most:
            raise PolicyDenied(
                f"max_output_bytes is more than policy.max.{name} ({most:g}) allows",
                hint="ask for less, or have the operator raise that setting",
                rule=f"policy.max.{name}",
                field="max_output_bytes",
            )
    return requested


def _too_large(size: int, most: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the command is {size} bytes long",
        hint=f"at most {most} bytes, {MAX_ARGUMENT_BYTES} in one argument; "
        "pass data through stdin, or write it to a file and name the file",
        limit=most,
    )


def _timeout(value: float, longest_s: float) -> float:
    try:
        return number("timeout_seconds", value, low=0.001, high=longest_s)
    except InvalidRequest as exc:
        if isinstance(value, int | float) and longest_s < value <= MAX_SECONDS:
            raise InvalidRequest(
                f"a timeout of {value:g} s is over max_exec_timeout_seconds ({longest_s:g})",
                hint="lower it, or start the command in the background, where this limit does "
                "not apply",
                field="timeout_seconds",
            ) from exc
        raise


def _user(request: ExecRequest) -> str:
    user = account_text(request.user)
    if request.stateful:
        raise InvalidRequest(
            "user and stateful exclude each other: the session's shell has a user of its own",
            hint="leave stateful out; the command then runs in a new process",
            field="user",
        )
    return user


def _key(value: str) -> str:
    if not isinstance(value, str) or not _KEY.match(value):
        raise InvalidRequest(
            "idempotency_key must be 1 to 256 printable characters",
            hint="use a UUID",
            field="idempotency_key",
        )
    return value
