"""An engine on its own machine with the daemon's image, and the command line to use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests import built_images
from tests.engines import stock
from tests.engines.engine import Engine, missing
from tests.hostwatch import loopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

KEY = "sk-test-of-containers"


@dataclass(frozen=True, slots=True)
class Spoken:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Host:
    """One engine, and the `sandkasten` command of its operator."""

    def __init__(self, docker_engine: Engine, folder: Path) -> None:
        self.docker_engine = docker_engine
        self.folder = folder
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "DOCKER_HOST": f"unix://{docker_engine.socket}",
            "DOCKER_CONFIG": str(folder / "config"),
            "SANDKASTEN_DATA_DIR": str(folder / "data"),
        }

    @property
    def listen(self) -> str:
        """Return an address of the engine's machine that we can reach."""
        return f"{self.docker_engine.machine.address}:8080"

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    def cli(self, *words: str, **env: str) -> Spoken:
        done = self.run(sys.executable, "-m", "sandkasten_server.cli", *words, env=env, check=False)
        return Spoken(done.returncode, done.stdout, done.stderr)

    def up(self, *words: str, image: str = "", **env: str) -> Spoken:
        """Run `up` with a key of the test and an existing image."""
        env = {"SANDKASTEN_API_KEY": KEY, **env}
        default = ("--env", f"SANDKASTEN_DEFAULT_IMAGE={stock.reference('debian')}")
        named = ("--image", image) if image else ()
        return self.cli("up", "--listen", self.listen, *default, *named, *words, **env)

    def mine(self) -> tuple[list[str], list[str]]:
        """Return our containers and volumes."""
        return self.docker_engine.reached.containers(), self.docker_engine.reached.volumes()

    # As tests.built_images asks for it.

    def docker(
        self, *words: str, check: bool = True, timeout_s: float = 110
    ) -> subprocess.CompletedProcess[str]:
        return self.run("docker", *words, check=check, timeout_s=timeout_s)

    @loopwatch.of_the_test
    def run(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 110,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words,
            env={**self.environment, **(env or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr[-3000:]}")
        return done


@pytest.fixture(scope="session")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    why = missing()
    if why:
        pytest.fail(f"no engine can be started here: {why}")
    with Engine(tcp="mtls", bridge=True) as docker_engine:
        host = Host(docker_engine, tmp_path_factory.mktemp("operator"))
        stock.put(docker_engine.reached, "busybox", "debian")
        yield host


@pytest.fixture
def host(docker_host: Host) -> Iterator[Host]:
    """Remove everything of ours after the test."""
    yield docker_host
    for name in docker_host.docker_engine.reached.containers():
        docker_host.docker("rm", "--force", "--volumes", name)
    for name in docker_host.docker_engine.reached.volumes():
        docker_host.docker("volume", "rm", name)


@pytest.fixture(scope="session")
def daemon_image(docker_host: Host) -> str:
    return built_images.daemon(docker_host)  # type: ignore[arg-type]
