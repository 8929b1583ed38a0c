"""A container of a Docker Engine has a network like other sandboxes, wherever the engine is."""

from __future__ import annotations

import http.server
import ipaddress
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

# Here, where no event loop waits for it.
import aiodocker  # noqa: F401
import pytest

from sandkasten import Sandbox
from sandkasten.errors import BackendUnavailable, SandboxLost
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.inspection import Inspection
from sandkasten.model.sandbox.network_policy import NetworkPolicy
from sandkasten_docker import container_network, resource_names
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_engine.docker_address import DockerAddress
from sandkasten_docker.docker_options import DockerOptions
from sandkasten_docker.runner_volume import RunnerVolume
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.linux.programs import Programs
from tests.engines import lent, stock
from tests.network.conftest import Handler, served
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.root, pytest.mark.promise("P75")]

RUNC = {"DefaultRuntime": "runc"}


@pytest.fixture
def docker_engine(monkeypatch):
    running = lent.engine("local", stock.PROGRAMS)
    monkeypatch.setenv("DOCKER_HOST", running.host)
    monkeypatch.setenv("SANDKASTEN_DEFAULT_IMAGE", stock.reference(stock.PROGRAMS))
    return running


@pytest.fixture
def far():
    return lent.engine("remote", stock.PROGRAMS)


def test_a_container_that_is_restarted_by_another_program_reaches_nothing(
    boxed, web, docker_engine, data, tmp_path
):
    """Its namespace is a new one. In the mode `bind` this time."""
    place = Path(docker_engine.shares) / tmp_path.name
    box = Sandbox(backend="docker", data_dir=str(place), network={"allow": [f"good.test:{web}"]})
    networks, the_id = place / "docker" / "networks", box.id
    try:
        fetch = f"curl -sS -m 5 http://good.test:{web}/"
        assert box.exec(fetch).output == f"hello good.test:{web}\n"
        assert [entry.name for entry in networks.iterdir()] == [box.id]
        assert id_ranges.slot_of(id_ranges.HOST_DIRECTORY, box.id) is not None
        docker_engine.docker("restart", "--time", "0", box.id)
        talk = ["exec", box.id, "curl", "-sS", "-m", "5", f"http://good.test:{web}/"]
        assert docker_engine.run_docker(*talk).returncode != 0
        at = ["exec", box.id, "curl", "-sS", "-m", "5", f"http://127.0.0.1:{web}/"]
        assert docker_engine.run_docker(*at).returncode != 0
        with pytest.raises(SandboxLost):
            box.update(network="full")
    finally:
        box.close()
    assert list(networks.iterdir()) == []
    assert id_ranges.slot_of(id_ranges.HOST_DIRECTORY, the_id) is None


def test_the_egress_process_has_the_limits_of_its_container(boxed, docker_engine, tmp_path):
    box = Sandbox(backend="docker", data_dir=str(tmp_path / "data"), network="full")
    try:
        container = docker_engine.docker("inspect", "-f", "{{.Id}} {{.State.Pid}}", box.id)
        the_id, first = str(container).split()
        (egress,) = [
            file.parent.name
            for file in Path("/proc").glob("[0-9]*/comm")
            if _text(file).startswith("sandkasten-egr") and _holds(file.parent, box.id)
        ]
        groups = _text(Path(f"/proc/{egress}/cgroup"))
        for controller in ("memory", "pids", "cpu", "freezer"):
            of_container, of_egress = (
                [line for line in text.splitlines() if line.split(":")[1] in (controller, "")]
                for text in (_text(Path(f"/proc/{first}/cgroup")), groups)
            )
            assert of_container == of_egress
        assert the_id in groups
        # Stopped together, they end together.
        box.pause()
    finally:
        box.close()
    assert not any(Path("/sys/fs/cgroup").glob(f"**/*{the_id}*"))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _holds(process: Path, name: str) -> bool:
    try:
        return any(name in os.readlink(link) for link in (process / "fd").iterdir())
    except OSError:
        return False


@pytest.fixture
def far_web(far) -> Iterator[tuple[str, int]]:
    """Return a server at our end of the link to the engine's machine."""
    own_address = str(ipaddress.ip_address(urlsplit(far.host).hostname) - 1)
    server = http.server.ThreadingHTTPServer((own_address, 0), Handler)
    server.daemon_threads = True
    with served(server) as port:
        yield own_address, port


