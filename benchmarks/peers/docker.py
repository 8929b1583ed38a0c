"""Docker through its Python SDK, against a dockerd that belongs to this run alone.

The daemon has its own socket, data and state below one folder, and its own mount and network
namespaces, so that it changes nothing on the host and goes with that folder. Containers are made as
the SDK makes them by default, on docker's bridge (inside that network namespace); with
BENCH_DOCKER_NETWORK=none they get no network, which makes docker about twice as fast. Where our own
sandboxes are containers of this daemon, it is asked for none as well.
"""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

from benchmarks.peers.bare import CODE, PRINTED, PYTHON

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.engine import Engine

NAME = "docker"
IMAGE = "bench:latest"
_NETWORK = os.environ.get("BENCH_DOCKER_NETWORK", "")


def missing() -> str:
    from tests.engines import engine

    why = engine.missing()
    if why:
        return why
    try:
        importlib.import_module("docker")
    except ImportError:
        return "the docker SDK is not installed (requirements/bench.txt)"
    return ""


class Containers:
    """The verbs of a peer, on the SDK's client."""

    _client: Any = None

    def create(self, network: str = _NETWORK) -> Any:
        return self._client.containers.run(
            IMAGE, ["/bin/sleep", "1000000"], detach=True, **self._options(network)
        )

    @staticmethod
    def _options(network: str = _NETWORK) -> dict[str, Any]:
        """The limits our own sandboxes have by default; the network as the SDK has it."""
        return {
            **({"network_mode": network} if network else {}),
            "mem_limit": "512m",
            "pids_limit": 256,
            "nano_cpus": 1_000_000_000,
            "working_dir": "/workspace",
        }

    @staticmethod
    def exec_true(container: Any) -> None:
        assert container.exec_run(["/bin/true"]).exit_code == 0

    @staticmethod
    def destroy(container: Any) -> None:
        container.remove(force=True)

    def oneshot(self) -> None:
        output = self._client.containers.run(
            IMAGE, [PYTHON, "-c", CODE], remove=True, **self._options()
        )
        assert output == PRINTED

    @staticmethod
    def write(container: Any, name: str, data: bytes) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        assert container.put_archive("/workspace", packed.getvalue())

    @staticmethod
    def read(container: Any, name: str) -> bytes:
        chunks, _ = container.get_archive(f"/workspace/{name}")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            content = archive.extractfile(name)
            assert content is not None
            return content.read()


class Docker(Containers):
    """`with Docker(folder, rootfs) as docker:` starts the daemon and takes it down again."""

    def __init__(self, folder: Path, rootfs: Path) -> None:
        self.shared = folder / "shared"
        """What is mounted below it is seen by the daemon, as all is on a machine with systemd."""
        self.shared.mkdir(parents=True)
        # Here, because peers in other environments need only the name of the image.
        from tests.engines.engine import Engine

        self._engine: Engine = Engine(folder, bridge=True, shares=self.shared)
        self._rootfs = rootfs
        self._client: Any = None

    @property
    def socket(self) -> Path:
        return self._engine.socket

    @property
    def host(self) -> str:
        return self._engine.host

    def entering(self, words: list[str]) -> list[str]:
        """Return a command that runs these words where ports of containers are reached."""
        return self._engine.machine.entering(words)

    def __enter__(self) -> Docker:
        self._engine.__enter__()
        try:
            docker = importlib.import_module("docker")
            self._client = docker.DockerClient(base_url=self.host, timeout=60)
            self._import_image()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _import_image(self) -> None:
        environment = {**os.environ, **self._engine.reached.environment}
        with subprocess.Popen(
            ["tar", "-C", str(self._rootfs), "-c", "."], stdout=subprocess.PIPE
        ) as packing:
            subprocess.run(
                # As images of Python have it; llm-sandbox starts what the image names.
                ["docker", "import", "--change", f'CMD ["{PYTHON}"]', "-", IMAGE],
                stdin=packing.stdout,
                env=environment,
                check=True,
                capture_output=True,
            )

    def start(self, command: list[str], **options: Any) -> Any:
        """A container for another purpose, without a network."""
        return self._client.containers.run(
            IMAGE, command, detach=True, network_mode="none", **options
        )

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
        self._engine.__exit__()


class DockerPeer(Containers):
    """A contestant: the SDK on the engine that DOCKER_HOST names."""

    def __init__(self) -> None:
        docker = importlib.import_module("docker")
        self._client = docker.DockerClient(base_url=os.environ["DOCKER_HOST"], timeout=60)

    def close(self) -> None:
        self._client.close()


class DockerRun:
    """A contestant that has one-shots alone: the command line."""

    def oneshot(self) -> None:
        done = subprocess.run(
            ["docker", "run", "--rm", IMAGE, PYTHON, "-c", CODE], check=True, capture_output=True
        )
        assert done.stdout == PRINTED
