"""An sshd beside an engine, with its own keys and settings, for `ssh://` addresses.

It runs on the engine's machine, so it reaches that machine's docker. A caller that starts `ssh`
finds a wrapper in `programs` that knows the keys, because ssh reads none from the environment.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.engine import Engine

PORT = 2222


class Ssh:
    """`with Ssh(engine) as ssh:`; the engine must have an address."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._folder = engine.folder / "ssh"
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """As DOCKER_HOST has it."""
        return f"ssh://root@{self._engine.machine.address}:{PORT}{self.socket}"

    @property
    def socket(self) -> Path:
        """Where the engine listens, as its own machine sees it."""
        return self._engine.machine.inside / "docker.sock"

    @property
    def key(self) -> Path:
        return self._folder / "user_key"

    @property
    def programs(self) -> Path:
        """A directory with an `ssh` that knows our key and the machine's; first in PATH."""
        return self._folder / "bin"

    def __enter__(self) -> Ssh:
        machine, inside = self._engine.machine, self._engine.machine.inside / "ssh"
        self._folder.mkdir(mode=0o700)
        for name in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)],
                check=True,
            )
        shutil.copy(self._folder / "user_key.pub", self._folder / "authorized")
        host_key = (self._folder / "host_key.pub").read_text().split()[:2]
        (self._folder / "known").write_text(f"[{machine.address}]:{PORT} {' '.join(host_key)}\n")
        (self._folder / "config").write_text(
            f"Port {PORT}\n"
            f"ListenAddress {machine.address}\n"
            f"HostKey {inside}/host_key\n"
            f"AuthorizedKeysFile {inside}/authorized\n"
            f"PidFile {inside}/pid\n"
            f"SetEnv DOCKER_HOST=unix://{self.socket}\n"
            "PermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\n"
            "StrictModes no\n"
            "UsePAM no\n"
        )
        self._write_program()
        # Where sshd locks itself up until somebody is who they say.
        machine.run("mkdir", "-p", "/run/sshd")
        self._daemon = machine.start(
            ["/usr/sbin/sshd", "-D", "-e", "-f", f"{inside}/config"], self._folder / "log"
        )
        self._wait()
        return self

    def _write_program(self) -> None:
        self.programs.mkdir()
        found = shutil.which("ssh")
        assert found is not None, "openssh-client is not installed"
        program = self.programs / "ssh"
        program.write_text(
            "#!/bin/sh\n"
            f"exec {found} -F none -i {self.key} -o IdentitiesOnly=yes -o BatchMode=yes"
            f' -o UserKnownHostsFile={self._folder}/known "$@"\n'
        )
        program.chmod(0o755)

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection((self._engine.machine.address, PORT), 1).close()
                return
            assert self._daemon is not None
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                said = (self._folder / "log").read_text(errors="replace")
                raise RuntimeError(f"sshd did not start:\n{said[-2000:]}")
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
