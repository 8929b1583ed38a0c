"""The compose files, parsed as Compose parses them, and each of them started."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests import built_images, imagekit
from tests.deploy.capabilities import lacking
from tests.deploy.test_image import KEY
from tests.patience import FAR_TOO_LATE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.deploy.engine import Docker

pytestmark = [pytest.mark.timeout(built_images.PATIENCE_S), pytest.mark.promise("P60")]
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "compose"
FILES = ("socket", "shared-volume", "sidecar")
GIVEN = {"SANDKASTEN_API_KEY": KEY, "DOCKER_GID": "990"}


def compose(file: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker-compose", "-f", str(FOLDER / f"{file}.yaml"), "config"],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@cache
def shown(file: str) -> dict[str, Any]:
    done = compose(file, **GIVEN)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


@pytest.mark.parametrize("file", few(FILES))
def test_a_missing_key_is_named_before_anything_starts(file: str) -> None:
    done = compose(file, DOCKER_GID="990")
    assert done.returncode == 1
    assert "SANDKASTEN_API_KEY" in done.stderr
    assert "openssl rand -hex 32" in done.stderr


def test_a_missing_group_of_the_socket_is_named() -> None:
    done = compose("socket", SANDKASTEN_API_KEY=KEY)
    assert done.returncode == 1
    assert "stat -c %g /var/run/docker.sock" in done.stderr


@pytest.mark.parametrize("file", few(FILES))
def test_the_daemon_is_confined_and_restarts_by_itself(file: str) -> None:
    service = shown(file)["services"]["sandkasten"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert service["ports"] == ["127.0.0.1:8080:8080/tcp"]
    assert "privileged" not in service


@pytest.mark.parametrize("file", few(FILES))
def test_every_container_has_limits_of_processors_and_memory(file: str) -> None:
    for name, service in shown(file)["services"].items():
        assert 1 <= float(service["cpus"]) <= 2, name
        assert str(service["mem_limit"]) in {"1g", "4g", str(1 << 30), str(4 << 30)}, name
    given = {**GIVEN, "SANDKASTEN_MEMORY": "3g", "SANDKASTEN_CPUS": "0.5"}
    service = yaml.safe_load(compose(file, **given).stdout)["services"]["sandkasten"]
    assert str(service["mem_limit"]) in {"3g", str(3 << 30)}
    assert float(service["cpus"]) == 0.5


@pytest.mark.parametrize(
    ("file", "user", "capabilities"),
    [
        ("socket", None, []),
        ("shared-volume", "0:0", ["CHOWN", "DAC_OVERRIDE", "FOWNER"]),
        ("sidecar", None, []),
    ],
)
def test_the_daemon_is_root_only_where_it_shares_a_directory(
    file: str, user: str | None, capabilities: list[str]
) -> None:
    service = shown(file)["services"]["sandkasten"]
    assert (service.get("user"), service.get("cap_add", [])) == (user, capabilities)


def test_the_sidecar_engine_is_reached_by_the_daemon_alone() -> None:
    whole = shown("sidecar")
    engine, daemon = whole["services"]["engine"], whole["services"]["sandkasten"]
    assert "ports" not in engine
    assert list(engine["networks"]) == ["engine"]
    assert whole["networks"]["engine"]["internal"] is True
    assert [name for name, one in whole["services"].items() if "engine" in one["networks"]] == [
        "engine",
        "sandkasten",
    ]
    mounts = [str(one) for one in daemon["volumes"]]
    assert any("engine-client:/certs/client:ro" in mount for mount in mounts)
    assert not any("engine-ca" in mount or "docker.sock" in mount for mount in mounts)


@dataclass
class Project:
    """One compose file, started in an engine."""

    engine: Docker
    file: str
    over: list[Path] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.file.replace("-", "")

    def compose(self, *words: str, check: bool = True) -> str:
        files = [FOLDER / f"{self.file}.yaml", *self.over]
        named = [word for path in files for word in ("-f", str(path))]
        done = self.engine.run(
            *("docker-compose", "--ansi", "never", "-p", self.name, *named, *words),
            env={**GIVEN, **self.environment},
            check=check,
        )
        return done.stdout

    def container(self, service: str = "sandkasten") -> str:
        return self.compose("ps", "-q", service).strip()

    def python(self, code: str) -> str:
        """Run Python in a container on the daemon's network, which reaches the daemon by name."""
        networks = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}"
        on = self.engine.docker("inspect", "-f", networks, self.container()).stdout.split()
        network = next(one for one in on if not one.endswith("_engine"))
        run = ("run", "--rm", "--network", network, "--entrypoint", "python", "sandkasten:latest")
        return self.engine.docker(*run, "-c", code).stdout


