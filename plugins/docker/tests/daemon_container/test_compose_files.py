"""The compose files and the plans of `up` describe the same daemon.

Both are parsed and compared field by field, so that a change of one is a change of the other. What
differs on purpose is a row of `DIFFERENCES`, with the reason.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandkasten_agents.agent_settings import AgentSettings
from sandkasten_agents.provider_settings import KEY_VARIABLES
from sandkasten_docker.daemon_container.install_plan import (
    FoundDockerEngine,
    InstallPlan,
    InstallSpec,
    plan_of,
)
from sandkasten_runtime.assembly.settings.resolver import Settings, load
from sandkasten_server.daemon.settings.http_settings import HttpSettings

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"
# A compose file mounts empty volumes where no directory is named.
SPEC = InstallSpec(image="sandkasten:latest", version="1.2.3", agents="/a", workflows="/w")
PLANS = {
    "socket": plan_of(replace(SPEC, workspace="volume"), FoundDockerEngine(socket_gid=990)),
    "shared-volume": plan_of(replace(SPEC, workspace="shared"), FoundDockerEngine()),
    "sidecar": plan_of(replace(SPEC, mode="sidecar"), FoundDockerEngine()),
}
GIVEN = {"SANDKASTEN_API_KEY": "sk-of-a-test", "DOCKER_GID": "990"}
DIFFERENCES: dict[tuple[str, str], tuple[object, object]] = {
    # The certificates of an engine that `up` did not build may be readable by root alone; the
    # compose file names an engine whose client certificates every user can read.
    ("sidecar", "user"): ("0:0", None),
    ("sidecar", "nocopy"): (["/var/lib/sandkasten"], []),
}


def filled(value: Any) -> Any:
    """Replace `${NAME:-default}` and `${NAME:?why}` as Compose does."""
    if isinstance(value, dict):
        return {key: filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(
        r"\$\{(\w+):([-?])([^}]*)\}",
        lambda match: GIVEN.get(match[1], match[3] if match[2] == "-" else ""),
        value,
    )


def service(file: str, name: str = "sandkasten") -> dict[str, Any]:
    tree = yaml.safe_load((DEPLOY / "compose" / f"{file}.yaml").read_text())
    return filled(tree["services"][name])


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"(SANDKASTEN_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text()))


def of_service(declared: dict[str, Any]) -> dict[str, Any]:
    mounts = [mount.split(":") for mount in declared["volumes"]]
    # Passed on if they are set, and absent otherwise.
    assert {name for name, value in declared["environment"].items() if value is None} == {
        *KEY_VARIABLES.values(),
        "SANDKASTEN_MODELS_API_KEY",
        "SANDKASTEN_MODELS_BASE_URL",
        "SANDKASTEN_MODELS_DEFAULT",
    }
    return {
        "image": declared["image"],
        "user": declared.get("user"),
        "groups": declared.get("group_add", []),
        "capabilities": (declared["cap_drop"], declared.get("cap_add", [])),
        "security": [option.removesuffix(":true") for option in declared["security_opt"]],
        "read_only": declared["read_only"],
        "tmpfs": dict(entry.split(":", 1) for entry in declared["tmpfs"]),
        "pids": declared["pids_limit"],
        "restart": declared["restart"],
        "stop": declared["stop_grace_period"],
        "ports": declared["ports"],
        "mounts": sorted((mount[1], mount[2:] == ["ro"]) for mount in mounts),
        "nocopy": [mount[1] for mount in mounts if mount[2:] == ["nocopy"]],
    }


def of_plan(plan: InstallPlan) -> dict[str, Any]:
    body = plan.daemon.body
    host = body["HostConfig"]
    (published,) = host["PortBindings"]["8080/tcp"]
    return {
        "image": body["Image"],
        "user": body.get("User"),
        "groups": host.get("GroupAdd", []),
        "capabilities": (host["CapDrop"], host.get("CapAdd", [])),
        "security": host["SecurityOpt"],
        "read_only": host["ReadonlyRootfs"],
        "tmpfs": host["Tmpfs"],
        "pids": host["PidsLimit"],
        "restart": host["RestartPolicy"]["Name"],
        "stop": f"{body['StopTimeout']}s",
        "ports": [f"{published['HostIp']}:{published['HostPort']}:8080"],
        "mounts": sorted((mount["Target"], mount["ReadOnly"]) for mount in host["Mounts"]),
        "nocopy": [mount["Target"] for mount in host["Mounts"] if "VolumeOptions" in mount],
    }


def settings_of(environ: dict[str, str], tmp_path: Path) -> Settings:
    return load({}, {"KUBERNETES_SERVICE_HOST": "in a container", **environ}, tmp_path)


@pytest.mark.parametrize("file", PLANS)
def test_a_compose_file_confines_the_daemon_as_up_does(file):
    planned, composed = of_plan(PLANS[file]), of_service(service(file))
    different = {
        (file, key): (planned[key], composed[key])
        for key in planned
        if planned[key] != composed[key]
    }
    assert different == {key: why for key, why in DIFFERENCES.items() if key[0] == file}


@pytest.mark.parametrize("file", PLANS)
def test_a_compose_file_configures_the_daemon_as_up_does(file, tmp_path):
    pairs = (pair.split("=", 1) for pair in PLANS[file].daemon.body["Env"])
    planned_environ = {name: value for name, value in pairs if name != "SANDKASTEN_API_KEY_FILE"}
    planned = settings_of({**image_environment(), **planned_environ}, tmp_path)
    variables = {name: value for name, value in service(file)["environment"].items() if value}
    composed = settings_of({**image_environment(), **variables}, tmp_path)
    # In a compose project the services have other names.
    host = planned.plugins["docker"].host.replace("sandkasten-engine", "engine")
    sidecar = file == "sidecar"
    expected = replace(
        planned.plugins["docker"], host=host, mode="sidecar" if sidecar else "docker_socket"
    )
    assert composed.plugins["docker"] == expected
    assert composed.named("backend") == planned.named("backend")
    for name in ("data_dir", "policy"):
        assert getattr(composed, name) == getattr(planned, name)
    assert composed.of(HttpSettings).listen == planned.of(HttpSettings).listen
    assert composed.of(AgentSettings) == planned.of(AgentSettings)


def test_the_sidecar_of_a_compose_file_is_the_engine_of_up():
    docker_engine = service("sidecar", "engine")
    body = PLANS["sidecar"].containers[0].body
    assert docker_engine["image"] == body["Image"]
    assert docker_engine["privileged"] is body["HostConfig"]["Privileged"] is True
    assert f"DOCKER_TLS_CERTDIR={docker_engine['environment']['DOCKER_TLS_CERTDIR']}" in body["Env"]
    assert docker_engine["restart"] == body["HostConfig"]["RestartPolicy"]["Name"]
