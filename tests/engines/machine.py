"""A machine for an engine, as far as one kernel can provide it.

Mount and network namespaces in which /etc, /opt and /run are private, because an engine writes
there whatever its settings are. Everything it leaves is below one folder and in one cgroup. When
the process that started the machine ends, its keeper stops the machine; `sweep` finds what outlives
even the keeper. Knows nothing of Docker. Needs root.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.engines import keeper
from tests.hostwatch import loopwatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLACE = Path("/var/tmp")
PREFIX = "skd-"
# Of those for measurements of networks: no machine we could want to reach has one.
_NETWORK = "198.18"
_READY = "ready"
_SET_UP = """
set -e
folder=$1; apart=$2
mkdir -p "$folder/over"
for at in etc opt; do
    mkdir -p "$folder/over/$at" "$folder/over/$at.work"
    mount -t overlay \
        -o "lowerdir=/$at,upperdir=$folder/over/$at,workdir=$folder/over/$at.work" private "/$at"
done
mount -t tmpfs private /run
if [ -n "$apart" ]; then
    mkdir "$apart"
    mount --bind "$folder" "$apart"
    mount -t tmpfs -o mode=1777 private /var/tmp
    mount -t tmpfs -o mode=1777 private /tmp
fi
# Forwarding is a setting of the network namespace; an engine turns it on in its own.
ip link set lo up
echo ready
exec cat
"""


class Machine:
    """`with Machine() as machine:` and `machine.start([...])` runs a program there.

    `apart`: it sees nothing of our scratch folders, as a machine far away would not; its own folder
    is then somewhere else (`inside`). `network`: it has an address that we can reach.
    `shares`: a directory in which what we mount later appears there too; True is one of its own.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        apart: bool = False,
        network: bool = False,
        shares: Path | Literal[True] | None = None,
    ) -> None:
        self.token = secrets.token_hex(4)
        self.folder = folder or Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
        self.folder.mkdir(exist_ok=True)
        self.inside = Path("/run/machine") if apart else self.folder
        self.cgroup = f"sandkasten-{self.token}"
        self.address = ""
        self.our_address = ""
        """Of this host, as the machine sees it."""
        self._apart = apart
        self._network = network
        self.shares = self.folder / "shares" if shares is True else shares
        self._holder: subprocess.Popen[str] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Machine:
        link = self.link
        shares = None if self.shares is None else str(self.shares)
        noted = {"cgroup": self.cgroup, "link": link, "shares": shares, "owner": keeper.who()}
        (self.folder / keeper.NOTE).write_text(json.dumps(noted))
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, str(self.folder)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            if self.shares is not None:
                self.shares.mkdir(exist_ok=True)
                _run("mount", "--bind", str(self.shares), str(self.shares))
                _run("mount", "--make-shared", str(self.shares))
            self._hold()
            if link:
                self._connect(link)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _hold(self) -> None:
        """Start a process that keeps the namespaces while nothing else runs in them."""
        apart = str(self.inside) if self._apart else ""
        self._holder = subprocess.Popen(
            [
                *("unshare", "--net", "--mount", "--propagation", "slave"),
                *("/bin/sh", "-c", _SET_UP, "sh", str(self.folder), apart),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            start_new_session=True,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline().strip() != _READY:
            raise RuntimeError(f"no machine of its own: {self._holder.stderr.read()[-2000:]}")

    def _connect(self, link: str) -> None:
        """Create a network link between us and it, with an address at each end."""
        pid = str(self._pid)
        taken = _run("ip", "-4", "-o", "addr")
        for _ in range(50):
            third, last = secrets.randbelow(256), secrets.randbelow(64) * 4
            net = f"{_NETWORK}.{third}"
            if f" {net}.{last + 1}/" not in taken:
                break
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        _run("ip", "addr", "add", f"{net}.{last + 1}/30", "dev", link)
        _run("ip", "link", "set", link, "up")
        there = ("nsenter", "-t", pid, "-n", "ip")
        _run(*there, "addr", "add", f"{net}.{last + 2}/30", "dev", "eth0")
        _run(*there, "link", "set", "eth0", "up")
        _run(*there, "route", "add", "default", "via", f"{net}.{last + 1}")
        self.address, self.our_address = f"{net}.{last + 2}", f"{net}.{last + 1}"

    @property
    def link(self) -> str:
        """Return the name of our end of its network link; empty without one."""
        return f"sk{self.token}" if self._network else ""

    @property
    def _pid(self) -> int:
        assert self._holder is not None
        return self._holder.pid

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment by which the keeper recognises its processes."""
        return {**os.environ, keeper.MARK: str(self.folder)}

    def start(self, words: Sequence[str], log: Path, **extra: str) -> subprocess.Popen[bytes]:
        """Start a program there; its output goes to `log`."""
        with log.open("ab") as said:
            return subprocess.Popen(
                self.entering(words),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**self.environment, **extra},
                start_new_session=True,
            )

    def run(self, *words: str, **options: Any) -> str:
        """Run a program there to its end; return its output."""
        return _run(*self.entering(words), env=self.environment, **options)

    def entering(self, words: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", str(self._pid), "-m", "-n", "--", *words]

    def __exit__(self, *_: object) -> None:
        keeper.take_down(self.folder)
        for process in (self._holder, self._keeper):
            if process is not None:
                process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep() -> list[Path]:
    """Remove machines of runs that were killed together with their keeper."""
    left = [
        folder
        for folder in PLACE.glob(f"{PREFIX}*")
        if folder.is_dir() and not keeper.lives(folder)
    ]
    for folder in left:
        keeper.take_down(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return left


@loopwatch.of_the_test
def _run(*words: str, env: Mapping[str, str] | None = None, **options: Any) -> str:
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, check=False, timeout=60, **options
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()[-2000:]}")
    return done.stdout
