"""An install plan as docker commands to type. Pure; never contains a secret."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sandkasten_docker.daemon_container.install_plan import KEY_FILE, MODEL_KEY_FILE
from sandkasten_docker.resource_names import LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten_docker.daemon_container.install_plan import Body, InstallPlan, PlannedContainer

# Variables that name a file of `up`, and the ones that hold the same secret themselves.
_SECRETS = {
    f"SANDKASTEN_API_KEY_FILE={KEY_FILE}": "SANDKASTEN_API_KEY",
    f"SANDKASTEN_MODELS_API_KEY_FILE={MODEL_KEY_FILE}": "SANDKASTEN_MODELS_API_KEY",
}


def commands_of(plan: InstallPlan) -> tuple[str, ...]:
    """Return the commands. `docker run` takes the keys from the environment, `up` from files."""
    lines = [
        ["docker", "volume", "create", "--label", f"{LABEL}={volume.kind}", volume.name]
        for volume in plan.volumes
    ]
    lines += [
        ["docker", "network", "create", "--label", f"{LABEL}=network", network]
        for network in plan.networks
    ]
    lines += [["docker", "run", "--detach", *_options(container)] for container in plan.containers]
    return tuple(shlex.join(line) for line in lines)


def _options(container: PlannedContainer) -> Iterator[str]:
    body, host = container.body, container.body["HostConfig"]
    yield from ("--name", container.name)
    for label, value in body["Labels"].items():
        yield from ("--label", f"{label}={value}")
    if "Hostname" in body:
        yield from ("--hostname", body["Hostname"])
    if "User" in body:
        yield from ("--user", body["User"])
    for group in host.get("GroupAdd", ()):
        yield from ("--group-add", group)
    yield from ("--restart", host["RestartPolicy"]["Name"])
    yield from _confinement(host)
    if "StopTimeout" in body:
        yield from ("--stop-timeout", str(body["StopTimeout"]))
    if "NetworkMode" in host:
        yield from ("--network", host["NetworkMode"])
    for name in host.get("ExtraHosts", ()):
        yield from ("--add-host", name)
    for mount in host["Mounts"]:
        yield from ("--mount", _mount(mount))
    for port, places in host.get("PortBindings", {}).items():
        for binding in places:
            host = f"[{binding['HostIp']}]" if ":" in binding["HostIp"] else binding["HostIp"]
            yield from ("--publish", f"{host}:{binding['HostPort']}:{port}")
    for pair in body["Env"]:
        yield from ("--env", _SECRETS.get(pair, pair))
    yield body["Image"]


def _confinement(host: Body) -> Iterator[str]:
    if host.get("Privileged"):
        yield "--privileged"
        return
    yield "--read-only"
    for path, how in host["Tmpfs"].items():
        yield from ("--tmpfs", f"{path}:{how}")
    for capability in host["CapDrop"]:
        yield from ("--cap-drop", capability)
    for capability in host.get("CapAdd", ()):
        yield from ("--cap-add", capability)
    for option in host["SecurityOpt"]:
        yield from ("--security-opt", option)
    yield from ("--pids-limit", str(host["PidsLimit"]))
    if "UsernsMode" in host:
        yield from ("--userns", host["UsernsMode"])


def _mount(mount: Body) -> str:
    spec = f"type={mount['Type']},source={mount['Source']},target={mount['Target']}"
    if mount["ReadOnly"]:
        spec += ",readonly"
    return spec + (",volume-nocopy" if mount.get("VolumeOptions", {}).get("NoCopy") else "")
