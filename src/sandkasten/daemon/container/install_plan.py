"""What `up` makes on an engine, as a value: volumes, networks and containers. Pure.

Knows the bodies of the engine's API, and asks nobody anything: what has to be found out first comes
in as `Found`. Refuses with InvalidRequest what cannot be.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from sandkasten.backends.docker.docker_options import SHARED_VOLUME
from sandkasten.backends.docker.resource_names import LABEL, LABEL_VERSION
from sandkasten.errors import InvalidRequest
from sandkasten.model.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

Mode = Literal["docker_socket", "sidecar", "remote"]
Body: TypeAlias = dict[str, Any]

MODES: Final = ("docker_socket", "sidecar", "remote")
REPOSITORY: Final = "sandkasten"
ENGINE_IMAGE: Final = "docker:28-dind"
NAME: Final = "sandkasten"
ENGINE_NAME: Final = "sandkasten-engine"
NETWORK: Final = "sandkasten"
DATA_VOLUME: Final = "sandkasten-data"
ENGINE_VOLUME: Final = "sandkasten-engine"
CERTIFICATES_VOLUME: Final = "sandkasten-certificates"
CLIENT_VOLUME: Final = "sandkasten-client-certificate"
"""Only what a client needs: the daemon never sees the keys of its engine's authority."""

DATA_DIR: Final = "/var/lib/sandkasten"
SHARED_DIR: Final = "/shared-sandboxes"
SOCKET_INSIDE: Final = "/var/run/docker.sock"
DAEMON_SOCKET: Final = f"unix://{DATA_DIR}/daemon.sock"
KEY_FILE: Final = f"{DATA_DIR}/operator.key"
REMOTE_CERTIFICATES: Final = f"{DATA_DIR}/engine-certificates"
_SIDECAR_CERTIFICATES = "/certs/client"
_PORT: Final = 8080
_ANYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

# The kinds of thing, values of names.LABEL.
DAEMON: Final = "daemon"
ENGINE: Final = "engine"
DATA: Final = "data"
SHARED: Final = "shared"
LABEL_MODE: Final = "sandkasten.mode"
LABEL_PLAN: Final = "sandkasten.plan"

WITHOUT_FILES: Final = ("volume", "archive")
"""Workspace modes in which no file of a sandbox is ours to touch."""

# The directories of a session are made for its user and its runner, dialled into, and removed with
# whatever they wrote: give away (CHOWN, then FOWNER), enter and remove (DAC_OVERRIDE).
_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
# `drain_seconds` is 20; what comes after it takes moments.
STOP_S: Final = 30


@dataclass(frozen=True, slots=True)
class User:
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"


ROOT: Final = User(0, 0)
IMAGE_USER: Final = User(10001, 10001)
"""Of the image that `make image` builds."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Of a client, in PEM."""

    ca: bytes = field(repr=False)
    cert: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    image: str
    version: str
    mode: str = "docker_socket"
    host: str = "127.0.0.1"
    port: int = 8080
    socket: str = SOCKET_INSIDE
    """Of the engine, on the engine's machine."""
    workspace: str = "auto"
    engine_image: str = ENGINE_IMAGE
    engine_host: str = ""
    """The engine that a daemon in mode remote uses."""
    certificates: Certificates | None = field(default=None, repr=False)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """What an engine was found to be."""

    remapped: bool = False
    """Root in its containers is not root of its machine."""
    socket_gid: int | None = None
    """Unknown where the engine is not of this machine."""
    image_user: User = IMAGE_USER


@dataclass(frozen=True, slots=True)
class Volume:
    name: str
    kind: str
    keep: bool = False
    """Whether it outlives `down` that is not told otherwise."""


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    body: Body
    """As the engine's API takes it."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Put into its volumes before it starts: secrets have no place in an environment that
    everybody who may inspect a container can read."""


@dataclass(frozen=True, slots=True)
class Plan:
    mode: Mode
    url: str
    image: str
    volumes: tuple[Volume, ...]
    networks: tuple[str, ...]
    user: User
    """Whom the daemon is inside, and to whom the data belongs."""
    containers: tuple[Container, ...]
    """In the order of their start; the daemon is the last."""

    @property
    def daemon(self) -> Container:
        return self.containers[-1]

    @property
    def mark(self) -> str:
        return str(self.daemon.body["Labels"][LABEL_PLAN])


