"""A dockerd of a suite's own: its socket, data and state below one folder, its own namespaces.

Nothing on the host changes, and everything goes with the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_READY_S = 30.0
# dockerd and containerd write to /etc, /run and /opt whatever their settings say.
_PRIVATE = """
set -e
for at in etc opt; do
    mkdir -p "$1/over/$at" "$1/over/$at.work"
    mount -t overlay -o "lowerdir=/$at,upperdir=$1/over/$at,workdir=$1/over/$at.work" own "/$at"
done
mount -t tmpfs own /run
ip link set lo up
shift
exec "$@"
"""


class Dockerd:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._group = f"sandkasten-packing-{os.getpid()}"
        self._daemon: subprocess.Popen[bytes] | None = None

    def docker(self, *words: str) -> tuple[str, ...]:
        return ("docker", "--host", f"unix://{self._folder}/sock", *words)

    async def say(self, *words: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run, self.docker(*words), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def __enter__(self) -> Dockerd:
        with (self._folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [
                    *("unshare", "--net", "--mount", "--propagation", "private"),
                    *("/bin/sh", "-c", _PRIVATE, "sh", str(self._folder)),
                    "dockerd",
                    *("--host", f"unix://{self._folder}/sock"),
                    *("--data-root", f"{self._folder}/data"),
                    *("--exec-root", f"{self._folder}/exec"),
                    *("--pidfile", f"{self._folder}/pid"),
                    *("--cgroup-parent", f"/{self._group}"),
                    *("--bridge", "none", "--iptables=false"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _READY_S
        while subprocess.run(self.docker("version"), capture_output=True).returncode != 0:
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                tail = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"dockerd did not start:\n{tail}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._daemon is not None
        if self._daemon.poll() is None:
            self._daemon.send_signal(signal.SIGTERM)
            try:
                self._daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(self._daemon.pid, signal.SIGKILL)
                self._daemon.wait()
        for hierarchy in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
            with contextlib.suppress(OSError):
                (hierarchy / self._group).rmdir()
