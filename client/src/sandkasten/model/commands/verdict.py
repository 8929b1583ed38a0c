"""The reason a command ended, as a pure function of what was observed."""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.exec_values import Why
from sandkasten.model.sandbox.limits import MIB, Limits

if TYPE_CHECKING:
    from sandkasten.model.sandbox.usage import Usage

_KILL = int(signals.SIGKILL)
# Linux numbers; the constant does not exist everywhere this module is imported.
_SYS = 31


@dataclass(frozen=True, slots=True)
class Ending:
    """The facts that the runner reports about a command that ended."""

    exit_code: int | None
    signal: int | None
    timed_out: bool = False
    killed: bool = False
    shell_reset: bool = False
    lost: bool = False
    oom_suspect: bool = False
    sigsys: bool = False

    @property
    def clean(self) -> bool:
        """Return whether a command ended by itself and with success."""
        return (
            self.exit_code == 0
            and self.signal is None
            and not (self.timed_out or self.killed or self.shell_reset or self.lost or self.sigsys)
        )

    @property
    def died_of_kill(self) -> bool:
        return self.signal == _KILL or self.exit_code == 128 + _KILL


def needs_figures(ending: Ending) -> bool:
    """Return whether the kernel's counters could explain the end; reading them is not free."""
    return not (ending.clean or ending.timed_out or ending.killed or ending.lost)


def verdict(
    ending: Ending,
    limits: Limits,
    timeout_s: float | None = None,
    *,
    before: Usage | None = None,
    after: Usage | None = None,
    full: str | None = None,
) -> Why | None:
    """Return why a command ended; None when it ended by itself. `full` names a full file system."""
    if ending.clean:
        return None
    if ending.timed_out:
        return Why(
            "TIMEOUT",
            "the command was stopped at its deadline"
            + (f" of {timeout_s:g} s" if timeout_s is not None else ""),
            "raise the timeout; a command in the background has none unless you set it",
        )
    if ending.lost and ending.shell_reset:
        return Why(
            "LOST",
            "the session's shell ended before it could say how the command ended",
            "the next command gets a fresh shell in the last directory; check what was done",
        )
    if ending.lost:
        return Why(
            "LOST",
            "the sandbox ended before the command's result was known",
            "create a new sandbox; what the command did before is gone with it",
        )
    if ending.killed:
        return Why(
            "SIGNAL",
            f"a request sent it a signal ({_name(ending)})",
            "start it again if it should not have been stopped",
        )
    if ending.died_of_kill and _rose(before, after, "oom_kills"):
        return Why(
            "OOM",
            f"it needed more than the {limits.memory_bytes // MIB} MB of memory of this sandbox",
            "raise mem_limit_mb, or work in smaller pieces",
        )
    if ending.sigsys or ending.signal == _SYS or ending.exit_code == 128 + _SYS:
        return Why(
            "SECCOMP",
            "it made a system call that sandboxes may not make",
            "use another way; the list of refused calls is part of the isolation",
        )
    if _rose(before, after, "pids_refused"):
        return Why(
            "PIDS",
            f"it tried to run more than the {limits.pids} processes of this sandbox",
            "raise pids_limit, or run fewer at once",
        )
    if full is not None:
        return Why(
            "QUOTA",
            f"there is no room left in {full}",
            "remove files there, or raise workspace_mb or tmp_mb",
        )
    if ending.shell_reset:
        return Why(
            "SHELL_EXIT",
            "the command ended the session's shell",
            "the next command gets a fresh shell in the last directory; "
            "run `exit` in a subshell: ( exit 1 )",
        )
    if ending.signal is not None:
        hint = (
            "it may have run out of memory; this host does not count that"
            if ending.oom_suspect and (after is None or after.oom_kills is None)
            else "the program crashed, or something in the sandbox killed it"
        )
        return Why("SIGNAL", f"it died of a signal ({_name(ending)})", hint)
    return None


def _rose(before: Usage | None, after: Usage | None, figure: str) -> bool:
    now = getattr(after, figure, None)
    return now is not None and now > (getattr(before, figure, None) or 0)


def _name(ending: Ending) -> str:
    number = ending.signal
    if number is None and ending.exit_code is not None and ending.exit_code > 128:
        number = ending.exit_code - 128
    if number is None:
        return "unknown"
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
