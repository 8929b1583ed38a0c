"""Identifiers of resources. They are generated here and can never be a path or an option."""

from __future__ import annotations

import secrets
from typing import NewType

from sandkasten.errors import InvalidRequest, SessionNotFound
from sandkasten.model.field_patterns import EXEC_ID, SANDBOX_ID, form

SandboxId = NewType("SandboxId", str)
ExecId = NewType("ExecId", str)

# 8 bytes give the 16 hex digits the contract promises; more only makes ids longer to type.
_ID_BYTES = 8
_CELL = "cel_"
_LOOK = "look_"
_SANDBOX = form(SANDBOX_ID)
_EXEC = form(EXEC_ID)


def new_sandbox_id() -> SandboxId:
    return SandboxId("sbx_" + secrets.token_hex(_ID_BYTES))


def new_snapshot_id() -> str:
    return "snap_" + secrets.token_hex(_ID_BYTES)


def new_exec_id(fingerprint: str = "") -> ExecId:
    """Return a new id. It ends with the fingerprint of a command that has an idempotency key."""
    return ExecId("exe_" + secrets.token_hex(_ID_BYTES) + (fingerprint and f"-{fingerprint}"))


def new_cell_id() -> ExecId:
    """Return a new id of a piece of code in the history of its session."""
    return ExecId(_CELL + secrets.token_hex(_ID_BYTES))


def is_cell_id(text: str) -> bool:
    return text.startswith(_CELL)


def new_look_id() -> ExecId:
    """Return a new id of one of our programs that no record and no list has."""
    return ExecId(_LOOK + secrets.token_hex(_ID_BYTES))


def is_look_id(text: str) -> bool:
    return text.startswith(_LOOK)


def may_be_same_command(command: str, other: str) -> bool:
    """Return False if the fingerprints in two exec ids differ."""
    marks = command.partition("-")[2], other.partition("-")[2]
    return not all(marks) or marks[0] == marks[1]


def host_label(the_id: str) -> str:
    """Return an id as part of a host name, which has no underscore."""
    return the_id.replace("_", "-")


def is_sandbox_id(text: str) -> bool:
    return _SANDBOX.fullmatch(text) is not None


def sandbox_id(text: str) -> SandboxId:
    """Return the id; SessionNotFound if it is invalid, as for an unknown one.

    The form of host names is read too.
    """
    if text.startswith("sbx-"):
        text = text.replace("-", "_", 1)
    if not _SANDBOX.match(text):
        raise SessionNotFound(
            "no sandbox has that id", hint="ids look like sbx_0123456789abcdef; list them with ls"
        )
    return SandboxId(text)


def exec_id(text: str) -> ExecId:
    if not _EXEC.match(text):
        raise InvalidRequest(
            "an exec id must be 1 to 64 letters, digits, '_' or '-'",
            hint="use the id that exec returned",
        )
    return ExecId(text)