def plan_of(wish: Wish, found: Found) -> Plan:
    """InvalidRequest for a mode that is none, or that lacks what it needs."""
    if wish.mode not in MODES:
        raise InvalidRequest(
            f"there is no mode {wish.mode[:40]!r}", hint=did_you_mean(wish.mode, MODES)
        )
    mode = cast("Mode", wish.mode)
    if mode == "docker_socket":
        return _on_the_socket(wish, found)
    if mode == "sidecar":
        return _beside_an_engine(wish)
    return _far_from_an_engine(wish, found)


def _on_the_socket(wish: Wish, found: Found) -> Plan:
    touches = wish.workspace not in WITHOUT_FILES
    mounts = [_volume(DATA_VOLUME, DATA_DIR)]
    volumes = [Volume(DATA_VOLUME, DATA, keep=True)]
    if touches:
        mounts.append(_volume(SHARED_VOLUME, SHARED_DIR))
        volumes.append(Volume(SHARED_VOLUME, SHARED))
    mounts.append(_bind(wish.socket, SOCKET_INSIDE))
    host: Body = {"Mounts": mounts}
    user = ROOT
    if touches:
        host["CapAdd"] = list(_CAPABILITIES)
    elif found.socket_gid is not None:
        host["GroupAdd"] = [str(found.socket_gid)]
        user = found.image_user
    if found.remapped:
        # Root of a shifted range may not open the socket of the engine that shifted it.
        host["UsernsMode"] = "host"
    env = {
        "DOCKER_HOST": f"unix://{SOCKET_INSIDE}",
        "SANDKASTEN_DOCKER_WORKSPACE_MODE": wish.workspace,
    }
    daemon = _daemon(wish, env, host, user)
    return _plan(wish, "docker_socket", user, volumes, daemon)


def _beside_an_engine(wish: Wish) -> Plan:
    engine: Body = {
        "Image": wish.engine_image,
        # The name that stands in the certificate it makes for itself.
        "Hostname": ENGINE_NAME,
        "Env": ["DOCKER_TLS_CERTDIR=/certs", f"DOCKER_TLS_SAN=DNS:{ENGINE_NAME}"],
        "Labels": _labels(ENGINE, wish.version),
        "HostConfig": {
            # An engine makes namespaces, mounts and groups: that is what privileged means.
            "Privileged": True,
            "Mounts": [
                _volume(ENGINE_VOLUME, "/var/lib/docker"),
                _volume(CERTIFICATES_VOLUME, "/certs"),
                _volume(CLIENT_VOLUME, _SIDECAR_CERTIFICATES),
            ],
            "NetworkMode": NETWORK,
            "RestartPolicy": {"Name": "unless-stopped"},
        },
    }
    host: Body = {
        "Mounts": [
            _volume(DATA_VOLUME, DATA_DIR),
            _volume(CLIENT_VOLUME, _SIDECAR_CERTIFICATES, read_only=True),
        ],
        "NetworkMode": NETWORK,
    }
    env = {
        "DOCKER_HOST": f"tcp://{ENGINE_NAME}:2376",
        **_tls(_SIDECAR_CERTIFICATES),
        "SANDKASTEN_DOCKER_ENGINE_MODE": "sidecar",
        "SANDKASTEN_DOCKER_WORKSPACE_MODE": wish.workspace,
    }
    volumes = [
        Volume(DATA_VOLUME, DATA, keep=True),
        # Its sessions live in it; images too, which take long to fetch again.
        Volume(ENGINE_VOLUME, ENGINE, keep=True),
        Volume(CERTIFICATES_VOLUME, ENGINE),
        Volume(CLIENT_VOLUME, ENGINE),
    ]
    # The key that such an engine makes for its client can be read by root alone.
    daemon = _daemon(wish, env, host, ROOT)
    before = (Container(ENGINE_NAME, engine),)
    return _plan(wish, "sidecar", ROOT, volumes, daemon, before, (NETWORK,))


