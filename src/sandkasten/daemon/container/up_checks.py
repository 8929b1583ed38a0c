"""What `up` looks at before it makes anything; each failure comes with its remedy.

Changes nothing. What is fine is a value, what is not is one of the errors with a hint.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.backends.docker.resource_names import LABEL
from sandkasten.daemon.container.install_plan import (
    DAEMON,
    DATA_VOLUME,
    IMAGE_USER,
    ROOT,
    Certificates,
    Found,
    User,
)
from sandkasten.errors import BackendUnavailable, Conflict, InvalidImage, InvalidRequest

if TYPE_CHECKING:
    from sandkasten.backends.docker.engine.engine_host import (
        EngineFacts,
        EngineHost,
        HostedContainer,
    )
    from sandkasten.daemon.container.install_plan import Wish

OLDEST_API: Final = (1, 40)
LABEL_USER: Final = "sandkasten.user"


async def check_engine(host: EngineHost) -> EngineFacts:
    facts = await host.facts()
    if facts.api < OLDEST_API:
        asked, spoken = (".".join(map(str, one)) for one in (OLDEST_API, facts.api))
        raise BackendUnavailable(
            f"the engine at {host.address.shown} speaks API {spoken}, and {asked} is needed",
            hint="update it: Docker Engine 19.03 or newer",
        )
    return facts


def check_name(seen: HostedContainer | None) -> None:
    if seen is not None and seen.labels.get(LABEL) != DAEMON:
        raise Conflict(
            f"there is a container called {seen.name} (image {seen.image}) that is not ours",
            hint=f"rename it: docker rename {seen.name} SOMETHING-ELSE",
        )


async def check_image(host: EngineHost, name: str, remedy: str) -> User:
    """Whom it runs as."""
    user = await host.image_user(name)
    if user is None:
        raise InvalidImage(
            f"the engine at {host.address.shown} has no image {name}", hint=remedy, image=name
        )
    uid, _, gid = user.partition(":")
    if not user or uid == "root":
        return ROOT
    if not uid.isdigit() or (gid and not gid.isdigit()):
        raise InvalidImage(
            f"image {name} runs as {user[:40]!r}, and what its files are to belong to is unknown",
            hint="name its user by number (USER 10001:10001)",
            image=name,
        )
    return User(int(uid), int(gid or uid))


async def check_data(host: EngineHost, user: User) -> None:
    """A volume that another user's daemon wrote cannot be read by this one."""
    labels = await host.volume(DATA_VOLUME)
    before = None if labels is None else labels.get(LABEL_USER)
    if before is not None and before != str(user):
        raise Conflict(
            f"volume {DATA_VOLUME} belongs to user {before}, and this daemon would be {user}",
            hint="start it in the same mode as before, or begin anew: sandkasten down --volumes",
        )


async def check_port(host: EngineHost, wish: Wish, own: HostedContainer | None) -> None:
    """Asked of the engine; and of this machine, where the engine is one of it."""
    for one in await host.labelled():
        if own is not None and one["Id"] == own.id:
            continue
        for port in one.get("Ports") or ():
            if port.get("PublicPort") == wish.port and _meet(str(port.get("IP", "")), wish.host):
                name = str((one.get("Names") or ["?"])[0]).lstrip("/")
                raise _taken(wish, f"container {name} publishes it")
    # Ours is free as soon as its container is replaced.
    mine = own is not None and (wish.host, str(wish.port)) in own.published
    if host.address.kind == "unix" and not mine:
        _try(wish)


def _try(wish: Wish) -> None:
    family = socket.AF_INET6 if ":" in wish.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the engine does: a connection that is still closing is no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((wish.host, wish.port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise _taken(wish, "another program listens there") from exc
            # An address that is the engine's and not ours: the engine will say.


def _meet(one: str, other: str) -> bool:
    anywhere = ("", "0.0.0.0", "::")  # noqa: S104
    return one == other or one in anywhere or other in anywhere


def _taken(wish: Wish, by: str) -> Conflict:
    return Conflict(
        f"{wish.host}:{wish.port} is taken: {by}",
        hint=f"choose another with --listen {wish.host}:{wish.port + 1}, or free it",
    )


def found_of(
    facts: EngineFacts, host: EngineHost, socket_path: str, user: User = IMAGE_USER
) -> Found:
    gid = None
    if host.address.kind == "unix" and os.path.exists(socket_path):
        gid = os.stat(socket_path).st_gid
    return Found(facts.remapped, gid, user)


def check_socket(host: EngineHost, path: str) -> None:
    """Only on this machine can it be looked at; elsewhere the engine says when it is not there."""
    if host.address.kind != "unix":
        return
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            return
        why = "is not a socket"
    except OSError as exc:
        # A daemon in a container may well name a socket that only the engine's machine has.
        if path != host.address.path:
            return
        why = exc.strerror or type(exc).__name__
    raise InvalidRequest(
        f"{path} cannot be the engine's socket: {why}",
        hint="say where it lies on the engine's machine: --socket /var/run/docker.sock",
    )


def read_certificates(directory: str) -> Certificates | None:
    if not directory:
        return None
    names = ("ca.pem", "cert.pem", "key.pem")
    try:
        ca, cert, key = (Path(directory, one).read_bytes() for one in names)
    except OSError as exc:
        raise InvalidRequest(
            f"the client's certificate cannot be read: {exc.filename}: {exc.strerror}",
            hint="--engine-certs names a directory with ca.pem, cert.pem and key.pem",
        ) from exc
    return Certificates(ca, cert, key)
