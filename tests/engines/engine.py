"""A dockerd of this run alone, on a machine of its own (see `machine`).

`with Engine() as engine:` starts it. It is asked through its CLI (`engine.docker`) or its HTTP API
(`engine.ask`); neither knows anything of our code. It can be stopped, killed and started again
while its containers' machine stays. Needs root, docker.io, and openssl for TLS.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.engines import certificates
from tests.engines.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.engines.certificates import Certificates

_READY_S = 60.0
_STOP_S = 30.0
TLS_PORT, PLAIN_PORT = 2376, 2375


def missing() -> str:
    """Why no engine can be started here; empty when one can."""
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
        shares: Path | None = None,
    ) -> None:
        self.machine = Machine(folder, apart=apart, network=bool(tcp), shares=shares)
        self.certificates: Certificates | None = None
        self._tcp = tcp
        self._bridge = bridge
        self._live_restore = live_restore
        self._daemon: subprocess.Popen[bytes] | None = None

    # ---- life

    def __enter__(self) -> Engine:
        self.machine.__enter__()
        try:
            if self._tcp == "mtls":
                place = self.folder / "certs"
                self.certificates = certificates.make(place, self.machine.address)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        """Answers when the engine does."""
        self._daemon = self.machine.start(self._command(), self.folder / "log")
        deadline = time.monotonic() + _READY_S
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

    def stop(self) -> None:
        """As an operator stops it: it ends its containers first, unless it lets them live."""
        self._signal(signal.SIGTERM)

    def kill9(self) -> None:
        """As a crash: its containers go on."""
        self._signal(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(number)
        try:
            self._daemon.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
            raise
        if number == signal.SIGKILL:
            # A name without a listener would look like an engine that refuses.
            self.socket.unlink(missing_ok=True)
            (self.folder / "pid").unlink(missing_ok=True)

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
        """A Unix socket that we can reach, also that of a machine apart."""
        return self.folder / "docker.sock"

    @property
    def host(self) -> str:
        """As DOCKER_HOST has it."""
        match self._tcp:
            case "mtls":
                return f"tcp://{self.machine.address}:{TLS_PORT}"
            case "plain":
                return f"tcp://{self.machine.address}:{PLAIN_PORT}"
            case _:
                return f"unix://{self.socket}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client is told with; nothing of it is the user's own."""
        told = {"DOCKER_HOST": self.host, "DOCKER_CONFIG": str(self.folder / "config")}
        if self.certificates is not None:
            told |= {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(self.certificates.folder)}
        return told

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # ---- what it is asked

    def docker(self, *words: str, stdin: Path | None = None, timeout_s: float = 120.0) -> str:
        """The CLI's answer; RuntimeError with what it said when it failed."""
        done = self.run_docker(*words, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            raise RuntimeError(f"docker {' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def run_docker(
        self, *words: str, stdin: Path | None = None, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        own = {name: value for name, value in os.environ.items() if name[:7] != "DOCKER_"}
        with (stdin or Path(os.devnull)).open("rb") as given:
            return subprocess.run(
                ["docker", *words],
                stdin=given,
                capture_output=True,
                text=True,
                errors="replace",
                env={**own, **self.environment},
                timeout=timeout_s,
                check=False,
            )

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        raw: bool = False,
        timeout_s: float = 30.0,
    ) -> Any:
        """The HTTP API's answer, as JSON; RuntimeError with what it said when it refused."""
        connection = self._connection(timeout_s)
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, body=sent, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {answer.status} {content.decode()}")
        return content if raw else json.loads(content or b"null")

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        address = self.machine.address
        if self.certificates is not None:
            trust = ssl.create_default_context(cafile=str(self.certificates.ca))
            trust.load_cert_chain(self.certificates.cert, self.certificates.key)
            return http.client.HTTPSConnection(
                address, TLS_PORT, context=trust, timeout=timeout_s
            )
        if self._tcp:
            return http.client.HTTPConnection(address, PLAIN_PORT, timeout=timeout_s)
        return _OverSocket(self.socket, timeout_s)

    def containers(self, *, everything: bool = True) -> list[str]:
        """Names."""
        found = self.ask("GET", f"/containers/json?all={int(everything)}")
        return sorted(name.lstrip("/") for one in found for name in one["Names"])

    def volumes(self) -> list[str]:
        return sorted(one["Name"] for one in self.ask("GET", "/volumes")["Volumes"] or ())

    def images(self) -> list[str]:
        found = self.ask("GET", "/images/json")
        return sorted(name for one in found for name in one["RepoTags"] or ())


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