def _far_from_an_engine(wish: Wish, found: Found) -> Plan:
    scheme = wish.engine_host.partition("://")[0]
    if scheme != "tcp":
        named = wish.engine_host[:80] or "nothing"
        raise InvalidRequest(
            f"mode remote needs the tcp address of the engine to use, and --engine says {named}",
            hint="--engine tcp://HOST:2376 --engine-certs DIRECTORY; to stand on that machine "
            "itself, leave --mode out and name it in DOCKER_HOST (ssh:// is understood)",
        )
    if wish.certificates is None:
        raise InvalidRequest(
            f"there is no client certificate for {wish.engine_host[:80]}",
            hint="name a directory with ca.pem, cert.pem and key.pem: --engine-certs DIRECTORY",
        )
    env = {
        "DOCKER_HOST": wish.engine_host,
        **_tls(REMOTE_CERTIFICATES),
        "SANDKASTEN_DOCKER_ENGINE_MODE": "remote",
        "SANDKASTEN_DOCKER_WORKSPACE_MODE": wish.workspace,
    }
    files = {
        f"{REMOTE_CERTIFICATES}/ca.pem": wish.certificates.ca,
        f"{REMOTE_CERTIFICATES}/cert.pem": wish.certificates.cert,
        f"{REMOTE_CERTIFICATES}/key.pem": wish.certificates.key,
    }
    host: Body = {"Mounts": [_volume(DATA_VOLUME, DATA_DIR)]}
    volumes = [Volume(DATA_VOLUME, DATA, keep=True)]
    daemon = _daemon(wish, env, host, found.image_user, files)
    return _plan(wish, "remote", found.image_user, volumes, daemon)


def url_of(host: str, port: int | str) -> str:
    """By which it is reached from its own machine."""
    host = "127.0.0.1" if host in ("", *_ANYWHERE) else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _plan(
    wish: Wish,
    mode: Mode,
    user: User,
    volumes: list[Volume],
    daemon: Container,
    before: tuple[Container, ...] = (),
    networks: tuple[str, ...] = (),
) -> Plan:
    containers = (*before, daemon)
    # What a second `up` compares: a daemon that stands as it was asked for needs no other.
    said = json.dumps([one.body for one in containers], sort_keys=True)
    daemon.body["Labels"] |= {
        LABEL_MODE: mode,
        LABEL_PLAN: hashlib.sha256(said.encode()).hexdigest()[:16],
    }
    url = url_of(wish.host, wish.port)
    return Plan(mode, url, wish.image, tuple(volumes), networks, user, containers)


def _daemon(
    wish: Wish,
    engine: Mapping[str, str],
    host: Body,
    user: User,
    files: Mapping[str, bytes] | None = None,
) -> Container:
    env = {
        "SANDKASTEN_BACKEND": "docker",
        "SANDKASTEN_DATA_DIR": DATA_DIR,
        "SANDKASTEN_LISTEN": f"0.0.0.0:{_PORT}",
        "SANDKASTEN_API_KEY_FILE": KEY_FILE,
        **engine,
        **_names(wish.host),
        **wish.env,
    }
    body: Body = {
        "Image": wish.image,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": _labels(DAEMON, wish.version),
        "ExposedPorts": {f"{_PORT}/tcp": {}},
        "StopSignal": "SIGTERM",
        "StopTimeout": STOP_S,
        "HostConfig": {
            "PortBindings": {
                f"{_PORT}/tcp": [{"HostIp": wish.host, "HostPort": str(wish.port)}],
            },
            "RestartPolicy": {"Name": "unless-stopped"},
            "ReadonlyRootfs": True,
            "Tmpfs": {
                "/tmp": "rw,nosuid,nodev,noexec,mode=1777,size=256m",  # noqa: S108
                "/run": "rw,nosuid,nodev,noexec,mode=755,size=16m",
            },
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 4096,
            **host,
        },
    }
    if user == ROOT:
        body["User"] = str(ROOT)
        # An empty volume takes the owner of the image's directory, unless it is told not to.
        host["Mounts"][0]["VolumeOptions"] = {"NoCopy": True}
    return Container(NAME, body, dict(files or {}))


def _names(host: str) -> dict[str, str]:
    """By which names it is reached: inside, the daemon sees an address that nobody uses."""
    if host in _ANYWHERE:
        # A page that rebinds its name still has no key, and without one nobody comes in.
        return {"SANDKASTEN_HTTP_ALLOWED_HOSTS": "*"}
    return {} if host in _LOOPBACK else {"SANDKASTEN_HTTP_ALLOWED_HOSTS": host}


def _labels(kind: str, version: str) -> dict[str, str]:
    return {LABEL: kind, LABEL_VERSION: version}


def _volume(name: str, target: str, *, read_only: bool = False) -> Body:
    return {"Type": "volume", "Source": name, "Target": target, "ReadOnly": read_only}


def _bind(source: str, target: str) -> Body:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": False}


def _tls(directory: str) -> dict[str, str]:
    return {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": directory}