@pytest.mark.long(reason="`make test` has it for an engine on this machine")
def test_a_remote_engine_has_a_network_by_rule(far, far_web, tmp_path, monkeypatch):
    """The egress process is in a container there. It depends on no daemon."""
    address, port = far_web
    docker_engines = {"far": {"host": far.host, "cert_path": far.certificates}}
    monkeypatch.setenv("SANDKASTEN_DOCKER_ENGINES", json.dumps(docker_engines))
    monkeypatch.setenv("SANDKASTEN_DEFAULT_IMAGE", stock.reference(stock.PROGRAMS))
    monkeypatch.setenv("SANDKASTEN_NETWORK_REACHABLE", address)
    names = ",".join(f"{name}.test={address}" for name in ("good", "evil"))
    monkeypatch.setenv("SANDKASTEN_NETWORK_HOSTS", f"{names},far.test=10.0.0.1")
    # A runner of its own, and so a volume of its own: other tests use the engine at the same time.
    shipped, own = Programs.found(None, None), tmp_path / "runner"
    own.write_bytes(shipped.runner.read_bytes() + b"ours")
    programs = Programs(own, shipped.launcher, shipped.egress)
    monkeypatch.setattr(Programs, "found", lambda *_: programs)
    place = str(tmp_path / "data")
    allow = [f"good.test:{port}", f"far.test:{port}"]
    box = Sandbox(backend="docker/far", data_dir=place, network={"allow": allow})
    the_id = box.id
    try:
        fetch = "curl -sS -m 10 http://{}/; ".format
        done = box.exec(fetch(f"good.test:{port}"))
        assert done.output == f"hello good.test:{port}\n"
        assert done.refused == ()
        done = box.exec(
            "".join(
                fetch(url)
                for url in (
                    f"evil.test:{port}", f"far.test:{port}", f"{address}:{port}",
                    f"127.0.0.1:{port}", "169.254.169.254", "172.17.0.1", "1.1.1.1",
                )
            )
        )  # fmt: skip
        assert "hello" not in done.output
        assert {refusal.host for refusal in done.refused} >= {"evil.test", "far.test"}
        # Code in the sandbox sees the process beside it, and can do nothing to it.
        (beside,) = [process for process in box.processes() if process.name == "launch"]
        assert beside.uid == 65534
        reach = f"kill -9 {beside.pid} || ls /proc/{beside.pid}/root || cat /proc/{beside.pid}/mem"
        assert box.exec(reach).exit_code == 1
        bits = box.exec(f"grep CapEff /proc/{beside.pid}/status").output.split()[1]
        assert int(bits, 16) == 0
        box.update(network={"allow": [f"evil.test:{port}"]})
        with Sandbox.attach(the_id, data_dir=place) as again:
            assert again.exec(fetch(f"evil.test:{port}")).output == f"hello evil.test:{port}\n"
            assert "hello" not in again.exec(fetch(f"good.test:{port}")).output
            assert (again.network().opened, again.network().refused > 5) == (2, True)
        # Restarted by another program, it has another namespace; the helper ended with the first.
        far.docker("restart", "--time", "0", the_id)
        tried = ("exec", the_id, "curl", "-sS", "-m", "5", f"http://evil.test:{port}/")
        assert far.run_docker(*tried).returncode != 0
    finally:
        box.close()
    assert [name for name in (*far.containers(), *far.volumes()) if the_id in name] == []
    # The programs are there again after a user pruned unused volumes.
    others = {"launch": programs.launcher, "egress": programs.egress}
    far.docker("volume", "rm", RunnerVolume(None, programs.runner, others).volume)  # type: ignore[arg-type]
    with Sandbox(backend="docker/far", data_dir=place, network={"allow": allow}) as box:
        assert box.exec(fetch(f"good.test:{port}")).output == f"hello good.test:{port}\n"


