"""The plan of `up` as a value: volumes, networks and containers on an engine. Pure.

Uses the request bodies of the Docker Engine API. Facts about the engine come in as
`FoundDockerEngine`. Raises InvalidRequest for an impossible request.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import did_you_mean
from sandkasten_docker.docker_options import SHARED_VOLUME
from sandkasten_docker.resource_names import LABEL, LABEL_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

Mode = Literal["docker_socket", "sidecar", "remote"]
Body: TypeAlias = dict[str, Any]

MODES: Final = ("docker_socket", "sidecar", "remote")
REPOSITORY: Final = "sandkasten"
DOCKER_ENGINE_IMAGE: Final = "docker:28-dind"
NAME: Final = "sandkasten"
DOCKER_ENGINE_NAME: Final = "sandkasten-engine"
NETWORK: Final = "sandkasten"
DATA_VOLUME: Final = "sandkasten-data"
DOCKER_ENGINE_VOLUME: Final = "sandkasten-engine"
CERTIFICATES_VOLUME: Final = "sandkasten-certificates"
CLIENT_VOLUME: Final = "sandkasten-client-certificate"
"""Only the client's files: the daemon never sees the key of the engine's authority."""

DATA_DIR: Final = "/var/lib/sandkasten"
SHARED_DIR: Final = "/shared-sandboxes"
SOCKET_INSIDE: Final = "/var/run/docker.sock"
DAEMON_SOCKET: Final = f"unix://{DATA_DIR}/daemon.sock"
KEY_FILE: Final = f"{DATA_DIR}/operator.key"
REMOTE_CERTIFICATES: Final = f"{DATA_DIR}/engine-certificates"
MODEL_KEY_FILE: Final = f"{DATA_DIR}/models.key"
# Where the image's own settings look for agents and workflows.
AGENTS_DIR: Final = "/agents"
WORKFLOWS_DIR: Final = "/workflows"
GATEWAY: Final = "host.docker.internal"
"""The name by which a container reaches programs of the engine's machine."""
_SIDECAR_CERTIFICATES = "/certs/client"
_PORT: Final = 8080
_ANYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

# Values of the label `resource_names.LABEL`.
DAEMON: Final = "daemon"
DOCKER_ENGINE: Final = "engine"
DATA: Final = "data"
SHARED: Final = "shared"
LABEL_MODE: Final = "sandkasten.mode"
LABEL_PLAN: Final = "sandkasten.plan"

WITHOUT_FILES: Final = ("volume", "archive")
"""Workspace modes in which the daemon does not access files of sandboxes itself."""

# The daemon creates directories for a session's user and runner (CHOWN, FOWNER), enters them and
# removes them with everything that was written (DAC_OVERRIDE).
_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
# Longer than `drain_seconds` (20), so that running requests can finish.
STOP_S: Final = 30


@dataclass(frozen=True, slots=True)
class User:
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"


ROOT: Final = User(0, 0)
IMAGE_USER: Final = User(10001, 10001)
"""The user of the image that `make image` builds."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """A client's certificate files, in PEM."""

    ca: bytes = field(repr=False)
    cert: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """The models of the daemon's agents."""

    base_url: str
    default: str = ""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class InstallSpec:
    """The options of `up`."""

    image: str
    version: str
    mode: str = "docker_socket"
    host: str = "127.0.0.1"
    port: int = 8080
    socket: str = SOCKET_INSIDE
    """Path of the engine's socket on the engine's machine."""
    workspace: str = "auto"
    docker_engine_image: str = DOCKER_ENGINE_IMAGE
    docker_host: str = ""
    """Address of the engine that a daemon in mode remote uses."""
    certificates: Certificates | None = field(default=None, repr=False)
    agents: str = ""
    workflows: str = ""
    """Directories on the engine's machine, mounted read-only."""
    models: ModelAccess | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundDockerEngine:
    """Facts about the engine and the image."""

    remapped: bool = False
    """Whether root in its containers is another user on its machine."""
    socket_gid: int | None = None
    """None if the engine is on another machine."""
    image_user: User = IMAGE_USER


@dataclass(frozen=True, slots=True)
class PlannedVolume:
    name: str
    kind: str
    keep: bool = False
    """Whether it outlives a `down` without --volumes."""


@dataclass(frozen=True, slots=True)
class PlannedContainer:
    name: str
    body: Body
    """The request body of the Docker Engine API."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Written into its volumes before it starts. Secrets are files, because the environment of a
    container is visible to every client of the engine."""


@dataclass(frozen=True, slots=True)
class InstallPlan:
    mode: Mode
    url: str
    image: str
    volumes: tuple[PlannedVolume, ...]
    networks: tuple[str, ...]
    user: User
    """The daemon's user in its container, which owns the data."""
    containers: tuple[PlannedContainer, ...]
    """In start order; the daemon is the last."""

    @property
    def daemon(self) -> PlannedContainer:
        return self.containers[-1]

    @property
    def mark(self) -> str:
        return str(self.daemon.body["Labels"][LABEL_PLAN])


