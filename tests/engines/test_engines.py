"""The engines for tests: isolated on their machine, and removed with their run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engines import keeper, stock
from tests.engines.engine import Engine
from tests.engines.inside import Inside
from tests.engines.machine import PLACE, PREFIX, Machine, sweep
from tests.engines.ssh import Ssh
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Each engine that is started may have to wait for a processor.
pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as made:
        stock.put(made.reached, "busybox", "empty")
        yield made


@pytest.fixture(scope="module")
def remote_engine() -> Iterator[Engine]:
    with Engine(tcp="mtls", apart=True) as made:
        stock.put(made.reached, "busybox")
        yield made


def _eventually(what: str, look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while seen := look():
        assert time.monotonic() < deadline, f"{what}: {seen}"
        time.sleep(0.05)


def _of(folder: Path, cgroup: str) -> list[str]:
    """Return everything of a machine that is still visible on the host."""
    found = [f"process {pid}" for pid in keeper._marked(folder)]
    found += [str(path) for path in keeper._groups(cgroup)]
    found += [str(folder)] if folder.exists() else []
    mounts = Path("/proc/self/mountinfo").read_text()
    return found + (["a mount"] if str(folder) in mounts else [])


def _sleeping(engine: Engine, name: str) -> None:
    words = ("run", "-d", "--network", "none", "--name", name)
    engine.docker(*words, stock.reference("busybox"), "/bin/sleep", "1000")


def test_an_engine_changes_nothing_of_the_machine():
    before = _docker_files()
    with Engine() as engine:
        stock.put(engine.reached, "empty")
        words = ("run", "--rm", "--network", "none", stock.reference("empty"), "/prog", "a")
        assert engine.docker(*words)
    assert _docker_files() == before


def _docker_files() -> dict[str, int]:
    """Return when the directories of an engine of the machine itself were changed, if there are
    any.
    """
    paths = ("/etc/docker", "/run/docker", "/run/containerd", "/opt/containerd")
    return {path: Path(path).stat().st_mtime_ns for path in paths if Path(path).exists()}


def test_an_engine_shares_directories_and_sockets_with_the_host(engine, tmp_path):
    words = ["run", "--rm", "--network", "none", "-v", f"{tmp_path}:/here"]
    engine.docker(*words, stock.reference("busybox"), "/bin/sh", "-c", "echo seen >/here/file")
    assert (tmp_path / "file").read_text() == "seen\n"


def test_a_later_mount_in_a_shared_directory_is_visible_to_the_engine(tmp_path):
    with Engine(shares=tmp_path) as engine:
        stock.put(engine.reached, "busybox")
        inner = tmp_path / "inner"
        inner.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "test", str(inner)], check=True)
        try:
            (inner / "late").write_text("seen")
            words = ("run", "--rm", "--network", "none", "-v", f"{inner}:/here")
            told = engine.docker(*words, stock.reference("busybox"), "/bin/cat", "/here/late")
        finally:
            subprocess.run(["umount", str(inner)], check=True)
        assert told == "seen"
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_remote_engine_does_not_see_our_files_and_requires_a_certificate(remote_engine, tmp_path):
    mount = f"type=bind,source={tmp_path},target=/here"
    words = ("run", "--rm", "--network", "none", "--mount", mount)
    refused = remote_engine.reached.run_docker(*words, stock.reference("busybox"), "/bin/true")
    assert "bind source path does not exist" in refused.stderr
    stranger: Any = {**os.environ, "DOCKER_HOST": remote_engine.host, "DOCKER_TLS": "1"}
    done = subprocess.run(["docker", "version"], env=stranger, capture_output=True, check=False)
    assert done.returncode != 0


def test_ssh_reaches_the_host_of_its_engine(remote_engine):
    with Ssh(remote_engine) as ssh:
        path = f"{ssh.programs}{os.pathsep}{os.environ['PATH']}"
        told = subprocess.run(
            ["docker", "info", "--format", "{{.ID}}"],
            env={**os.environ, "PATH": path, "DOCKER_HOST": ssh.host},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert told.stdout.strip() == remote_engine.ask("GET", "/info")["ID"]


@pytest.mark.long(reason="`make test` runs both suites on docker/inside")
def test_a_container_with_the_socket_does_not_see_our_files(engine, tmp_path):
    stock.put(engine.reached, "debian")
    code = f"""
    import os
    from tests.engines import lent
    assert not os.path.exists({str(tmp_path)!r})
    engine = lent.engine("local")
    print(engine.ask("GET", "/containers/" + os.uname().nodename + "/json")["State"]["Status"])
    """
    done = Inside(engine.reached).python("-c", textwrap.dedent(code))
    assert done.stdout == "running\n"


@pytest.mark.long(reason="the tests of restarts on Docker do the same")
def test_containers_survive_a_crash_of_their_engine_and_a_restart_with_live_restore():
    with Engine(live_restore=True) as engine:
        stock.put(engine.reached, "busybox")
        _sleeping(engine, "kept")
        for end in (engine.kill9, engine.stop):
            end()
            with pytest.raises(OSError, match=r".*"):
                engine.ask("GET", "/_ping", raw=True)
            engine.start()
            assert engine.reached.containers(everything=False) == ["kept"]


@pytest.mark.long(reason="the tests of restarts on Docker do the same")
def test_an_engine_that_is_stopped_ends_its_containers():
    with Engine() as engine:
        stock.put(engine.reached, "busybox")
        _sleeping(engine, "ended")
        engine.restart()
        assert engine.reached.containers(everything=False) == []
        assert engine.reached.containers() == ["ended"]


_STARTS = """
import sys, time
from tests.engines import stock
from tests.engines.engine import Engine
engine = Engine().__enter__()
stock.put(engine.reached, "busybox")
words = ("run", "-d", "--network", "none", stock.reference("busybox"), "/bin/sleep", "1000")
engine.docker(*words)
print(engine.folder, engine.machine.cgroup, engine.machine._keeper.pid, flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def _starter() -> Iterator[tuple[subprocess.Popen[str], Path, str, int]]:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as starter:
        try:
            assert starter.stdout is not None
            folder, cgroup, watching = starter.stdout.readline().split()
            yield starter, Path(folder), cgroup, int(watching)
        finally:
            starter.kill()


@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
def test_an_engine_ends_with_the_process_that_started_it(number):
    with _starter() as (starter, folder, cgroup, _):
        assert _of(folder, cgroup)
        starter.send_signal(number)
        starter.wait(PATIENCE_S)
        _eventually("what a killed run left", lambda: _of(folder, cgroup))


def test_the_next_run_removes_an_engine_that_was_killed_with_its_supervisor():
    with _starter() as (starter, folder, cgroup, watching):
        os.kill(watching, signal.SIGKILL)
        starter.kill()
        starter.wait(PATIENCE_S)
        assert _of(folder, cgroup)
        assert folder in sweep()
        _eventually("what the sweep left", lambda: _of(folder, cgroup))


@pytest.mark.long(reason="`make test` uses one engine in all workers")
def test_a_sweep_keeps_engines_that_are_in_use(engine):
    assert engine.folder not in sweep()
    assert engine.ask("GET", "/_ping", raw=True) == b"OK"
    assert engine.folder.parent == PLACE
    assert engine.folder.name.startswith(PREFIX)


@pytest.mark.long(reason="the end of every run is watched")
def test_a_machine_is_removed_with_its_network_link_and_cgroup():
    with Machine(network=True) as machine:
        link = f"sk{machine.token}"
        assert Path(f"/sys/class/net/{link}").exists()
        with machine.start(["sleep", "1000"], machine.folder / "log"):
            machine.__exit__()
    assert not Path(f"/sys/class/net/{link}").exists()
    assert _of(machine.folder, machine.cgroup) == []