@pytest.mark.long(reason="`make test` has it for backends of this machine")
def test_a_remote_engine_names_a_program_that_cannot_be_run(far, tmp_path, monkeypatch):
    docker_engines = {"far": {"host": far.host, "cert_path": far.certificates}}
    monkeypatch.setenv("SANDKASTEN_DOCKER_ENGINES", json.dumps(docker_engines))
    monkeypatch.setenv("SANDKASTEN_DEFAULT_IMAGE", stock.reference(stock.PROGRAMS))
    shipped, own = Programs.found(None, None), tmp_path / "egress"
    own.write_bytes(b"not a program")
    programs = Programs(shipped.runner, shipped.launcher, own)
    monkeypatch.setattr(Programs, "found", lambda *_: programs)
    with pytest.raises(BackendUnavailable) as refused:
        Sandbox(backend="docker/far", data_dir=str(tmp_path / "data"), network="full")
    assert "its program ended with status 127" in refused.value.message
    others = {"launch": shipped.launcher, "egress": own}
    far.docker("volume", "rm", RunnerVolume(None, shipped.runner, others).volume)  # type: ignore[arg-type]


@pytest.mark.long(reason="`make test` has it for containers and volumes")
async def test_what_a_killed_daemon_left_is_found_and_removed(docker_engine, far, tmp_path):
    """Nothing but the record on disk and the labels in the engine tells what there is."""
    ca, cert, key = (f"{far.certificates}/{name}.pem" for name in ("ca", "cert", "key"))
    for where, options in (
        (docker_engine, DockerOptions(host=docker_engine.host, workspace="volume")),
        (far, DockerOptions(host=far.host, tls_ca=ca, tls_cert=cert, tls_key=key)),
    ):
        the_id, home = new_sandbox_id(), tmp_path / urlsplit(where.host).scheme
        image = Image(stock.reference(stock.PROGRAMS), "engine")
        backend = DockerBackend(home, options)
        network, inspection = NetworkPolicy(full=True), Inspection(all=True)
        spec = CellSpec(image=image, network=network, inspection=inspection)
        cell = await backend.create(the_id, spec)
        assert resource_names.trust_volume_name(the_id) in where.volumes()
        await cell.let_go()
        await backend.aclose()
        later = DockerBackend(home, options)
        assert await later.owned() == [the_id]
        await later.discard(the_id)
        await later.aclose()
        leftovers = [name for name in (*where.containers(), *where.volumes()) if the_id in name]
        assert (leftovers, list(home.glob("docker/*/*"))) == ([], [])
        assert id_ranges.slot_of(id_ranges.HOST_DIRECTORY, the_id) is None


def test_a_runtime_with_a_stack_of_its_own_is_refused():
    assert container_network.refusal(RUNC, volumes=True) is None
    for wrong, volumes in (({"DefaultRuntime": "runsc"}, True), (RUNC, False)):
        refused = container_network.refusal(wrong, volumes=volumes)
        assert refused is not None
        assert refused.hint


def test_an_engine_whose_processes_are_not_visible_is_not_entered(docker_engine):
    """As from a container that has the socket and nothing else."""
    path = docker_engine.host.removeprefix("unix://")
    assert container_network.can_enter(DockerAddress("unix", path, path))
    script = (
        "from sandkasten_docker.container_network import can_enter\n"
        "from sandkasten_docker.docker_engine.docker_address import DockerAddress\n"
        f"print(can_enter(DockerAddress('unix', 'x', {path!r})))\n"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def _launch(container: dict[str, object], tmp_path: Path, *before: str) -> dict[str, str]:
    """Return the launcher's error for a plan; `before` is a command in front of it."""
    plan = {
        "container": {"cgroup_tasks": [], "cgroup_v2": None, **container},
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
    assert _launch({"pid": ended.pid, "id": "0" * 64}, tmp_path)["step"] != "plan"


def test_the_network_of_the_launcher_itself_is_never_changed(tmp_path):
    """In a namespace of its own, so that a mistake does not redirect this machine's connections."""
    name = os.urandom(32).hex()
    group = _cgroup(name)
    group.mkdir()
    sleeper = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
    try:
        end = time.monotonic() + PATIENCE_S
        own_namespace = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{sleeper.pid}/ns/net") == own_namespace:
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
    roots = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
    return next(root for root in roots if (root / "cgroup.procs").exists()) / name