def plan_of(spec: InstallSpec, docker_engine: FoundDockerEngine) -> InstallPlan:
    """Raise InvalidRequest for an unknown mode, or one without its requirements."""
    if spec.mode not in MODES:
        raise InvalidRequest(
            f"{spec.mode[:40]!r} is not a valid mode", hint=did_you_mean(spec.mode, MODES)
        )
    mode = cast("Mode", spec.mode)
    if mode == "docker_socket":
        return _socket_plan(spec, docker_engine)
    if mode == "sidecar":
        return _sidecar_plan(spec)
    return _remote_plan(spec, docker_engine)


def _socket_plan(spec: InstallSpec, docker_engine: FoundDockerEngine) -> InstallPlan:
    touches = spec.workspace not in WITHOUT_FILES
    mounts = [_volume(DATA_VOLUME, DATA_DIR)]
    volumes = [PlannedVolume(DATA_VOLUME, DATA, keep=True)]
    if touches:
        mounts.append(_volume(SHARED_VOLUME, SHARED_DIR))
        volumes.append(PlannedVolume(SHARED_VOLUME, SHARED))
    mounts.append(_bind(spec.socket, SOCKET_INSIDE))
    host: Body = {"Mounts": mounts}
    user = ROOT
    if touches:
        host["CapAdd"] = list(_CAPABILITIES)
    elif docker_engine.socket_gid is not None:
        host["GroupAdd"] = [str(docker_engine.socket_gid)]
        user = docker_engine.image_user
    if docker_engine.remapped:
        # Root of a remapped range cannot open the socket of the engine.
        host["UsernsMode"] = "host"
    env = {
        "DOCKER_HOST": f"unix://{SOCKET_INSIDE}",
        "SANDKASTEN_DOCKER_WORKSPACE_MODE": spec.workspace,
    }
    daemon = _daemon(spec, env, host, user)
    return _plan(spec, "docker_socket", user, volumes, daemon)


