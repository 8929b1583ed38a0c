"""A dockerd of one test run, on its own machine (see `machine`).

`with Engine() as engine:` starts it. Use it through its CLI (`engine.docker`) or its HTTP API
(`engine.ask`; see `reached`). It can be stopped, killed and started again while its containers'
machine stays. Needs root, docker.io, and openssl for TLS.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

from tests.engines import certificates
from tests.engines.machine import Machine
from tests.engines.reached import Reached
from tests.hostwatch import loopwatch
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

TLS_PORT, PLAIN_PORT = 2376, 2375


def missing() -> str:
    """Return why no engine can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "starting dockerd needs root"
    needed = ("dockerd", "docker", "containerd", "runc", "unshare", "nsenter", "ip", "iptables")
    lacking = [name for name in needed if not shutil.which(name)]
    return f"not installed: {', '.join(lacking)} (docker.io, iproute2, iptables)" if lacking else ""


class Engine:
    """`tcp`: also reached over a network, with certificates of both sides or without any.

    `apart`: on a machine that sees nothing of our scratch folders. `bridge`: with docker's own
    network, which our sandboxes do not use and which makes its start slower. `shares`: as Machine.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        tcp: Literal["", "mtls", "plain"] = "",
        apart: bool = False,
        bridge: bool = False,
        live_restore: bool = False,
        shares: Path | Literal[True] | None = None,
    ) -> None:
        self.machine = Machine(folder, apart=apart, network=bool(tcp), shares=shares)
        self._tcp = tcp
        self._bridge = bridge
        self._live_restore = live_restore
        self._daemon: subprocess.Popen[bytes] | None = None

    # ---- life

    def __enter__(self) -> Engine:
        self.machine.__enter__()
        try:
            if self._tcp == "mtls":
                certificates.make(self.folder / "certs", self.machine.address)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    @loopwatch.of_the_test
    def start(self) -> None:
        """Start the engine and return when it answers."""
        # Its containerd, when it is slow to end, is asked what it does, and writes that down there.
        own = str(self.machine.inside)
        self._daemon = self.machine.start(self._command(), self.folder / "log", TMPDIR=own)
        deadline = time.monotonic() + FAR_TOO_LATE_S
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/_ping", raw=True) == b"OK":
                    return
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dockerd did not start:\n{self.log()[-3000:]}")
            time.sleep(0.05)

    def _command(self) -> list[str]:
        inside = self.machine.inside
        words = [
            *("dockerd", "--host", f"unix://{inside / 'docker.sock'}"),
            *("--data-root", str(inside / "data"), "--exec-root", str(inside / "exec")),
            *("--pidfile", str(inside / "pid"), "--cgroup-parent", f"/{self.machine.cgroup}"),
            *("--shutdown-timeout", "5"),
        ]
        if not self._bridge:
            words += ["--bridge", "none", "--iptables=false"]
        if self._live_restore:
            words.append("--live-restore")
        if self._tcp == "mtls":
            words += [
                *("--host", f"tcp://{self.machine.address}:{TLS_PORT}", "--tlsverify"),
                *("--tlscacert", str(inside / "certs" / "ca.pem")),
                *("--tlscert", str(inside / "certs" / "server.pem")),
                *("--tlskey", str(inside / "certs" / "server-key.pem")),
            ]
        elif self._tcp == "plain":
            words += ["--host", f"tcp://{self.machine.address}:{PLAIN_PORT}", "--tls=false"]
        return words

    @loopwatch.of_the_test
    def stop(self) -> None:
        """Stop it as an operator does: it ends its containers first, unless live restore is on."""
        self._signal(signal.SIGTERM)

    @loopwatch.of_the_test
    def kill9(self) -> None:
        """Simulate a crash: its containers continue."""
        self._signal(signal.SIGKILL)

    @loopwatch.of_the_test
    def restart(self) -> None:
        self.stop()
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(number)
        try:
            self._daemon.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
            raise
        if number == signal.SIGKILL:
            # A name without a listener would look like an engine that refuses.
            self.socket.unlink(missing_ok=True)
            (self.folder / "pid").unlink(missing_ok=True)
            self._outwait()

    def _outwait(self) -> None:
        """Wait until its containerd is reaped, which would otherwise look alive."""
        noted = self.folder / "exec" / "containerd" / "containerd.pid"
        with contextlib.suppress(FileNotFoundError, ValueError):
            left = Path("/proc", str(int(noted.read_text())))
            deadline = time.monotonic() + PATIENCE_S
            while left.exists() and time.monotonic() < deadline:
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        # All of it at once: nothing of a machine that is thrown away needs to end in good order.
        self.machine.__exit__()
        if self._daemon is not None:
            self._daemon.wait()

    # ---- where it is

    @property
    def folder(self) -> Path:
        return self.machine.folder

    @property
    def socket(self) -> Path:
        """Return a Unix socket that we can reach, also of a machine that is apart."""
        return self.folder / "docker.sock"

    @property
    def reached(self) -> Reached:
        told = {"cgroup": self.machine.cgroup, "folder": str(self.machine.inside)}
        if self.machine.shares is not None:
            told["shares"] = str(self.machine.shares)
        match self._tcp:
            case "mtls":
                host, certs = f"tcp://{self.machine.address}:{TLS_PORT}", str(self.folder / "certs")
            case "plain":
                host, certs = f"tcp://{self.machine.address}:{PLAIN_PORT}", ""
            case _:
                host, certs = f"unix://{self.socket}", ""
        return Reached(host, certs, **told)

    @property
    def host(self) -> str:
        return self.reached.host

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # ---- what it is asked, as of any engine

    def docker(self, *words: str, **options: Any) -> str:
        return self.reached.docker(*words, **options)

    def ask(self, method: str, path: str, *body: Any, **options: Any) -> Any:
        return self.reached.ask(method, path, *body, **options)
