"""Leftovers of host volumes below a directory, and killing a call at every step."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.linux.storage import mountinfo
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LAUNCHER = Programs.found(None, None).launcher
_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
_EXITKILL = 0x100000


def devices(below: Path) -> list[str]:
    """Return the files below it that a loop device holds, also deleted ones."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            path = file.read_text().strip().removesuffix(" (deleted)")
        except OSError:
            continue  # let go meanwhile
        if path.startswith(f"{below}/"):
            found.append(path)
    return found


def mounts(below: Path) -> list[str]:
    return [one.point for one in mountinfo.under(os.fspath(below))]


def nothing_of(directory: Path) -> None:
    """Check that no mount and no file is left, and that the device is released soon."""
    assert mounts(directory) == []
    assert not os.path.lexists(directory)
    eventually(lambda: devices(directory) == [], f"loop devices: {devices(directory)}")


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run the call in a child that is killed right before its step-th external effect.

    Return False if the call ended before that.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of others are none of ours
        child = os.fork()
    if child == 0:
        left = [step]

        def count(event: str, _: object) -> None:
            if event.startswith(("os.", "open", "subprocess.", "fcntl.", "ctypes.call")):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            work()
        except BaseException:  # noqa: BLE001  (a child may not go on as a second test run)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def launcher_killed_at(step: int | None, plan: Mapping[str, object]) -> int:
    """Run the launcher and kill it at the step-th system call, or never.

    Return how many system calls it passed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    read, write = os.pipe()
    os.write(write, json.dumps(plan).encode())
    os.close(write)
    tracee = subprocess.Popen(
        [LAUNCHER],
        stdin=read,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: libc.ptrace(_TRACEME, 0, 0, 0),
    )
    os.close(read)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    _, status = os.waitpid(tracee.pid, 0)
    assert os.WIFSTOPPED(status)
    libc.ptrace(_SETOPTIONS, tracee.pid, None, _EXITKILL)
    past = 0
    while os.WIFSTOPPED(status) and past != step:
        libc.ptrace(_SYSCALL, tracee.pid, None, None)
        _, status = os.waitpid(tracee.pid, 0)
        past += 1
    if os.WIFSTOPPED(status):
        os.kill(tracee.pid, signal.SIGKILL)
        os.waitpid(tracee.pid, 0)
    tracee.returncode = 0
    return past