@contextmanager
def up(project: Project) -> Iterator[Project]:
    try:
        project.compose("up", "-d")
        until_it_answers(project)
        yield project
    finally:
        project.compose("down", "--volumes", check=False)


def until_it_answers(project: Project) -> None:
    deadline = time.monotonic() + FAR_TOO_LATE_S
    words = ("exec", project.container(), "python", "/opt/sandkasten/bin/healthcheck.py")
    while (asked := project.engine.docker(*words, check=False)).returncode != 0:
        if time.monotonic() > deadline:
            logs = project.engine.docker("logs", project.container(), check=False)
            pytest.fail(f"{asked.stdout}{asked.stderr}\n{logs.stdout}{logs.stderr}")
        time.sleep(0.2)


@pytest.fixture
def socket_environment(engine: Docker) -> dict[str, str]:
    return {
        "DOCKER_SOCKET": str(engine.socket),
        "DOCKER_GID": str(engine.socket.stat().st_gid),
    }


# A program of somebody's: nothing but the client, which the daemon's own image has too.
USE = f"""
from sandkasten import Sandbox

with Sandbox(url="http://sandkasten:8080", api_key={KEY!r}) as box:
    box.write("a.txt", "kept")
    done = box.exec("cat a.txt; id -u")
    print(done.exit_code, done.stdout.split(), box.read("a.txt").decode())
"""
SAID = "0 ['kept1000'] kept\n"
NOTHING: dict[str, list[str]] = {"containers": [], "volumes": []}


def in_engine(engine: Docker, *prefix: str) -> dict[str, list[str]]:
    """Return the remaining containers and volumes of sandboxes."""
    run = [*prefix, "docker"]
    containers = engine.run(*run, "ps", "-aq", "--filter", "label=sandkasten=cell").stdout
    volumes = engine.run(*run, "volume", "ls", "-q", "--filter", "name=station-sandbox-").stdout
    return {"containers": containers.split(), "volumes": volumes.split()}


def test_with_the_socket_sandboxes_have_their_own_volumes_and_leave_nothing(
    engine: Docker,
    daemon_image: str,
    runtime_base: None,
    socket_environment: dict[str, str],
) -> None:
    with up(Project(engine, "socket", environment=socket_environment)) as project:
        assert project.python(USE) == SAID
        assert in_engine(engine) == NOTHING


@pytest.mark.long(reason="`make test` runs both suites on docker/shared")
def test_with_a_shared_volume_sandboxes_work_and_leave_nothing(
    engine: Docker,
    daemon_image: str,
    runtime_base: None,
    socket_environment: dict[str, str],
) -> None:
    with up(Project(engine, "shared-volume", environment=socket_environment)) as project:
        assert project.python(USE) == SAID
        assert in_engine(engine) == NOTHING
        left = engine.docker("exec", project.container(), "ls", "-A", "/shared-sandboxes")
        assert left.stdout == ""


@pytest.mark.long(reason="`make test` runs both suites on docker/remote")
def test_with_a_sidecar_sandboxes_run_in_its_engine_and_not_in_the_hosts(
    engine: Docker,
    daemon_image: str,
    sidecar_image: str,
    tmp_path: Path,
) -> None:
    over = [_unprivileged(tmp_path)] if lacking() else []
    sidecar = Project(engine, "sidecar", over, {"ENGINE_IMAGE": sidecar_image})
    with up(sidecar) as project:
        within = ("docker", "exec", project.container("engine"))
        # Small, since it goes through two engines; the name is the one that a request gets.
        small = imagekit.busybox_tar()
        engine.docker("cp", str(small), f"{project.container('engine')}:/tmp/small.tar")
        engine.run(*within, "docker", "import", "/tmp/small.tar", "sandbox-runtime:base")
        assert project.python(USE) == SAID
        # The volume with the runner stays, for the next; it tells where the sandbox was.
        volumes = ("volume", "ls", "-q", "--filter", "label=sandkasten=runner")
        assert engine.run(*within, "docker", *volumes).stdout.startswith("sandkasten-runner-")
        assert in_engine(engine, *within) == NOTHING
        address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        at = engine.docker("inspect", "-f", address, project.container("engine")).stdout.strip()
        with pytest.raises(AssertionError, match="timed out|unreachable|No route"):
            project.python(f"import socket; socket.create_connection(({at!r}, 2376), 3)")


def _unprivileged(folder: Path) -> Path:
    """Return `privileged` piece by piece, without what this machine lacks."""
    over = {
        "services": {
            "engine": {
                "privileged": False,
                "cap_add": ["ALL"],
                "cap_drop": lacking(),
                "security_opt": ["seccomp:unconfined"],
                "device_cgroup_rules": ["a *:* rwm"],
            }
        }
    }
    path = folder / "unprivileged.yaml"
    path.write_text(json.dumps(over))
    return path
