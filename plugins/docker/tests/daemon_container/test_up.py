"""`sandkasten up` on an engine: its checks, its messages, and what it leaves when it fails."""

from __future__ import annotations

import json
import secrets
import shlex
import socket
import time
from pathlib import Path

import pytest

from plugins.docker.tests.daemon_container.conftest import KEY, Host
from tests import built_images
from tests.engines import stock

# The first of a checkout builds the image.
pytestmark = pytest.mark.timeout(built_images.PATIENCE_S)
BUSYBOX = stock.reference("busybox")


def failed(spoken, code: str, status: int = 125) -> dict[str, str]:
    assert spoken.status == status, spoken
    error: dict[str, str] = spoken.document
    assert error["code"] == code, error
    assert error["hint"]
    return error


@pytest.mark.promise("P60")
def test_a_missing_engine_is_reported_with_a_remedy(host):
    error = failed(
        host.up("--json", DOCKER_HOST="unix:///nonexistent/docker.sock"), "BACKEND_UNAVAILABLE"
    )
    assert "/nonexistent/docker.sock" in error["message"]
    assert host.cli("down", DOCKER_HOST="unix:///nonexistent/docker.sock").status == 125


@pytest.mark.promise("P60")
def test_a_missing_image_is_reported_with_a_remedy(host):
    error = failed(host.up("--json", image="nothing:here"), "IMAGE_NOT_FOUND")
    assert "nothing:here" in error["message"]
    assert "make image" in error["hint"]
    assert "docker pull" not in error["hint"]
    assert host.mine() == ([], [])


def test_a_directory_that_does_not_exist_is_refused_before_anything_is_created(host):
    error = failed(host.up("--json", "--agents", "nowhere", image=BUSYBOX), "INVALID_REQUEST")
    assert error["message"] == "--agents nowhere is not a directory"
    assert host.mine() == ([], [])


def test_directories_here_are_mounted_and_the_local_model_is_explained(host):
    for name in ("agents", "workflows"):
        (host.folder / name).mkdir(exist_ok=True)
    try:
        shown = host.up("--dry-run", "--json", "--workflows", "").document
    finally:
        for name in ("agents", "workflows"):
            (host.folder / name).rmdir()
    (daemon,) = shown["containers"]
    assert [mount for mount in daemon["config"]["HostConfig"]["Mounts"] if mount["ReadOnly"]] == [
        {
            "Type": "bind",
            "Source": str(host.folder / "agents"),
            "Target": "/agents",
            "ReadOnly": True,
        }
    ]


