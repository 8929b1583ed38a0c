"""The checks of `up` before it creates anything. They change nothing; each error has a hint."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    ImageNotFound,
    InvalidImage,
    InvalidRequest,
)
from sandkasten.model.addresses import is_loopback
from sandkasten_docker.daemon_container.install_plan import (
    DAEMON,
    DATA_VOLUME,
    GATEWAY,
    IMAGE_USER,
    ROOT,
    Certificates,
    FoundDockerEngine,
    User,
)
from sandkasten_docker.resource_names import LABEL

if TYPE_CHECKING:
    from sandkasten_docker.daemon_container.install_plan import InstallSpec, ModelAccess
    from sandkasten_docker.daemon_container.installation_values import InstallationRequest
    from sandkasten_docker.docker_engine.docker_host import (
        DockerFacts,
        DockerHost,
        HostedContainer,
    )

OLDEST_API: Final = (1, 40)
LABEL_USER: Final = "sandkasten.user"


async def check_docker(host: DockerHost) -> DockerFacts:
    facts = await host.facts()
    if facts.api < OLDEST_API:
        required, spoken = (".".join(map(str, version)) for version in (OLDEST_API, facts.api))
        raise BackendUnavailable(
            f"the Docker Engine at {host.address.shown} has API {spoken}, and {required} is "
            "required",
            hint="update it to Docker Engine 20.10 or newer",
        )
    return facts


def check_name(container: HostedContainer | None) -> None:
    if container is not None and container.labels.get(LABEL) != DAEMON:
        raise Conflict(
            f"a container named {container.name} (image {container.image}) exists and was not "
            "created by up",
            hint=f"rename it: docker rename {container.name} SOMETHING-ELSE",
        )


async def check_image(host: DockerHost, name: str, remedy: str) -> User:
    """Return the user that the image runs as."""
    user = await host.image_user(name)
    if user is None:
        raise ImageNotFound(
            f"the Docker Engine at {host.address.shown} has no image {name}",
            hint=remedy,
            image=name,
        )
    uid, _, gid = user.partition(":")
    if not user or uid == "root":
        return ROOT
    if not uid.isdigit() or (gid and not gid.isdigit()):
        raise InvalidImage(
            f"image {name} runs as {user[:40]!r}, and the number of that user is not known",
            hint="set the user of the image by number (USER 10001:10001)",
            image=name,
        )
    return User(int(uid), int(gid or uid))


async def check_data(host: DockerHost, user: User) -> None:
    """Refuse a volume that a daemon with another user wrote: this one could not read it."""
    labels = await host.volume(DATA_VOLUME)
    before = None if labels is None else labels.get(LABEL_USER)
    if before is not None and before != str(user):
        raise Conflict(
            f"volume {DATA_VOLUME} belongs to user {before}, and this daemon would run as {user}",
            hint="use the same mode as before, or start over: sandkasten down --volumes",
        )


async def check_port(host: DockerHost, spec: InstallSpec, own: HostedContainer | None) -> None:
    """Ask the engine, and this machine if the engine runs on it."""
    for container in await host.labelled():
        if own is not None and container["Id"] == own.id:
            continue
        for port in container.get("Ports") or ():
            if port.get("PublicPort") == spec.port and _overlap(str(port.get("IP", "")), spec.host):
                name = str((container.get("Names") or ["?"])[0]).lstrip("/")
                raise _taken(spec, f"container {name} publishes it")
    # The port of our container is free once that is replaced.
    is_own = own is not None and (spec.host, str(spec.port)) in own.published
    if host.address.kind == "unix" and not is_own:
        _try_to_bind(spec)


def _try_to_bind(spec: InstallSpec) -> None:
    family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the engine does: a connection that is still closing does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((spec.host, spec.port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise _taken(spec, "another program listens there") from exc
            # Not an address of this machine: the engine will check it.


def _overlap(address: str, other: str) -> bool:
    anywhere = ("", "0.0.0.0", "::")  # noqa: S104
    return address == other or address in anywhere or other in anywhere


def _taken(spec: InstallSpec, by: str) -> Conflict:
    return Conflict(
        f"{spec.host}:{spec.port} is taken: {by}",
        hint=f"choose another with --listen {spec.host}:{spec.port + 1}, or free it",
    )


def found_of(
    facts: DockerFacts, host: DockerHost, socket_path: str, user: User = IMAGE_USER
) -> FoundDockerEngine:
    gid = None
    if host.address.kind == "unix" and os.path.exists(socket_path):
        gid = os.stat(socket_path).st_gid
    return FoundDockerEngine(facts.remapped, gid, user)


def check_socket(host: DockerHost, path: str) -> None:
    """Check a socket of this machine; for another machine, the engine reports a missing one."""
    if host.address.kind != "unix":
        return
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            return
        why = "is not a socket"
    except OSError as exc:
        # In a container, the path may exist only on the engine's machine.
        if path != host.address.path:
            return
        why = exc.strerror or type(exc).__name__
    raise InvalidRequest(
        f"{path} is not the Docker Engine's socket: {why}",
        hint="pass its path on the Docker Engine's machine: --socket /var/run/docker.sock",
    )


def definitions(directory: str | None, default: str, *, local: bool) -> str:
    """Return the directory to mount, on the engine's machine; empty: none.

    `default` is a directory of this machine, which another machine's engine does not have.
    """
    if directory == "":
        return ""
    if directory is not None and not local:
        if not directory.startswith("/"):
            raise InvalidRequest(
                f"--{default} {directory[:80]} is relative, and the Docker Engine is on another "
                "machine",
                hint="pass the full path of the directory on that machine",
            )
        return directory
    path = os.path.abspath(directory or default)
    if os.path.isdir(path):
        return path if local else ""
    if directory is None:
        return ""
    raise InvalidRequest(
        f"--{default} {directory[:80]} is not a directory",
        hint=f"pass the directory of the {default}, or create it",
    )


def notes_of(request: InstallationRequest, models: ModelAccess | None, *, local: bool) -> list[str]:
    """Return what the daemon does not get from this machine, and what to do about it."""
    notes = [
        f"{name}/ is not mounted, because the Docker Engine is on another machine; copy it there "
        f"and pass --{name} with its full path"
        for name, directory in (("agents", request.agents), ("workflows", request.workflows))
        if directory is None and not local and os.path.isdir(name)
    ]
    if models is not None and not reachable(models.base_url):
        url = urlsplit(models.base_url)
        port = f":{url.port}" if url.port else ""
        there = url._replace(netloc=f"{GATEWAY}{port}").geturl()
        notes.append(
            f"models.base_url ({models.base_url}) is not passed: a container does not reach the "
            f"loopback address of its machine; pass --env SANDKASTEN_MODELS_BASE_URL={there} and "
            "let the models listen beyond loopback"
        )
    return notes


def reachable(base_url: str) -> bool:
    """Return whether a container can reach the address, as far as its name shows it."""
    return not is_loopback(urlsplit(base_url).hostname or "")


def read_certificates(directory: str) -> Certificates | None:
    if not directory:
        return None
    names = ("ca.pem", "cert.pem", "key.pem")
    try:
        ca, cert, key = (Path(directory, name).read_bytes() for name in names)
    except OSError as exc:
        raise InvalidRequest(
            f"the client certificate cannot be read: {exc.filename}: {exc.strerror}",
            hint="--engine-certs DIRECTORY, with ca.pem, cert.pem and key.pem",
        ) from exc
    return Certificates(ca, cert, key)
