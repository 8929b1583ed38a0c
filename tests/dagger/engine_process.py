"""A Dagger engine as a plain process, in namespaces of its own.

Its machine (see `tests.engines.machine`) has a network link to the host. The engine has private
mounts, processes and IPC on it, since it rewrites /etc/resolv.conf and /usr/bin/iptables. The
containers of an engine of class `none` have an interface that leads nowhere; those of class
`egress` reach what the machine reaches. Killing the engine ends everything that runs in it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.dagger import programs
from tests.engines.machine import Machine
from tests.hostwatch import loopwatch
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    import subprocess

NetworkClass = Literal["none", "egress"]
PORT = 8765
_CGROUPS = Path("/sys/fs/cgroup")
# As an operator uses them.
SETTINGS = programs.REPOSITORY / "deploy" / "dagger" / "engine.json"
NO_NETWORK = programs.REPOSITORY / "deploy" / "dagger" / "none.conflist"
_START = """
set -e
folder=$1 settings=$2 programs=$3 debian=$4; shift 4
mkdir -p "$folder/usr" "$folder/usr.work" "$folder/varlib" "$folder/run/lock"
mount -t overlay -o "lowerdir=/usr,upperdir=$folder/usr,workdir=$folder/usr.work" private /usr
mount --bind "$folder/varlib" /var/lib
mount --bind "$folder/run" /run
mkdir -p /usr/local/bin /opt/cni/bin /etc/dagger
cp "$settings" /etc/dagger
ln -sf "$debian/usr/sbin/runc" /usr/local/bin/runc
ln -sf "$debian/usr/sbin/dnsmasq" /usr/sbin/dnsmasq
ln -sf "$programs/init" /usr/local/bin/dagger-init
ln -sf "$programs/cni/"* "$programs/dnsname" /opt/cni/bin
ln -sf /usr/sbin/xtables-nft-multi /usr/sbin/xtables-legacy-multi /usr/bin
rm -f /etc/resolv.conf
echo "nameserver 192.0.2.53" >/etc/resolv.conf
echo 1 >/proc/sys/net/ipv4/ip_forward
exec "$programs/engine" "$@"
"""


class EngineProcess:
    """`with EngineProcess("none") as engine:` starts one; `engine.address` reaches it."""

    def __init__(self, network: NetworkClass = "none", folder: Path | None = None) -> None:
        self.network = network
        self.machine = Machine(folder, network=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EngineProcess:
        self.machine.__enter__()
        try:
            self._configure()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.machine.__exit__()
        if self._process is not None:
            self._process.wait()

    # ---- where it is

    @property
    def folder(self) -> Path:
        return self.machine.folder

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "dagger" / "engine.sock"

    @property
    def address(self) -> str:
        """Return the address as _EXPERIMENTAL_DAGGER_RUNNER_HOST has it."""
        return f"unix://{self.socket}"

    @property
    def tcp_address(self) -> str:
        """Return the address by which another machine reaches an engine of class `none`."""
        return f"tcp://{self.machine.address}:{PORT}"

    def processes(self) -> list[int]:
        """Return the processes of its containers, by the pids of the host."""
        # One tree (version 2), or one for each controller.
        tops = (_CGROUPS / self.machine.cgroup, _CGROUPS / "pids" / self.machine.cgroup)
        found: list[int] = []
        for group in (group for top in tops for group, _, _ in os.walk(top)):
            with contextlib.suppress(OSError):
                found += map(int, Path(group, "cgroup.procs").read_text().split())
        return found

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # ---- life

    @loopwatch.of_the_test
    def start(self) -> None:
        """Start the engine and return when it listens."""
        self.socket.unlink(missing_ok=True)
        words = ["--config", str(self.folder / "engine.toml"), "--root", str(self.folder / "state")]
        words += ["--oci-cni-pool-size", "4"]
        if self.network == "none":
            words += ["--oci-cni-config-path", str(NO_NETWORK)]
            # An engine obeys every client, and containers of class `egress` would reach the port.
            words += ["--addr", self.tcp_address]
        apart = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        setting_up = ["sh", "-c", _START, "sh", str(self.folder), str(SETTINGS)]
        found = [*map(str, programs.libraries()), os.environ.get("LD_LIBRARY_PATH", "")]
        self._process = self.machine.start(
            [*apart, *setting_up, str(programs.DAGGER), str(programs.DEBIAN), *words],
            self.folder / "log",
            HOME=str(self.folder),
            TMPDIR=str(self.folder),
            DO_NOT_TRACK="1",
            LD_LIBRARY_PATH=":".join(filter(None, found)),
        )
        deadline = time.monotonic() + FAR_TOO_LATE_S
        while "running server on" not in self.log() or not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the Dagger engine did not start:\n{self.log()[-3000:]}")
            time.sleep(0.05)

    @loopwatch.of_the_test
    def kill9(self) -> None:
        """Simulate a crash: what runs in the engine ends with it."""
        assert self._process is not None
        # The end of `unshare` is the end of the engine, whose end is that of its namespace.
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=PATIENCE_S)
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()

    def _configure(self) -> None:
        parent = f'[worker.oci]\ndefaultCgroupParent = "/{self.machine.cgroup}"\n'
        (self.folder / "engine.toml").write_text(parent)