def test_an_unknown_mode_is_refused_before_the_engine_is_contacted(host):
    spoken = host.up("--mode", "docker", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert spoken.status == 125
    assert "'docker' is not a valid mode" in spoken.err
    assert "hint: " in spoken.err


@pytest.mark.promise("P60")
def test_a_foreign_container_with_our_name_is_not_touched(host):
    host.docker("create", "--name", "sandkasten", BUSYBOX, "true")
    for words in (("up", "--image", BUSYBOX), ("down",), ("up", "--status")):
        error = failed(host.cli(*words, "--json"), "CONFLICT")
        assert "was not created by up" in error["message"]
    assert host.mine() == (["sandkasten"], [])


@pytest.mark.promise("P60")
def test_a_port_used_by_a_local_program_is_reported_before_anything_is_created(host):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        spoken = host.cli("up", "--image", BUSYBOX, "--listen", f"127.0.0.1:{port}", "--json")
    error = failed(spoken, "CONFLICT")
    assert f"127.0.0.1:{port} is taken" in error["message"]
    assert "--listen" in error["hint"]
    assert host.mine() == ([], [])


@pytest.mark.promise("P60")
def test_a_port_used_by_another_container_is_reported_with_its_name(host):
    published = ("--publish", f"{host.listen}:80")
    host.docker("run", "--detach", "--name", "other", *published, BUSYBOX, "sleep", "1000")
    error = failed(host.up("--json", image=BUSYBOX), "CONFLICT")
    assert "container other publishes it" in error["message"]
    assert host.mine() == (["other"], [])


@pytest.mark.promise("P60")
@pytest.mark.long(reason="`make test` has a port that another container uses")
def test_a_port_that_the_engine_refuses_leaves_nothing_half_made(host):
    """A program on the engine's machine, not on this one, uses the port."""
    address, port = host.listen.split(":")
    serve = f"import socket; s = socket.create_server(({address!r}, {port})); print(1); s.accept()"
    machine = host.docker_engine.machine
    log = Path(host.folder, "listening")
    holder = machine.start(["python3", "-uc", serve], log)
    try:
        while "1" not in log.read_text():
            assert holder.poll() is None
            time.sleep(0.02)
        image = _ending(host)
        error = failed(host.up("--json", image=image), "CONFLICT")
    finally:
        holder.kill()
        holder.wait()
    assert "--listen" in error["hint"]
    assert host.docker_engine.reached.containers() == []


@pytest.mark.promise("P60")
def test_a_missing_socket_on_the_engines_host_is_reported_with_a_remedy(host):
    image = _ending(host)
    error = failed(host.up("--json", "--socket", "/nowhere.sock", image=image), "INVALID_REQUEST")
    assert "bind source path does not exist: /nowhere.sock" in error["message"]
    assert "--socket" in error["hint"]
    assert host.docker_engine.reached.containers() == []


@pytest.mark.promise("P60")
@pytest.mark.long(reason="`make test` has other failures of `up`")
def test_a_daemon_that_exits_at_once_is_reported_with_its_last_output(host):
    image = _ending(host)
    spoken = host.up(image=image)
    assert spoken.status == 125
    assert "  I cannot go on" in spoken.err
    assert "did not become ready: it exited" in spoken.err
    standing = host.cli("up", "--status", "--json")
    assert (standing.status, standing.document["state"]) == (1, "exited")
    assert host.cli("down", "--volumes", "--yes").status == 0
    assert host.mine() == ([], [])


def test_a_dry_run_needs_no_engine_and_creates_nothing(host):
    spoken = host.up("--dry-run", "--json", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert spoken.status == 0, spoken.err
    assert [container["name"] for container in spoken.document["containers"]] == ["sandkasten"]
    assert spoken.document["engine"].startswith("not reachable: ")
    there = host.up("--dry-run")
    assert json.loads(there.out)["engine"].endswith("Docker 20.10.24+dfsg1")
    assert "docker run --detach --name sandkasten " in there.err
    assert KEY not in spoken.out + there.out + there.err
    assert host.mine() == ([], [])


@pytest.mark.promise("P56")
@pytest.mark.long(reason="`make test` creates the same daemon without the detour")
def test_the_commands_of_a_dry_run_create_the_same_daemon(host, daemon_image):
    drawn = host.up("--dry-run", "--json").document
    for line in drawn["commands"]:
        host.run(*shlex.split(line), env={"SANDKASTEN_API_KEY": KEY})
    again = host.up("--json")
    assert again.status == 0, again
    wanted = {"begun": "running", "changed": False, "url": host.url, "mode": "docker_socket"}
    assert {name: again.document[name] for name in wanted} == wanted
    assert host.cli("down", "--volumes", "--yes").status == 0


@pytest.mark.promise("P58")
def test_data_is_removed_only_on_request(host):
    spoken = host.cli("down", "--volumes", "--json")
    assert "--yes" in failed(spoken, "INVALID_REQUEST", status=2)["hint"]
    both = host.cli("down", "--volumes", "--keep-sessions", "--yes", "--json")
    assert "exclude each other" in failed(both, "INVALID_REQUEST", status=2)["message"]


def _ending(host: Host) -> str:
    """Return an image whose program prints something and exits."""
    name = f"ending-{secrets.token_hex(4)}:test"
    command = 'CMD ["sh", "-c", "echo I cannot go on; exit 3"]'
    container = host.docker("create", BUSYBOX, "true").stdout.strip()
    host.docker("commit", "--change", command, container, name)
    host.docker("rm", container)
    return name


@pytest.fixture(autouse=True)
def remove_test_images(host):
    yield
    for name in host.docker_engine.reached.images():
        if name.startswith("ending-"):
            host.docker("rmi", "--force", name)
