"""A container of a Docker Engine has a network like other sandboxes, or the request is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandkasten import Sandbox
from sandkasten.backends.docker import container_network
from sandkasten.backends.docker.engine.engine_address import EngineAddress
from sandkasten.daemon.engine_assembly import open_engine
from sandkasten.daemon.settings.resolver import load
from sandkasten.errors import SandboxLost, UnsupportedByBackend
from sandkasten.linux.confinement import id_ranges
from sandkasten.linux.programs import Programs
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.engines import lent, stock
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.root, pytest.mark.promise("P75")]

RUNC = {"DefaultRuntime": "runc"}


@pytest.fixture
def engine(monkeypatch):
    found = lent.engine("local", stock.PROGRAMS)
    monkeypatch.setenv("DOCKER_HOST", found.host)
    monkeypatch.setenv("SANDKASTEN_DEFAULT_IMAGE", stock.reference(stock.PROGRAMS))
    return found


@pytest.fixture
def far():
    return lent.engine("remote", "debian")


def test_a_container_that_is_restarted_by_another_program_reaches_nothing(
    boxed, web, engine, data, tmp_path
):
    """Its namespace is a new one. In the mode `bind` this time."""
    place = Path(engine.shares) / tmp_path.name
    box = Sandbox(backend="docker", data_dir=str(place), network={"allow": [f"good.test:{web}"]})
    networks, the_id = place / "docker" / "networks", box.id
    try:
        fetch = f"curl -sS -m 5 http://good.test:{web}/"
        assert box.exec(fetch).output == f"hello good.test:{web}\n"
        assert [one.name for one in networks.iterdir()] == [box.id]
        assert id_ranges.slot_of(id_ranges.HOST_DIRECTORY, box.id) is not None
        engine.docker("restart", "--time", "0", box.id)
        talk = ["exec", box.id, "curl", "-sS", "-m", "5", f"http://good.test:{web}/"]
        assert engine.run_docker(*talk).returncode != 0
        at = ["exec", box.id, "curl", "-sS", "-m", "5", f"http://127.0.0.1:{web}/"]
        assert engine.run_docker(*at).returncode != 0
        with pytest.raises(SandboxLost):
            box.update(network="full")
    finally:
        box.close()
    assert list(networks.iterdir()) == []
    assert id_ranges.slot_of(id_ranges.HOST_DIRECTORY, the_id) is None


async def test_a_remote_engine_refuses_a_network_by_name_and_ignores_the_default(far, tmp_path):
    told = {
        "SANDKASTEN_DOCKER_HOST": far.host,
        "SANDKASTEN_DOCKER_CERT_PATH": far.certificates,
        "SANDKASTEN_DEFAULT_IMAGE": stock.reference("debian"),
        "STATION_SANDBOX_ALLOW_NETWORK_DEFAULT": "true",
    }
    made = await open_engine(load({"data_dir": str(tmp_path / "data")}, told, tmp_path))
    try:
        with pytest.raises(UnsupportedByBackend) as refused:
            await made.create(CreateRequest(SandboxOptions(backend="docker", network="full")))
        assert far.host.removeprefix("tcp://") in refused.value.message
        assert "socket" in refused.value.hint
        box = await made.create(CreateRequest(SandboxOptions(backend="docker")))
        assert box.network == "none"
        assert any("defaults.network_mode does not apply" in one for one in box.warnings)
        await made.destroy(box.id)
    finally:
        await made.aclose()


def test_a_runtime_with_a_stack_of_its_own_is_refused(engine):
    at = EngineAddress("unix", engine.host, engine.host.removeprefix("unix://"))
    assert container_network.refusal(at, RUNC) is None
    refused = container_network.refusal(at, {"DefaultRuntime": "runsc"})
    assert refused is not None
    assert "runsc" in refused.message


def test_an_engine_whose_processes_are_not_visible_is_refused(engine):
    """As from a container that has the socket and nothing else."""
    script = (
        "from sandkasten.backends.docker.container_network import refusal\n"
        "from sandkasten.backends.docker.engine.engine_address import EngineAddress\n"
        f"at = EngineAddress('unix', 'x', {engine.host.removeprefix('unix://')!r})\n"
        f"print(refusal(at, {RUNC!r}).message)\n"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "does not see its processes" in done.stdout, done.stderr


def _launch(container: dict[str, object], tmp_path: Path, *before: str) -> dict[str, str]:
    """Return the launcher's error for a plan; `before` is a command in front of it."""
    plan = {
        "container": container,
        "network": {
            "program": "/bin/true",
            "id": 65534,
            "control_fd": 0,
            "config": str(tmp_path / "config"),
            "records": [str(tmp_path / "0"), str(tmp_path / "1")],
            "device": False,
        },
    }
    launcher = os.fspath(Programs.found(None, None).launcher)
    done = subprocess.run(
        [*before, launcher], input=json.dumps(plan), capture_output=True, text=True, check=False
    )
    error: dict[str, str] = json.loads(done.stdout)["error"]
    return error


def test_only_the_process_of_the_container_is_entered(tmp_path):
    error = _launch({"pid": os.getpid(), "id": "0" * 64}, tmp_path)
    assert (error["step"], "is not in container" in error["message"]) == ("container", True)
    for wrong in ({"pid": 1, "id": "0" * 64}, {"pid": os.getpid(), "id": "/"}):
        assert _launch(wrong, tmp_path)["step"] == "plan"
    with subprocess.Popen(["true"]) as ended:
        pass
    assert "error" in {"error": _launch({"pid": ended.pid, "id": "0" * 64}, tmp_path)}


def test_the_network_of_the_launcher_itself_is_never_changed(tmp_path):
    """In a namespace of its own, so that a mistake does not redirect this machine's connections."""
    name = os.urandom(32).hex()
    group = _cgroup(name)
    group.mkdir()
    sleeper = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
    try:
        end = time.monotonic() + PATIENCE_S
        ours = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{sleeper.pid}/ns/net") == ours:
            assert time.monotonic() < end
            time.sleep(0.01)
        (group / "cgroup.procs").write_text(str(sleeper.pid))
        beside = ["nsenter", "--target", str(sleeper.pid), "--net"]
        error = _launch({"pid": sleeper.pid, "id": name}, tmp_path, *beside)
        assert error["message"] == "it shares the network of the host"
    finally:
        sleeper.kill()
        sleeper.wait()
        group.rmdir()


def _cgroup(name: str) -> Path:
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        if (root / "cgroup.procs").exists():
            return root / name
    pytest.skip("no cgroups can be made here")
