"""The daemon's image: its contents, and its behaviour with a socket, a key, or neither."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten import __version__
from tests import built_images
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.deploy.engine import Docker

pytestmark = pytest.mark.timeout(built_images.PATIENCE_S)
KEY = "sk-" + "0123456789abcdef" * 3
HARDENED = (
    *("--read-only", "--tmpfs", "/tmp:mode=1777,size=64m"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
)


def config_of(engine: Docker, image: str) -> dict[str, Any]:
    (found,) = json.loads(engine.docker("image", "inspect", image).stdout)
    return found["Config"]


def inside(engine: Docker, image: str, script: str) -> str:
    run = ("run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", script)
    return engine.docker(*run).stdout


@pytest.mark.promise("P60")
def test_the_image_declares_how_to_run_it(engine: Docker, daemon_image: str) -> None:
    config = config_of(engine, daemon_image)
    environment = dict(one.split("=", 1) for one in config["Env"])
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["sandkasten", "serve"]
    assert config["ExposedPorts"] == {"8080/tcp": {}}
    assert config["Volumes"] == {"/var/lib/sandkasten": {}}
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "python"]
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert {
        name: value for name, value in environment.items() if name.startswith("SANDKASTEN_")
    } == {
        "SANDKASTEN_AGENTS_DIRS": "/agents",
        "SANDKASTEN_BACKEND": "docker",
        "SANDKASTEN_DATA_DIR": "/var/lib/sandkasten",
        "SANDKASTEN_DEFAULT_IMAGE": "sandbox-runtime:base",
        "SANDKASTEN_LISTEN": "0.0.0.0:8080",
        "SANDKASTEN_WORKFLOWS_DIRS": "/workflows",
    }


def test_the_image_has_both_tags(engine: Docker, daemon_image: str) -> None:
    found = engine.docker("image", "inspect", "-f", "{{.Id}}", daemon_image, "sandkasten:latest")
    assert len(set(found.stdout.split())) == 1


@pytest.mark.promise("P60")
def test_the_image_holds_the_daemon_and_no_tools_to_build_it(
    engine: Docker, daemon_image: str
) -> None:
    script = """
        python -c 'import sandkasten; print(sandkasten.__version__)'
        python -c 'import aiodocker, cel, dotpromptz, jsonschema, jwt, mcp, uvicorn'
        for tool in pip pip3 gcc cc cargo git curl; do command -v $tool; done
        ls -d /wheels /requirements 2>/dev/null
        find /opt/sandkasten -name 'sandkasten-runner' -perm -0111 | wc -l
        find /opt/sandkasten -writable | wc -l
        true
    """
    assert inside(engine, daemon_image, script).split("\n") == [
        __version__,
        "1",
        "0",
        "",
    ]


@pytest.mark.promise("P43")
@pytest.mark.long(reason="`make test` starts a daemon that is no container without a key")
def test_without_a_key_the_image_does_not_start_and_names_the_setting(
    engine: Docker, daemon_image: str
) -> None:
    said = engine.docker("run", "--rm", "--network", "none", *HARDENED, daemon_image, check=False)
    assert said.returncode == 125
    assert said.stderr.splitlines()[-2:] == [
        "error: listening on 0.0.0.0:8080 requires a key: other machines can reach it",
        "hint: set api_key (SANDKASTEN_API_KEY), make one with sandkasten key create, or listen "
        "on 127.0.0.1",
    ]


@pytest.fixture
def served(engine: Docker, daemon_image: str) -> Iterator[str]:
    """A daemon that runs as in deploy/compose/socket.yaml, with frequent health checks."""
    group = str(engine.socket.stat().st_gid)
    started = engine.docker(
        *("run", "--detach", "--group-add", group, *HARDENED),
        *("--volume", f"{engine.socket}:/var/run/docker.sock"),
        *("--env", f"SANDKASTEN_API_KEY={KEY}"),
        *("--health-interval", "1s", "--health-timeout", f"{PATIENCE_S:g}s"),
        daemon_image,
    )
    name = started.stdout.strip()
    yield name
    engine.docker("rm", "-fv", name)


def state_of(engine: Docker, name: str) -> dict[str, Any]:
    (found,) = json.loads(engine.docker("inspect", name).stdout)
    return found["State"]


def until_healthy(engine: Docker, name: str) -> None:
    deadline = time.monotonic() + FAR_TOO_LATE_S
    while (state := state_of(engine, name))["Health"]["Status"] != "healthy":
        if time.monotonic() > deadline or not state["Running"]:
            logs = engine.docker("logs", name, check=False)
            pytest.fail(f"{state}\n{logs.stdout}{logs.stderr}")
        time.sleep(0.2)


@pytest.mark.promise("P60")
def test_with_the_socket_the_image_is_healthy_as_an_ordinary_user_on_a_read_only_root(
    engine: Docker, served: str
) -> None:
    until_healthy(engine, served)
    script = """
        grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs)' /proc/1/status
        touch /opt/x 2>/dev/null || echo read-only
        stat -c %a /var/lib/sandkasten /var/lib/sandkasten/daemon.sock
    """
    assert engine.docker("exec", served, "sh", "-c", script).stdout.split("\n") == [
        "Uid:\t10001\t10001\t10001\t10001",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "read-only",
        "700",
        "600",
        "",
    ]


@pytest.mark.long(reason="`make test` waits for the image to be healthy")
def test_a_daemon_that_no_longer_answers_is_unhealthy(engine: Docker, served: str) -> None:
    until_healthy(engine, served)
    words = (
        "env",
        "SANDKASTEN_SOCKET=/nonexistent",
        "python",
        "/opt/sandkasten/bin/healthcheck.py",
    )
    asked = engine.docker("exec", served, *words, check=False)
    assert asked.returncode == 1
    assert asked.stdout == "/nonexistent: [Errno 2] No such file or directory\n"


@pytest.mark.promise("P60")
@pytest.mark.long(reason="`make test` stops one that `up` started")
def test_the_container_stops_cleanly(engine: Docker, served: str) -> None:
    until_healthy(engine, served)
    engine.docker("stop", "--time", "40", served)
    assert state_of(engine, served)["ExitCode"] == 0
