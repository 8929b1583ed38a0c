"""A running engine and how to reach it: by its CLI or its HTTP API.

Neither uses our code, so that their answers are independent of it. `told` and `of` pass an engine
to other processes as text.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.hostwatch import loopwatch
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Reached:
    host: str
    """As DOCKER_HOST has it; `unix://` and `tcp://` alone."""
    certificates: str = ""
    """A directory with ca.pem, cert.pem and key.pem, where both sides show theirs."""
    cgroup: str = ""
    """The parent of its containers' own."""
    folder: str = ""
    """What it keeps lies below this, as its own machine sees it."""
    shares: str = ""
    """Where it sees what we mount, at any time."""

    def told(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, told: str) -> Reached:
        return cls(**json.loads(told))

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for a client; nothing of it comes from the user."""
        told = {"DOCKER_HOST": self.host, "DOCKER_CONFIG": "/nonexistent"}
        if self.certificates:
            told |= {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": self.certificates}
        return told

    def docker(self, *words: str, stdin: Path | None = None, timeout_s: float = 120.0) -> str:
        """Return the CLI's output; RuntimeError with its message on failure."""
        done = self.run_docker(*words, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            raise RuntimeError(f"docker {' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    @loopwatch.of_the_test
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

    @loopwatch.of_the_test
    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        raw: bool = False,
        timeout_s: float = PATIENCE_S,
    ) -> Any:
        """Return the HTTP API's answer as JSON; RuntimeError with its message on refusal."""
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
        where = urlsplit(self.host)
        if where.scheme == "unix":
            return _OverSocket(Path(where.path), timeout_s)
        assert where.hostname is not None
        if not self.certificates:
            return http.client.HTTPConnection(where.hostname, where.port, timeout=timeout_s)
        place = Path(self.certificates)
        trust = ssl.create_default_context(cafile=place / "ca.pem")
        trust.load_cert_chain(place / "cert.pem", place / "key.pem")
        return http.client.HTTPSConnection(
            where.hostname, where.port, context=trust, timeout=timeout_s
        )

    def containers(self, *, everything: bool = True) -> list[str]:
        """Return the names of all containers."""
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
