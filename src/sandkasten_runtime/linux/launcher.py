"""Pass a plan to the launcher and turn its failures into errors with a remedy. Blocking."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sandkasten.disk.process_identity import KILLED_HINT
from sandkasten.errors import (
    BackendUnavailable,
    InternalError,
    InvalidImage,
    IsolationRefused,
    PolicyDenied,
    QuotaExceeded,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.linux.processes import Pinned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# The launcher's own deadline is shorter; this one only catches a launcher that is itself stuck.
LAUNCH_DEADLINE_MS = 15_000
_OUTER_DEADLINE_S = 20.0
_ENOSPC, _ENOENT = errno.ENOSPC, errno.ENOENT
# For a layer or a path in it, these errors are caused by the image; all others by the host.
_IMAGES_FAULT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
# What the walk to a host mount meets if a part of the path is not what it was when it was checked.
_REPLACED = frozenset({*_IMAGES_FAULT, errno.ESTALE, errno.EINVAL})
_BACKLOG = 128
_CLOSING_S = 1.0

_REMEDIES: Mapping[str, str] = {
    "cgroup": "give this process write access to its cgroups, or run it as root",
    "userns": (
        "allow user namespaces: sysctl user.max_user_namespaces above 0, "
        "kernel.unprivileged_userns_clone=1, and on AppArmor hosts "
        "kernel.apparmor_restrict_unprivileged_userns=0 or a profile for bwrap"
    ),
    "loop": "make /dev/loop-control usable (modprobe loop), or free loop devices with losetup -D",
    "mount": "this process may not mount; run as root on the host, or allow user namespaces",
    "host mount": (
        "a writable host mount needs a file system with idmapped mounts (ext4, xfs, btrfs; Linux "
        "5.12); name a source on such a file system in policy.mounts"
    ),
    "image": (
        "images need overlayfs, and as root idmapped mounts (Linux 5.19) on the file system of the "
        "data directory; run sandkasten doctor"
    ),
    "network": (
        "the kernel needs nf_tables with NAT (modprobe nft_redir nft_chain_nat); or use "
        "network: none"
    ),
    "container": (
        "the daemon must be root on the machine that runs the container, with CAP_SYS_ADMIN and "
        "CAP_NET_ADMIN; or use network: none"
    ),
    "seccomp": "reinstall the package; the compiled filter cannot be read",
    "limits": "raise the hard limits of this process (ulimit -Hn)",
    "bubblewrap": "run sandkasten doctor",
    "runtime": "run sandkasten doctor; it tries the runtime and says what it lacks",
    "runner": "run sandkasten doctor; the runner did not answer from inside the sandbox",
    "pid file": "check free space below the data directory",
}


@dataclass(frozen=True, slots=True)
class Launched:
    pid: int
    """The first process inside, as the host sees it; 0 if the plan starts none."""
    shared: tuple[str, ...] = ()
    """What the plan wants private and the kernel could only share with the host."""


class StartedLauncher:
    """A launcher that waits for its plan. Its start takes a millisecond, in which the caller can
    prepare the plan. Without one it ends when this is closed, or when this process ends.
    """

    def __init__(self, launcher: Path, *fds: int) -> None:
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [os.fspath(launcher)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=fds,
                env={},
                start_new_session=True,
            )
        except FileNotFoundError as exc:
            raise BackendUnavailable(
                f"the launcher is missing: {launcher}",
                hint="build it with make setup, or install the wheel for this machine",
            ) from exc
        except OSError as exc:
            raise BackendUnavailable(f"the launcher could not be run: {exc}") from exc

    def __enter__(self) -> StartedLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def launch(self, plan: Mapping[str, object]) -> Launched:
        """Carry out the plan, once. On SandkastenError nothing is left running."""
        process, self._process = self._process, None
        assert process is not None
        try:
            answer = _answered(process, json.dumps(plan).encode())
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise BackendUnavailable(f"the launcher could not be run: {exc}") from exc
        error = answer.get("error")
        if error is not None:
            raise trouble(error["step"], error["message"], error["errno"])
        return Launched(int(answer["pid"]), tuple(answer["shared"]))


def launch(launcher: Path, plan: Mapping[str, object], *fds: int) -> Launched:
    """Carry out the plan. On SandkastenError nothing is left running."""
    with StartedLauncher(launcher, *fds) as started:
        return started.launch(plan)


def _answered(process: subprocess.Popen[bytes], plan: bytes) -> dict[str, Any]:
    """Return the answer of the launcher, which has ended: until then it is in the cgroups of the
    sandbox, and would count as one of its processes.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with suppress(BrokenPipeError):
            view = memoryview(plan)
            while view:
                view = view[os.write(process.stdin.fileno(), view) :]
        process.stdin.close()
        line = _line(process.stdout.fileno(), process)
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as exc:
            # One that has closed its output ends next, and its status has the reason.
            if line.strip() or not _ended(process, _CLOSING_S):
                # Without this, one that prints nothing and stays would be waited for.
                process.kill()
            stderr_text = os.read(process.stderr.fileno(), 500).decode(errors="replace")
            if not line.strip():
                raise _silent_end(process, stderr_text) from exc
            raise InternalError(f"the launcher returned an invalid answer: {stderr_text}") from exc
        return answer
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        if not _ended(process, _OUTER_DEADLINE_S):
            process.kill()
        process.wait()


