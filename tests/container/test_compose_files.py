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

from sandkasten.daemon.container.install_plan import (
    FoundEngine,
    InstallPlan,
    InstallSpec,
    plan_of,
)
from sandkasten.daemon.settings.provider_settings import KEY_VARIABLES
from sandkasten.daemon.settings.resolver import Settings, load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# A compose file mounts empty volumes where no directory is named.
SPEC = InstallSpec(image="sandkasten:latest", version="1.2.3", agents="/a", workflows="/w")
PLANS = {
    "socket": plan_of(replace(SPEC, workspace="volume"), FoundEngine(socket_gid=990)),
    "shared-volume": plan_of(replace(SPEC, workspace="shared"), FoundEngine()),
    "sidecar": plan_of(replace(SPEC, mode="sidecar"), FoundEngine()),
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
        lambda found: GIVEN.get(found[1], found[3] if found[2] == "-" else ""),
        value,
    )


def service(file: str, name: str = "sandkasten") -> dict[str, Any]:
    tree = yaml.safe_load((DEPLOY / "compose" / f"{file}.yaml").read_text())
    return filled(tree["services"][name])


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"(SANDKASTEN_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text()))


def of_service(one: dict[str, Any]) -> dict[str, Any]:
    mounts = [mount.split(":") for mount in one["volumes"]]
    # Passed on if they are set, and absent otherwise.
    assert {name for name, value in one["environment"].items() if value is None} == {
        *KEY_VARIABLES.values(),
        "SANDKASTEN_MODELS_API_KEY",
        "SANDKASTEN_MODELS_BASE_URL",
        "SANDKASTEN_MODELS_DEFAULT",
    }
    return {
        "image": one["image"],
        "user": one.get("user"),
        "groups": one.get("group_add", []),
        "capabilities": (one["cap_drop"], one.get("cap_add", [])),
        "security": [option.removesuffix(":true") for option in one["security_opt"]],
        "read_only": one["read_only"],
        "tmpfs": dict(entry.split(":", 1) for entry in one["tmpfs"]),
        "pids": one["pids_limit"],
        "restart": one["restart"],
        "stop": one["stop_grace_period"],
        "ports": one["ports"],
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
    given = {name: value for name, value in service(file)["environment"].items() if value}
    composed = settings_of({**image_environment(), **given}, tmp_path)
    # In a compose project the services have other names.
    host = planned.plugins["docker"].host.replace("sandkasten-engine", "engine")
    sidecar = file == "sidecar"
    expected = replace(
        planned.plugins["docker"], host=host, engine="sidecar" if sidecar else "docker_socket"
    )
    assert composed.plugins["docker"] == expected
    for name in ("backend", "data_dir", "policy"):
        assert getattr(composed, name) == getattr(planned, name)
    assert composed.http.listen == planned.http.listen
    assert composed.agents == planned.agents


def test_the_sidecar_of_a_compose_file_is_the_engine_of_up():
    engine = service("sidecar", "engine")
    body = PLANS["sidecar"].containers[0].body
    assert engine["image"] == body["Image"]
    assert engine["privileged"] is body["HostConfig"]["Privileged"] is True
    assert f"DOCKER_TLS_CERTDIR={engine['environment']['DOCKER_TLS_CERTDIR']}" in body["Env"]
    assert engine["restart"] == body["HostConfig"]["RestartPolicy"]["Name"]
