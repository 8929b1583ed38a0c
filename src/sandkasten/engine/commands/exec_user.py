"""Run a command as another user of the image, where the sandbox has root inside.

The users are those of /etc/passwd and /etc/group inside now, which the sandbox may have changed: a
wrong answer can only name another id of the sandbox's own range.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import (
    FileNotFound,
    InvalidRequest,
    ProtocolViolation,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.commands.accounts import MAX_ACCOUNTS_BYTES, find_account
from sandkasten.model.sandbox.cell_spec import RUNNER_DIR, RUNNER_PROGRAM, USER_ID, USER_NAME
from sandkasten.wire.call import Data

if TYPE_CHECKING:
    from sandkasten.model.commands.command import Command
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.wire.channel import Channel

CALL_TIMEOUT_S: Final = 30.0
# Where backends put the runner, which can become another user without a program of the image.
_RUNNERS: Final = (RUNNER_PROGRAM, f"{RUNNER_DIR}/bin/runner")
_ROOT: Final = frozenset({"root", "0", "root:root", "0:0"})
_USER: Final = frozenset({USER_NAME, str(USER_ID)})


async def as_user(command: Command, record: Record, channel: Channel) -> Command:
    """Return the command that runs `command` as its user. Raise InvalidRequest if the sandbox has
    no such user, or only one.
    """
    assert command.user is not None
    assert command.argv is not None
    if record.profile != "dev":
        if command.user in _USER:
            return command
        raise InvalidRequest(
            f"commands of this sandbox run as user {USER_ID}; only profile dev has other users",
            hint="leave user out, or create the sandbox with profile dev",
            field="user",
        )
    if command.user in _ROOT:
        return command
    passwd, group = await _content(channel, "/etc/passwd"), await _content(channel, "/etc/group")
    account = find_account(passwd, group, command.user, _refusal)
    names = {"USER": account.name, "LOGNAME": account.name} if account.name else {}
    return replace(
        command,
        argv=(await _runner(channel), "--as", account.ids, *command.argv),
        env={"HOME": account.home, **names, **command.env},
    )


async def _content(channel: Channel, path: str) -> bytes:
    """Return a file's content; empty if there is none."""
    found = bytearray()
    try:
        async with channel.stream("fs.read", {"path": path, "max": MAX_ACCOUNTS_BYTES}) as call:
            async for item in call:
                if isinstance(item, Data):
                    found += item.data
                if len(found) > MAX_ACCOUNTS_BYTES:
                    raise ProtocolViolation("the runner sent more of a file than was requested")
            await call.result()
    except FileNotFound:
        return b""
    return bytes(found)


async def _runner(channel: Channel) -> str:
    for path in _RUNNERS:
        try:
            await channel.call("fs.stat", {"path": path}, timeout_s=CALL_TIMEOUT_S)
        except FileNotFound:
            continue
        return path
    raise UnsupportedByBackend(
        "this backend cannot run a command as another user",
        hint="use a program of the image, such as setpriv or su",
    )


def _refusal(message: str, hint: str) -> SandkastenError:
    return InvalidRequest(message, hint=hint, field="user")