def _silent_end(process: subprocess.Popen[bytes], stderr_text: str) -> BackendUnavailable:
    """Return the error for a launcher that ended, or closed its output, without an answer."""
    status = process.wait()  # it has ended, or was just killed
    reason = f"it was killed ({_signal_name(-status)})" if status < 0 else f"status {status}"
    text = f"the launcher ended without an answer: {reason}"
    return BackendUnavailable(
        f"{text}: {stderr_text.strip()}" if stderr_text.strip() else text,
        hint=KILLED_HINT,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Wait for the end of a process. `Popen.wait` with a deadline would sleep a millisecond or more
    between two looks.
    """
    try:
        pinned = Pinned(process.pid, os.pidfd_open(process.pid))
    except OSError:
        # No descriptor is free. An error would hide the answer: that a sandbox runs now.
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
        return process.returncode is not None
    try:
        return pinned.wait(within_s)
    finally:
        pinned.close()


def _line(fd: int, process: subprocess.Popen[bytes]) -> bytes:
    """Read up to a line feed or the end of the file. Raise TimeoutExpired."""
    deadline = time.monotonic() + _OUTER_DEADLINE_S
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poller.poll(remaining * 1000):
            raise subprocess.TimeoutExpired(process.args, _OUTER_DEADLINE_S)
        piece = os.read(fd, 65536)
        if not piece:
            break
        line += piece
    return line


def trouble(step: str, message: str, number: int) -> SandkastenError:
    """Return the error of a failed step. Pure."""
    reason = f"{message}: {os.strerror(number)}" if number else message
    text = f"the sandbox could not be started ({step}): {reason}"
    hint = _REMEDIES.get(step, "run sandkasten doctor")
    if step == "plan":
        return InternalError(text)
    if step == "ids":
        return IsolationRefused(text, hint="report this: the sandbox was ended before any code ran")
    if step == "image" and number in _IMAGES_FAULT:
        return InvalidImage(
            f"the image cannot be used: {reason}",
            hint="it is incomplete, or has a link where a directory must be; import it again",
        )
    if step == "host mount" and number in _REPLACED:
        return PolicyDenied(
            f"a host mount was replaced after it was checked: {reason}",
            hint="a link is never followed: name a directory of the mount that is not one",
        )
    # Namespaces have their own limits, which are no matter of disk space.
    if number == _ENOSPC and step not in ("userns", "network"):
        return QuotaExceeded(text, hint="free space below the data directory")
    if step == "bubblewrap" and number == _ENOENT:
        hint = "apt-get install bubblewrap"
    return BackendUnavailable(text, hint=hint, step=step, errno=number)


def binds(pairs: Sequence[tuple[Path, str, bool]]) -> list[dict[str, object]]:
    return [{"source": os.fspath(s), "name": n, "directory": d} for s, n, d in pairs]


def listen(path: Path) -> socket.socket:
    """Create the runner's listener here, so that nothing inside can unlink or replace it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Through /proc: a socket path may have 107 bytes, and a data directory's may be longer.
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener
