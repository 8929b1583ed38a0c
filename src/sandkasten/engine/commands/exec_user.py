"""Run a command as another user of the image, where the sandbox has root inside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.engine.sandbox_users import find_user
from sandkasten.errors import FileNotFound, UnsupportedByBackend
from sandkasten.model.sandbox.cell_spec import RUNNER_DIR, RUNNER_PROGRAM

if TYPE_CHECKING:
    from sandkasten.model.commands.command import Command
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.wire.channel import Channel

CALL_TIMEOUT_S: Final = 30.0
# Where backends put the runner, which can become another user without a program of the image.
_RUNNERS: Final = (RUNNER_PROGRAM, f"{RUNNER_DIR}/bin/runner")


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
            await channel.call("fs.stat", {"path": path}, timeout_s=CALL_TIMEOUT_S)
        except FileNotFound:
            continue
        return path
    raise UnsupportedByBackend(
        "this backend cannot run a command as another user",
        hint="use a program of the image, such as setpriv or su",
    )
