"""The files of deploy/dagger: those for one machine are started, the others parsed."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests import built_images
from tests.dagger import engine_container, programs, tls_container
from tests.dagger.client import ROUTES, Ran, Session, has_a_way_out
from tests.deploy.capabilities import lacking
from tests.deploy.engine import Docker, InMemory
from tests.engines import certificates, inside
from tests.engines.engine import missing
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.promise("P113")
FOLDER = programs.REPOSITORY / "deploy" / "dagger"
CLASSES = ("none", "egress")
SERVICES = [f"dagger-{name}" for name in CLASSES]
COMPOSE = ("socket", "sidecar", "remote")
NOT_RUN = ("kubernetes.yaml", "cloud-run.yaml", "fly.toml", "ecs.json", "Dockerfile")
REMOTE_PORTS = {"none": 8765, "egress": 8766}
on_docker = [
    pytest.mark.long(reason="the engine is compiled for a quarter of an hour"),
    pytest.mark.timeout(built_images.PATIENCE_S),
]
SHELL = ("sh", "-c", "echo $((6 * 7)); exit 3")


# ---- parsed


@pytest.mark.parametrize("file", COMPOSE)
def test_the_engine_of_class_none_gets_the_settings_that_leave_it_no_route(file: str) -> None:
    services = _engines(file)
    assert list(services) == SERVICES
    for name, service in services.items():
        closed = "/etc/dagger/none.conflist" in service.get("command", [])
        assert closed == (name == "dagger-none")
        assert "./engine.json:/etc/dagger/engine.json:ro" in service["volumes"]


def _engines(file: str) -> dict[str, Any]:
    services = yaml.safe_load((FOLDER / f"{file}.yaml").read_text())["services"]
    return {name: service for name, service in services.items() if "engine:" in service["image"]}


def test_an_engine_with_a_network_listens_on_a_socket_alone() -> None:
    for file in COMPOSE:
        assert "--addr" not in _engines(file)["dagger-egress"].get("command", [])
    for words in (*_kubernetes_engines(), *_ecs_engines()):
        assert not any("--addr" in word for word in words)
    closed = tomllib.loads((FOLDER / "fly.toml").read_text())["experimental"]["cmd"]
    assert closed[-2:] == ["--oci-cni-config-path", "/etc/dagger/none.conflist"]


def _kubernetes_engines() -> list[list[str]]:
    documents = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    sets = [document for document in documents if document["kind"] == "StatefulSet"]
    pods = [workload["spec"]["template"]["spec"]["containers"] for workload in sets]
    assert [[container["name"] for container in pod] for pod in pods] == [["engine", "tls"]] * 2
    return [pod[0]["args"] for pod in pods]


def _ecs_engines() -> list[list[str]]:
    task = json.loads((FOLDER / "ecs.json").read_text())
    containers = task["containerDefinitions"]
    assert [container["name"] for container in containers if "command" not in container] == [
        f"{name}-tls" for name in SERVICES
    ]
    return [container["command"] for container in containers if "command" in container]


def test_the_manifests_have_the_settings_of_the_files() -> None:
    documents = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    data = next(document for document in documents if document["kind"] == "ConfigMap")["data"]
    assert sorted(data) == ["engine.json", "none.conflist", "tls.conf"]
    for name, text in data.items():
        own_text = (FOLDER / name).read_text()
        if name == "tls.conf":
            assert _directives(text) == _directives(own_text)
        else:
            assert json.loads(text) == json.loads(own_text)


def _directives(text: str) -> list[str]:
    """Return the lines of a configuration of nginx, without indentation and comments."""
    return [line.strip() for line in text.splitlines() if line.strip() and "#" not in line]


def test_all_files_name_the_version_that_the_tests_run() -> None:
    image = f"registry.dagger.io/engine:{programs.VERSION}"
    for file in (*(f"{name}.yaml" for name in COMPOSE), "kubernetes.yaml", "ecs.json"):
        text = (FOLDER / file).read_text()
        assert text.count("registry.dagger.io/engine:") == text.count(image) == 2
    assert tomllib.loads((FOLDER / "fly.toml").read_text())["build"]["image"] == image
    daemon = (FOLDER / "Dockerfile").read_text()
    assert f"ENGINE={image}\n" in daemon
    assert f"SANDKASTEN=sandkasten:{built_images.VERSION}\n" in daemon
    assert f"sandkasten-dagger:{built_images.VERSION}\n" in (FOLDER / "cloud-run.yaml").read_text()


@pytest.mark.parametrize("file", NOT_RUN)
def test_a_file_that_was_not_run_says_so(file: str) -> None:
    assert "not run by the tests" in (FOLDER / file).read_text().lower()


# ---- started


@pytest.fixture(scope="module")
def machine() -> Iterator[InMemory]:
    """A Docker Engine on a machine that has an address, with the image of the engine."""
    programs.require()
    if why := missing():
        pytest.fail(f"no engine can be started here: {why}")
    running = InMemory(bridge=True, tcp="plain")
    with running:
        engine_container.image(Docker(running.socket))
        yield running


@pytest.fixture
def docker(machine: InMemory) -> Docker:
    return Docker(machine.socket)


@contextmanager
def up(docker: Docker, file: str, folder: Path, **environment: str) -> Iterator[None]:
    """Start a file of deploy/dagger as an operator does."""
    over = folder / "unprivileged.yaml"
    over.write_text(json.dumps({"services": dict.fromkeys(SERVICES, _privileges())}))
    files = ("-f", str(FOLDER / f"{file}.yaml"), "-f", str(over))
    words = ("docker-compose", "--ansi", "never", "-p", f"dagger{file}", *files)
    env = {"DAGGER_ENGINE_IMAGE": engine_container.IMAGE, **environment}
    try:
        docker.run(*words, "up", "-d", env=env)
        for service in SERVICES:
            container = docker.run(*words, "ps", "-q", service, env=env).stdout.strip()
            engine_container.until_it_listens(docker, container)
        yield
    finally:
        docker.run(*words, "down", "--volumes", env=env, check=False)


def _privileges() -> dict[str, Any]:
    """Return `privileged` piece by piece where this machine lacks a part of it."""
    if not lacking():
        return {}
    return {
        "privileged": False,
        "cap_add": ["ALL"],
        "cap_drop": lacking(),
        "security_opt": ["seccomp:unconfined"],
        "device_cgroup_rules": ["a *:* rwm"],
    }


def inside_container(
    docker: Docker, image: Path, address: str, *command: str, options: tuple[str, ...]
) -> Ran:
    """Run a command by a client in a container, with the user of the daemon's image."""
    paths = {*inside.readable(), str(image)}
    mounts = [word for path in paths for word in ("--volume", f"{path}:{path}:ro")]
    client = (sys.executable, "-m", "tests.dagger.client", address, "/tmp", str(image))
    done = docker.docker(
        *("run", "--rm", "--user", "10001:10001", "--tmpfs", "/tmp:mode=1777", *mounts, *options),
        *("--workdir", str(programs.REPOSITORY), "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *(built_images.BASE, *client, *command),
    )
    return Ran(**json.loads(done.stdout))


class TestOnDocker:
    pytestmark = on_docker

    @pytest.mark.parametrize("network", CLASSES)
    def test_an_engine_in_a_container_is_reached_through_the_docker_engine(
        self, docker: Docker, busybox: Path, tmp_path: Path, network: Any
    ) -> None:
        environ = {"DOCKER_HOST": f"unix://{docker.socket}"}
        with (
            engine_container.started(docker, f"one-{network}", network) as address,
            Session(address, tmp_path, environ) as session,
        ):
            ran = session.run(busybox, SHELL)
            assert (ran.exit_code, ran.stdout) == (3, "42\n")
            assert has_a_way_out(session.run(busybox, ROUTES)) == (network == "egress")

    def test_with_the_socket_both_engines_run_commands(
        self, docker: Docker, busybox: Path, tmp_path: Path
    ) -> None:
        environ = {"DOCKER_HOST": f"unix://{docker.socket}"}
        with up(docker, "socket", tmp_path):
            for name in CLASSES:
                with Session(f"container+docker://dagger-{name}", tmp_path, environ) as session:
                    assert session.run(busybox, SHELL).stdout == "42\n"
                    assert has_a_way_out(session.run(busybox, ROUTES)) == (name == "egress")

    def test_as_sidecars_one_is_reached_by_tcp_and_the_other_by_its_socket(
        self, docker: Docker, busybox: Path, tmp_path: Path
    ) -> None:
        reached = {
            "none": ("tcp://dagger-none:8765", ("--network", "dagger")),
            "egress": (
                "unix:///run/dagger-egress/engine.sock",
                ("--network", "none", "--volume", "dagger-egress-socket:/run/dagger-egress"),
            ),
        }
        built_images.base(docker)
        with up(docker, "sidecar", tmp_path):
            for name, (address, options) in reached.items():
                ran = inside_container(docker, busybox, address, *SHELL, options=options)
                assert (ran.exit_code, ran.stdout) == (3, "42\n")
                routes = inside_container(docker, busybox, address, *ROUTES, options=options)
                assert has_a_way_out(routes) == (name == "egress")

    def test_remote_engines_are_reached_with_a_certificate_alone(
        self, machine: InMemory, docker: Docker, busybox: Path, tmp_path: Path
    ) -> None:
        host, certs = machine.machine.address, tmp_path / "certs"
        certificates.make(certs, host)
        files = "&".join(f"{name}_path={certs}/{name}.pem" for name in ("ca", "cert", "key"))
        names = {"DAGGER_CERTS": str(certs), "DAGGER_TLS_IMAGE": tls_container.image(docker)}
        with up(docker, "remote", tmp_path, **names):
            for name, port in REMOTE_PORTS.items():
                assert refuses_a_stranger(host, port, certs / "ca.pem")
                with Session(f"tls://{host}:{port}?{files}", tmp_path) as session:
                    assert session.run(busybox, SHELL).stdout == "42\n"
                    assert has_a_way_out(session.run(busybox, ROUTES)) == (name == "egress")


def refuses_a_stranger(host: str, port: int, authority: Path) -> bool:
    """Return whether a client without a certificate gets no answer."""
    context = ssl.create_default_context(cafile=str(authority))
    with socket.create_connection((host, port), PATIENCE_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as client:
                client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                return client.recv(1) == b""
        except ssl.SSLError as refused:
            return "CERTIFICATE_REQUIRED" in str(refused)
