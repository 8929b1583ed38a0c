"""Docker through its Python SDK, against a dockerd that belongs to this run alone.

The daemon has its own socket, data and state below one folder, and its own mount and network
namespaces, so that it changes nothing on the host and goes with that folder. Containers are made as
the SDK makes them by default, on docker's bridge (inside that network namespace); with
BENCH_DOCKER_NETWORK=none they get no network, which makes docker about twice as fast. Where our own
sandboxes are containers of this daemon, it is asked for none as well.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.bare import CODE

NAME = "docker"
_READY_S = 30.0
IMAGE = "bench:latest"
_NETWORK = os.environ.get("BENCH_DOCKER_NETWORK", "")

# dockerd and containerd write a key to /etc, sockets to /run and folders to /opt whatever their
# settings say; here these are layers and a tmpfs that end with the daemon.
_PRIVATE_HOST = """
set -e
for at in etc opt; do
    mkdir -p "$1/over/$at" "$1/over/$at.work"
    mount -t overlay -o "lowerdir=/$at,upperdir=$1/over/$at,workdir=$1/over/$at.work" bench "/$at"
done
mount -t tmpfs bench /run
# Forwarding is a setting of the network namespace; the daemon turns it on in its own.
ip link set lo up
shift
exec "$@"
"""


def missing() -> str:
    if os.geteuid() != 0:
        return "starting dockerd needs root"
    if not shutil.which("dockerd"):
        return "docker.io is not installed"
    try:
        importlib.import_module("docker")
    except ImportError:
        return "the docker SDK is not installed (requirements/bench.txt)"
    return ""


class Docker:
    """`with Docker(folder, rootfs) as docker:` starts the daemon and takes it down again."""

    def __init__(self, folder: Path, rootfs: Path) -> None:
        self._folder = folder
        self._rootfs = rootfs
        self._cgroup = f"sandkasten-bench-{os.getpid()}"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        self.socket = folder / "docker.sock"
        self.shared = folder / "shared"
        """What is mounted below it is seen by the daemon, as all is on a machine with systemd."""

    def __enter__(self) -> Docker:
        self.shared.mkdir(parents=True)
        for words in (("--bind", str(self.shared)), ("--make-shared",)):
            subprocess.run(["mount", *words, str(self.shared)], check=True)
        private = ["unshare", "--net", "--mount", "--propagation", "slave"]
        with (self._folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [
                    *(*private, "/bin/sh", "-c", _PRIVATE_HOST, "sh", str(self._folder)),
                    "dockerd",
                    *("--host", f"unix://{self.socket}"),
                    *("--data-root", str(self._folder / "data")),
                    *("--exec-root", str(self._folder / "exec")),
                    *("--pidfile", str(self._folder / "pid")),
                    *("--cgroup-parent", f"/{self._cgroup}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._connect()
            self._import_image()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self) -> None:
        docker = importlib.import_module("docker")
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                self._client = docker.DockerClient(base_url=f"unix://{self.socket}", timeout=60)
                self._client.ping()
            except (docker.errors.DockerException, OSError) as exc:
                assert self._daemon is not None
                if self._daemon.poll() is not None or time.monotonic() > deadline:
                    tail = (self._folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"dockerd did not start:\n{tail}") from exc
                time.sleep(0.1)
            else:
                return

    def _import_image(self) -> None:
        environment = {**os.environ, "DOCKER_HOST": f"unix://{self.socket}"}
        with subprocess.Popen(
            ["tar", "-C", str(self._rootfs), "-c", "."], stdout=subprocess.PIPE
        ) as packing:
            subprocess.run(
                ["docker", "import", "-", IMAGE],
                stdin=packing.stdout,
                env=environment,
                check=True,
                capture_output=True,
            )

    def create(self, network: str = _NETWORK) -> Any:
        return self._client.containers.run(
            IMAGE, ["/bin/sleep", "1000000"], detach=True, **self._options(network)
        )

    def start(self, command: list[str], **options: Any) -> Any:
        """A container for another purpose, without a network."""
        return self._client.containers.run(
            IMAGE, command, detach=True, network_mode="none", **options
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
            IMAGE, ["/usr/bin/python3", "-c", CODE], remove=True, **self._options()
        )
        assert output == b"42\n"

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

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            with contextlib.suppress(Exception):
                for container in self._client.containers.list(all=True):
                    container.remove(force=True)
            self._client.close()
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.send_signal(signal.SIGTERM)
            try:
                self._daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(self._daemon.pid, signal.SIGKILL)
                self._daemon.wait()
        subprocess.run(["umount", "--lazy", str(self.shared)], check=False)
        for hierarchy in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
            with contextlib.suppress(OSError):
                (hierarchy / self._cgroup).rmdir()
