"""The address of an engine, from the operator's settings. Pure, except for a check of the usual
sockets.

Raises InvalidConfiguration for an invalid address, or one that would be used unencrypted;
BackendUnavailable if none was given and no socket exists.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from sandkasten.errors import BackendUnavailable, InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback, without_addresses
from sandkasten.model.backends.named_backends import own_name, settings_section
from sandkasten_docker.capabilities import BACKEND, DOCKER

if TYPE_CHECKING:
    from sandkasten_docker.docker_options import DockerOptions

Kind = Literal["unix", "tcp", "ssh"]

_SOCKET = "/var/run/docker.sock"
_PLAIN_PORT, _TLS_PORT = 2375, 2376
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of files."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class DockerAddress:
    kind: Kind
    shown: str
    """For messages: never contains a password."""
    path: str = ""
    """Path of the socket: ours, or at the other end of ssh."""
    host: str = ""
    port: int = 0
    user: str = ""
    tls: Tls | None = None
    backend: str = BACKEND
    """The backend of this engine: `docker`, or `docker/west` of a named one."""

    @property
    def section(self) -> str:
        """Where its settings are, for hints."""
        return settings_section(self.backend, DOCKER)


def address_of(options: DockerOptions, backend: str = BACKEND) -> DockerAddress:
    try:
        return replace(_address(options, settings_section(backend, DOCKER)), backend=backend)
    except InvalidConfiguration as exc:
        exc.details.setdefault("setting", f"{settings_section(backend, DOCKER)}.host")
        raise


def _address(options: DockerOptions, section: str) -> DockerAddress:
    if not options.host:
        return DockerAddress("unix", path := usual_socket(), path)
    parts = urlsplit(options.host)
    match parts.scheme:
        case "unix":
            return _unix(options.host, parts.path)
        case "tcp":
            return _tcp(options, section)
        case "ssh":
            return _ssh(options.host)
    raise _wrong(options.host, "write unix:///path, tcp://host:port or ssh://user@host")


def usual_socket() -> str:
    """Return the first socket that exists. Raise BackendUnavailable if there is none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [_SOCKET, f"{runtime}/docker.sock" if runtime else ""]
    for path in filter(None, places):
        try:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                return path
        except OSError:
            continue
    raise BackendUnavailable(
        f"there is no Docker Engine here: {_SOCKET} is not there",
        hint="start dockerd, mount its socket, or name a Docker Engine with DOCKER_HOST",
    )


def _unix(text: str, path: str) -> DockerAddress:
    if not path.startswith("/"):
        raise _wrong(text, "a socket is given by its whole path: unix:///var/run/docker.sock")
    return DockerAddress("unix", path, path)


def _tcp(options: DockerOptions, section: str) -> DockerAddress:
    host, port, user, path = _parts(options.host)
    if user or path.strip("/"):
        raise _wrong(options.host, "write tcp://host:port and nothing else")
    tls = _tls(options, section)
    if tls is None and not is_loopback(host) and not _trusted(options):
        raise InvalidConfiguration(
            f"the Docker Engine at {host} would be used without TLS, which gives root to the "
            "network path",
            hint=f"give {section}.tls_ca, tls_cert and tls_key (or cert_path), or set "
            f"{section}.insecure: true in a private network",
        )
    port = port or (_TLS_PORT if tls else _PLAIN_PORT)
    return DockerAddress("tcp", f"tcp://{host}:{port}", host=host, port=port, tls=tls)


def _trusted(options: DockerOptions) -> bool:
    """Return whether plain tcp is acceptable: a sidecar shares our network namespace or a
    private network with us.
    """
    return options.insecure or options.mode == "sidecar"


def _tls(options: DockerOptions, section: str) -> Tls | None:
    paths = (options.tls_ca, options.tls_cert, options.tls_key)
    if not any(paths):
        return None
    if not all(paths):
        raise InvalidConfiguration(
            "a Docker Engine over TLS requires all three: tls_ca, tls_cert and tls_key",
            hint=f"or one directory with ca.pem, cert.pem and key.pem: {section}.cert_path",
            setting=f"{section}.tls_ca",
        )
    return Tls(*paths)


def _ssh(text: str) -> DockerAddress:
    host, port, user, path = _parts(text)
    # Both become arguments of ssh; neither may be an option.
    if host.startswith("-") or user.startswith("-"):
        raise _wrong(text, "write ssh://user@host")
    where = f"{user}@{host}" if user else host
    shown = f"ssh://{where}" + (f":{port}" if port else "")
    return DockerAddress("ssh", shown, path or _SOCKET, host, port, user)


def _parts(text: str) -> tuple[str, int, str, str]:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise _wrong(text, str(exc)) from exc
    if not host or parts.query or parts.fragment or (port is not None and port > _MAX_PORT):
        raise _wrong(text, "write tcp://host:port or ssh://user@host")
    if parts.password:
        raise InvalidConfiguration(
            "the address of a Docker Engine must not contain a password",
            hint="use keys: an ssh agent, or TLS certificates",
        )
    return host, port or 0, unquote(parts.username or ""), unquote(parts.path)


def _wrong(text: str, hint: str) -> InvalidConfiguration:
    shown = text if "@" not in text else "…@" + text.rpartition("@")[2]
    return InvalidConfiguration(
        f"{shown[:200]!r} is not a valid address of a Docker Engine", hint=hint
    )


def no_answer(address: DockerAddress, why: str, hint: str) -> BackendUnavailable:
    """Return the error of an engine that does not answer, with its name and without its address,
    which tenants need not know. The address is a note, for the log and `doctor`.
    """
    name = own_name(address.backend)
    called = "the Docker Engine" if name == BACKEND else f"the Docker Engine {name}"
    reason = without_addresses(why, [address.shown, address.path, address.host])
    error = BackendUnavailable(
        f"{called} does not answer: {reason}", hint=hint, backend=address.backend
    )
    error.add_note(f"it is at {address.shown}: {why}")
    return error
