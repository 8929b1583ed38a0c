"""The users of a sandbox that has root inside, by the names of its image.

The users are those of /etc/passwd and /etc/group inside now, which the sandbox may have changed: a
wrong answer can only name another id of the sandbox's own range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import (
    FileNotFound,
    InvalidRequest,
    ProtocolViolation,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.commands.accounts import MAX_ACCOUNTS_BYTES, find_account
from sandkasten.model.sandbox.cell_spec import USER_ID, USER_NAME
from sandkasten.wire.call import Data
from sandkasten.wire.frame_codec import FILE_USER

if TYPE_CHECKING:
    from sandkasten.model.commands.accounts import Account
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.wire.channel import Channel

_ROOT: Final = frozenset({"root", "0", "root:root", "0:0"})
_USER: Final = frozenset({USER_NAME, str(USER_ID)})


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


def _refusal(message: str, hint: str) -> SandkastenError:
    return InvalidRequest(message, hint=hint, field="user")
