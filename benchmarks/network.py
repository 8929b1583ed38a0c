"""Connections and downloads through the network of a sandbox, in turns with other ways out.

The same client measures itself everywhere: on the host (`direct`), in a sandbox, and in network
namespaces that `pasta` and `slirp4netns` connect. The server is on this machine's loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks import rows
from sandkasten import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

CONNECT, DOWNLOAD = rows.CONNECT, rows.DOWNLOAD
CREATE = "create with a network"
CLOSED = "no network"
_NAME = "bench.test"
_CONNECTIONS = 50
_PIECE = 1 << 20
_START_S = 10.0
# Where each of them shows the loopback of the host.
_SLIRP_HOST = "10.0.2.2"
_PASTA_HOST = "198.51.100.1"
# It does not run as the host's root; addresses are given, because the host may have none to copy.
_PASTA = (
    *("unshare", "--user", "--map-root-user", "pasta", "--config-net", "--quiet", "--ipv4-only"),
    *("--address", "198.51.100.2", "--netmask", "24", "--gateway", _PASTA_HOST, "--"),
)

# Prints milliseconds: of each connection until the server's first byte, or of one download.
_CLIENT = """
import json, socket, sys, time
host, port, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
at = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
buffer, found = bytearray(1 << 20), []
for _ in range(count):
    began = time.perf_counter()
    with socket.create_connection(at) as made:
        made.sendall(size.to_bytes(8, "big"))
        left = size
        while left > 0:
            got = made.recv_into(buffer, min(left, len(buffer)))
            if not got:
                raise SystemExit("cut off")
            left -= got
        found.append((time.perf_counter() - began) * 1000)
print(json.dumps(found))
"""


def missing(peer: str) -> str | None:
    return None if shutil.which(peer) else "not installed"


def measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_server())
        data_dir = str(scratch / "network")
        box = stack.enter_context(_networked(port, data_dir))
        ways: dict[str, Callable[[int, int], list[float]]] = {
            "sandkasten": lambda size, count: _inside(box, port, size, count),
            "direct": lambda size, count: _started((), "127.0.0.1", port, size, count),
        }
        if missing("pasta") is None:
            ways["pasta"] = lambda size, count: _started(_PASTA, _PASTA_HOST, port, size, count)
        if missing("slirp4netns") is None:
            prefix = stack.enter_context(_slirp())
            ways["slirp4netns"] = lambda size, count: _started(
                prefix, _SLIRP_HOST, port, size, count
            )
        deadline = time.monotonic() + plan.section_s
        for _ in range(plan.rounds // 2):
            for name, run in ways.items():
                for took in run(1, _CONNECTIONS):
                    samples.add(CONNECT, name, took)
            for name, run in ways.items():
                (took,) = run(plan.download_bytes, 1)
                samples.add(DOWNLOAD, name, took * 1e9 / plan.download_bytes)
            if time.monotonic() > deadline:
                break
        if (memory := box.stats().usage.memory_bytes) is not None:
            samples.add(rows.NETWORKED, rows.OURS, memory / (1 << 20))
        _creates(samples, plan, port, data_dir)


def _creates(samples: Samples, plan: Plan, port: int, data_dir: str) -> None:
    for _ in range(plan.rounds):
        with samples.timed(CREATE, "sandkasten"):
            box = _make(port, data_dir)
        box.close()
        with samples.timed(CREATE, CLOSED):
            box = Sandbox(data_dir=data_dir)
        box.close()


def _make(port: int, data_dir: str) -> Sandbox:
    return Sandbox(data_dir=data_dir, network={"allow": [f"{_NAME}:{port}"]})


@contextlib.contextmanager
def _networked(port: int, data_dir: str) -> Iterator[Sandbox]:
    settings = {
        "SANDKASTEN_NETWORK_REACHABLE": "127.0.0.1/32",
        "SANDKASTEN_NETWORK_HOSTS": f"{_NAME}=127.0.0.1",
    }
    os.environ.update(settings)
    try:
        with _make(port, data_dir) as box:
            yield box
    finally:
        for name in settings:
            del os.environ[name]


def _inside(box: Sandbox, port: int, size: int, count: int) -> list[float]:
    words = ["python3", "-c", _CLIENT, _NAME, str(port), str(size), str(count)]
    done = box.exec(words, timeout_seconds=120)
    assert done.exit_code == 0, done
    values: list[float] = json.loads(done.stdout)
    return values


def _started(prefix: tuple[str, ...], host: str, port: int, size: int, count: int) -> list[float]:
    words = [*prefix, "/usr/bin/python3", "-c", _CLIENT, host, str(port), str(size), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    values: list[float] = json.loads(done.stdout)
    return values


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    """Yield the process that holds a new network namespace."""
    with subprocess.Popen(["unshare", "--net", "sleep", "3600"]) as holder:
        try:
            end = time.monotonic() + _START_S
            own_namespace = os.readlink("/proc/self/ns/net")
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own_namespace:
                assert time.monotonic() < end, "no namespace"
                time.sleep(0.01)
            yield holder.pid
        finally:
            holder.kill()


@contextlib.contextmanager
def _slirp() -> Iterator[tuple[str, ...]]:
    with _namespace() as pid:
        words = ["slirp4netns", "--configure", "--mtu=65520", str(pid), "tap0"]
        with _connecting(words, pid) as prefix:
            yield prefix


@contextlib.contextmanager
def _connecting(words: list[str], pid: int) -> Iterator[tuple[str, ...]]:
    """Run what connects a namespace; yield what starts a program in it."""
    prefix = ("nsenter", "--net", f"--target={pid}")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, **quiet) as process:  # type: ignore[call-overload]
        try:
            end = time.monotonic() + _START_S
            route = [*prefix, "ip", "route", "show", "default"]
            while not subprocess.run(route, capture_output=True, check=True).stdout:
                assert process.poll() is None, f"{words[0]} ended"
                assert time.monotonic() < end, f"{words[0]} made no route"
                time.sleep(0.05)
            yield prefix
        finally:
            process.kill()


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """Run the server in a process of its own; yield its port."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.network"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _serve() -> None:
    """Send as many bytes as each connection asks for."""
    piece = memoryview(bytes(_PIECE))
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            remaining = int.from_bytes(connection.recv(8), "big")
            with contextlib.suppress(OSError):
                while remaining > 0:
                    remaining -= connection.send(piece[: min(remaining, _PIECE)])


if __name__ == "__main__":
    _serve()
