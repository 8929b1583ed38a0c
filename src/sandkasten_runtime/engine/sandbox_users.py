"""The users of a sandbox that has root inside, by the names of its image.

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
from sandkasten_runtime.wire.call import Data
from sandkasten_runtime.wire.frame_codec import FILE_USER

if TYPE_CHECKING:
    from sandkasten.model.commands.accounts import Account
    from sandkasten.model.commands.command import Command
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten_runtime.wire.channel import Channel

_ROOT: Final = frozenset({"root", "0", "root:root", "0:0"})
_USER: Final = frozenset({USER_NAME, str(USER_ID)})
_STAT_TIMEOUT_S: Final = 30.0
# Where backends put the runner, which can become another user without a program of the image.
_RUNNERS: Final = (RUNNER_PROGRAM, f"{RUNNER_DIR}/bin/runner")


async def find_user(user: str, record: Record, channel: Channel) -> Account | None:
    """Return the user that `USER[:GROUP]` names; None for the sandbox's own user.

    Raise InvalidRequest if the sandbox has no such user, or only one.
    """
    if record.profile != "dev":
        if user in _USER:
            return None
        raise InvalidRequest(
            f"this sandbox has one user, {USER_ID}; only profile dev has other users",
            hint="leave user out, or create the sandbox with profile dev",
            field="user",
        )
    if user in _ROOT:
        return None
    passwd, group = await _content(channel, "/etc/passwd"), await _content(channel, "/etc/group")
    return find_account(passwd, group, user, _refusal)


async def file_user(user: str, record: Record, channel: Channel) -> dict[str, object]:
    """Return the field of a file verb that makes it that user's; none for the sandbox's own."""
    account = await find_user(user, record, channel)
    if account is None:
        return {}
    if FILE_USER not in channel.hello.features:
        # Its runner would ignore the field and act as root.
        raise UnsupportedByBackend(
            "the runner of this sandbox cannot use files as another user",
            hint="create a new sandbox, or use a command with user",
        )
    return {"user": {"uid": account.uid, "groups": list(account.all_groups)}}


async def as_user(command: Command, record: Record, channel: Channel) -> Command:
    """Return the command that runs `command` as its user. Raise InvalidRequest if the sandbox has
    no such user, or only one.
    """
    assert command.user is not None
    assert command.argv is not None
    account = await find_user(command.user, record, channel)
    if account is None:
        return command
    names = {"USER": account.name, "LOGNAME": account.name} if account.name else {}
    return replace(
        command,
        argv=(await _runner(channel), "--as", account.ids, *command.argv),
        env={"HOME": account.home, **names, **command.env},
    )


async def _runner(channel: Channel) -> str:
    for path in _RUNNERS:
        try:
            await channel.call("fs.stat", {"path": path}, timeout_s=_STAT_TIMEOUT_S)
        except FileNotFound:
            continue
        return path
    raise UnsupportedByBackend(
        "this backend cannot run a command as another user",
        hint="use a program of the image, such as setpriv or su",
    )


async def _content(channel: Channel, path: str) -> bytes:
    """Return a file's content; empty if there is none."""
    content = bytearray()
    try:
        async with channel.stream("fs.read", {"path": path, "max": MAX_ACCOUNTS_BYTES}) as call:
            async for item in call:
                if isinstance(item, Data):
                    content += item.data
                if len(content) > MAX_ACCOUNTS_BYTES:
                    raise ProtocolViolation("the runner sent more of a file than was requested")
            await call.result()
    except FileNotFound:
        return b""
    return bytes(content)


def _refusal(message: str, hint: str) -> SandkastenError:
    return InvalidRequest(message, hint=hint, field="user")
