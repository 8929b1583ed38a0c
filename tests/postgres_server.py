"""A private PostgreSQL server, run as an ordinary user and removed at the end.

It is on a Unix socket, and on one address if other machines of a test must reach it.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.hostwatch import loopwatch
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
_USER = 65534
_OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
_OPENSSL += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
_numbers = itertools.count(1)


def new_schema() -> str:
    """Return the name of a schema that no other test uses."""
    return f"test_{os.getpid()}_{next(_numbers)}"


class PostgresServer:
    """`with PostgresServer() as server:`. With `durable`, a killed server loses nothing. With
    `tls`, it also listens on `port` of the loopback, with a certificate for `localhost` that
    `authority` signed. With `address`, it also listens there, for clients of the network `clients`
    who have `password`.
    """

    def __init__(
        self, *, durable: bool = False, tls: bool = False, address: str = "", clients: str = ""
    ) -> None:
        # PostgreSQL refuses to run as root, and its user must be able to enter this directory.
        self.place = Path(tempfile.mkdtemp(prefix="skpg-", dir="/var/tmp"))
        self.password = secrets.token_hex(8)
        self._durable = durable
        self.port = free_port() if tls else None
        self.authority = self.place / "ca.pem"
        self._address = address
        self._clients = clients
        self._process: subprocess.Popen[bytes] | None = None
        environ = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        self._run_as: dict[str, Any] = {"cwd": self.place, "env": environ}
        if os.geteuid() == 0:
            os.chown(self.place, _USER, _USER)
            self._run_as |= {"user": _USER, "group": _USER, "extra_groups": []}

    @property
    def url(self) -> str:
        return f"postgresql://tester@/postgres?host={self.place}"

    @property
    def remote_url(self) -> str:
        return f"postgresql://tester:{self.password}@{self._address}/postgres?sslmode=disable"

    def __enter__(self) -> PostgresServer:
        try:
            self._make()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    @loopwatch.of_the_test
    def _make(self) -> None:
        assert PROGRAMS is not None, "postgresql is not installed"
        options = ("--no-sync", "--auth=trust", "--username=tester", "--no-instructions")
        words = [str(PROGRAMS / "initdb"), *options, "-E", "UTF8", "-D", str(self.place / "data")]
        if self._address:
            (self.place / "password").write_text(self.password)
            words += ["--pwfile", str(self.place / "password")]
        self._run(words)
        if self.port is not None:
            self._run([*_OPENSSL, "-keyout", "key.pem", "-out", str(self.authority)])
        if self._address:
            with (self.place / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {self._clients} scram-sha-256\n")

    def _run(self, words: list[str]) -> None:
        subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S, **self._run_as)

    @loopwatch.of_the_test
    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert PROGRAMS is not None
        words = [str(PROGRAMS / "postgres"), "-D", str(self.place / "data"), "-k", str(self.place)]
        words += ["-h", self._address, "-c", "shared_buffers=16MB"]
        words += ["-c", "dynamic_shared_memory_type=mmap"]
        words += [] if self._durable else ["-F"]
        if self.port is not None:
            files = [f"ssl_cert_file={self.authority}", f"ssl_key_file={self.place / 'key.pem'}"]
            for one in ("listen_addresses=127.0.0.1", f"port={self.port}", "ssl=on", *files):
                words += ["-c", one]
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, **self._run_as)
        ready = [str(PROGRAMS / "pg_isready"), "-q", "-h", str(self.place)]
        ready += [] if self.port is None else ["-p", str(self.port)]
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run(ready, check=False).returncode != 0:
            told = (self.place / "log").read_text()[-2000:]
            assert self._process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill every process of the server with SIGKILL."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for pid in [self._process.pid, *map(int, children.read_text().split())]:
            os.kill(pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        """End the server; connections are cut. Twice is fine."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE_S)