def _sidecar_plan(spec: InstallSpec) -> InstallPlan:
    docker_engine: Body = {
        "Image": spec.docker_engine_image,
        # The name in the certificate that the engine generates for itself.
        "Hostname": DOCKER_ENGINE_NAME,
        "Env": ["DOCKER_TLS_CERTDIR=/certs", f"DOCKER_TLS_SAN=DNS:{DOCKER_ENGINE_NAME}"],
        "Labels": _labels(DOCKER_ENGINE, spec.version),
        "HostConfig": {
            # An engine creates namespaces, mounts and cgroups, which requires privileged.
            "Privileged": True,
            "Mounts": [
                _volume(DOCKER_ENGINE_VOLUME, "/var/lib/docker"),
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
        "DOCKER_HOST": f"tcp://{DOCKER_ENGINE_NAME}:2376",
        **_tls(_SIDECAR_CERTIFICATES),
        "SANDKASTEN_DOCKER_ENGINE_MODE": "sidecar",
        "SANDKASTEN_DOCKER_WORKSPACE_MODE": spec.workspace,
    }
    volumes = [
        PlannedVolume(DATA_VOLUME, DATA, keep=True),
        # Holds its sessions and images, which take long to pull again.
        PlannedVolume(DOCKER_ENGINE_VOLUME, DOCKER_ENGINE, keep=True),
        PlannedVolume(CERTIFICATES_VOLUME, DOCKER_ENGINE),
        PlannedVolume(CLIENT_VOLUME, DOCKER_ENGINE),
    ]
    # Only root can read the key that such an engine generates for its client.
    daemon = _daemon(spec, env, host, ROOT)
    before = (PlannedContainer(DOCKER_ENGINE_NAME, docker_engine),)
    return _plan(spec, "sidecar", ROOT, volumes, daemon, before, (NETWORK,))


def _remote_plan(spec: InstallSpec, docker_engine: FoundDockerEngine) -> InstallPlan:
    scheme = spec.docker_host.partition("://")[0]
    if scheme != "tcp":
        named = spec.docker_host[:80] or "not set"
        raise InvalidRequest(
            f"mode remote requires the tcp address of a Docker Engine, and --engine is {named}",
            hint="--engine tcp://HOST:2376 --engine-certs DIRECTORY; to install on that machine "
            "itself, leave --mode out and set DOCKER_HOST (ssh:// works too)",
        )
    if spec.certificates is None:
        raise InvalidRequest(
            f"{spec.docker_host[:80]} requires a client certificate",
            hint="--engine-certs DIRECTORY, with ca.pem, cert.pem and key.pem",
        )
    env = {
        "DOCKER_HOST": spec.docker_host,
        **_tls(REMOTE_CERTIFICATES),
        "SANDKASTEN_DOCKER_ENGINE_MODE": "remote",
        "SANDKASTEN_DOCKER_WORKSPACE_MODE": spec.workspace,
    }
    files = {
        f"{REMOTE_CERTIFICATES}/ca.pem": spec.certificates.ca,
        f"{REMOTE_CERTIFICATES}/cert.pem": spec.certificates.cert,
        f"{REMOTE_CERTIFICATES}/key.pem": spec.certificates.key,
    }
    host: Body = {"Mounts": [_volume(DATA_VOLUME, DATA_DIR)]}
    volumes = [PlannedVolume(DATA_VOLUME, DATA, keep=True)]
    daemon = _daemon(spec, env, host, docker_engine.image_user, files)
    return _plan(spec, "remote", docker_engine.image_user, volumes, daemon)


def url_of(host: str, port: int | str) -> str:
    """Return the URL for clients on the same machine."""
    host = "127.0.0.1" if host in ("", *_ANYWHERE) else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _plan(
    spec: InstallSpec,
    mode: Mode,
    user: User,
    volumes: list[PlannedVolume],
    daemon: PlannedContainer,
    before: tuple[PlannedContainer, ...] = (),
    networks: tuple[str, ...] = (),
) -> InstallPlan:
    containers = (*before, daemon)
    # A second `up` compares this: an equal plan needs no new container.
    bodies = json.dumps([container.body for container in containers], sort_keys=True)
    daemon.body["Labels"] |= {
        LABEL_MODE: mode,
        LABEL_PLAN: hashlib.sha256(bodies.encode()).hexdigest()[:16],
    }
    url = url_of(spec.host, spec.port)
    return InstallPlan(mode, url, spec.image, tuple(volumes), networks, user, containers)


def _daemon(
    spec: InstallSpec,
    docker_engine: Mapping[str, str],
    host: Body,
    user: User,
    files: Mapping[str, bytes] | None = None,
) -> PlannedContainer:
    models, secrets = _models(spec)
    env = {
        "SANDKASTEN_BACKEND": "docker",
        "SANDKASTEN_DATA_DIR": DATA_DIR,
        "SANDKASTEN_LISTEN": f"0.0.0.0:{_PORT}",
        "SANDKASTEN_API_KEY_FILE": KEY_FILE,
        **docker_engine,
        **_names(spec.host),
        **models,
        **spec.env,
    }
    definitions = ((spec.agents, AGENTS_DIR), (spec.workflows, WORKFLOWS_DIR))
    host["Mounts"] += [_bind(here, there, read_only=True) for here, there in definitions if here]
    if any(f"//{GATEWAY}" in value for value in env.values()):
        host["ExtraHosts"] = [f"{GATEWAY}:host-gateway"]
    body: Body = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": _labels(DAEMON, spec.version),
        "ExposedPorts": {f"{_PORT}/tcp": {}},
        "StopSignal": "SIGTERM",
        "StopTimeout": STOP_S,
        "HostConfig": {
            "PortBindings": {
                f"{_PORT}/tcp": [{"HostIp": spec.host, "HostPort": str(spec.port)}],
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
        # Without this an empty volume takes the owner of the image's directory.
        host["Mounts"][0]["VolumeOptions"] = {"NoCopy": True}
    return PlannedContainer(NAME, body, {**(files or {}), **secrets})


def _models(spec: InstallSpec) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return variables and secret files; nothing if --env names another endpoint, because the key
    belongs to this one.
    """
    models = spec.models
    if models is None or "SANDKASTEN_MODELS_BASE_URL" in spec.env:
        return {}, {}
    env = {"SANDKASTEN_MODELS_BASE_URL": models.base_url}
    if models.default:
        env["SANDKASTEN_MODELS_DEFAULT"] = models.default
    if not models.api_key:
        return env, {}
    env["SANDKASTEN_MODELS_API_KEY_FILE"] = MODEL_KEY_FILE
    return env, {MODEL_KEY_FILE: f"{models.api_key}\n".encode()}


def _names(host: str) -> dict[str, str]:
    """Allow the published host name, which the daemon in its container does not know."""
    if host in _ANYWHERE:
        # A web page that rebinds its name still has no key, and every request needs one.
        return {"SANDKASTEN_HTTP_ALLOWED_HOSTS": "*"}
    return {} if host in _LOOPBACK else {"SANDKASTEN_HTTP_ALLOWED_HOSTS": host}


def _labels(kind: str, version: str) -> dict[str, str]:
    return {LABEL: kind, LABEL_VERSION: version}


def _volume(name: str, target: str, *, read_only: bool = False) -> Body:
    return {"Type": "volume", "Source": name, "Target": target, "ReadOnly": read_only}


def _bind(source: str, target: str, *, read_only: bool = False) -> Body:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _tls(directory: str) -> dict[str, str]:
    return {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": directory}
