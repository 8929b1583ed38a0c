"""A Docker Engine of a test run's own: socket, data and state below one folder.

It has mount and network namespaces of its own, so that it changes nothing on the host and goes with
the folder. Drives the `docker` program, as an operator would; knows nothing of Sandkasten.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_READY_S = 30.0
# dockerd and containerd write a key to /etc, sockets to /run and folders to /opt whatever their
# settings say; here these are layers and a tmpfs that end with the daemon.
_PRIVATE_HOST = """
set -e
for at in etc opt; do
    mkdir -p "$1/over/$at" "$1/over/$at.work"
    mount -t overlay -o "lowerdir=/$at,upperdir=$1/over/$at,workdir=$1/over/$at.work" test "/$at"
done
mount -t tmpfs test /run
# In memory: ten thousand small files are on and off a disk in a minute, and here in no time.
mkdir "$1/data"
mount -t tmpfs -o size=6g test "$1/data"
ip link set lo up
shift
exec "$@"
"""


class Engine:
    """`with Engine(folder) as engine:` starts a dockerd and takes it down with all it holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cgroup = f"sandkasten-deploy-{os.getpid()}-{folder.name}"
        self._daemon: subprocess.Popen[bytes] | None = None
        self.socket = folder / "docker.sock"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {**kept, "DOCKER_HOST": f"unix://{self.socket}"}

    def __enter__(self) -> Engine:
        self._folder.mkdir(parents=True)
        with (self._folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [
                    *("unshare", "--net", "--mount", "--propagation", "private"),
                    *("/bin/sh", "-c", _PRIVATE_HOST, "sh", str(self._folder)),
                    *("dockerd", "--host", f"unix://{self.socket}"),
                    *("--data-root", str(self._folder / "data")),
                    *("--exec-root", str(self._folder / "exec")),
                    *("--pidfile", str(self._folder / "pid")),
                    *("--cgroup-parent", f"/{self._cgroup}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + _READY_S
        while (answer := self.docker("version", check=False)).returncode != 0:
            assert self._daemon is not None
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                tail = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"dockerd did not start: {answer.stderr}\n{tail}")
            time.sleep(0.1)

    def docker(
        self, *words: str, check: bool = True, timeout_s: float = 90
    ) -> subprocess.CompletedProcess[str]:
        return self.run("docker", *words, check=check, timeout_s=timeout_s)

    def run(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 90,
    ) -> subprocess.CompletedProcess[str]:
        """A program with this engine as its DOCKER_HOST."""
        done = subprocess.run(
            words,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
        return done

    def __exit__(self, *_: object) -> None:
        if self._daemon is None:
            return
        if self._daemon.poll() is None:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                left = self.docker("ps", "-aq").stdout.split()
                if left:
                    self.docker("rm", "-fv", *left)
            self._daemon.send_signal(signal.SIGTERM)
        try:
            self._daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self._daemon.pid, signal.SIGKILL)
            self._daemon.wait()
        for hierarchy in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
            with contextlib.suppress(OSError):
                (hierarchy / self._cgroup).rmdir()
