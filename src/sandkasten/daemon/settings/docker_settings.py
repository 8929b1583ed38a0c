"""The settings `backends.docker.*`: what an operator says of an engine, checked against itself.

`DOCKER_HOST` and its kin are often meant for other programs. What contradicts itself through them
alone is no reason to stop somebody who does not use Docker: it is kept, and told when the backend
is asked for. Everything said to us raises InvalidConfiguration at once. Looks at no engine and
opens no file; how the files of a certificate are read is the backend's to say.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast
from urllib.parse import SplitResult, urlsplit

from sandkasten.backends.docker.docker_options import DockerOptions
from sandkasten.daemon.settings.setting_parsers import bad, flag, text
from sandkasten.errors import InvalidConfiguration
from sandkasten.model.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.backends.docker.docker_options import EngineMode, WorkspaceMode
    from sandkasten.daemon.settings.setting_parsers import Value

    Pull = Literal["never", "missing", "always"]

_ROOM: Final = "backends.docker."
KEYS: Final = (
    "host",
    "engine_mode",
    "workspace_mode",
    "shared_volume",
    "cert_path",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_verify",
    "insecure",
    "pull",
    "timeout_seconds",
)
_FOREIGN: Final = ("default", "env DOCKER_")
_SCHEMES: Final = ("unix", "tcp", "ssh")
_VOLUME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}\Z")
_PEM: Final = {"tls_ca": "ca.pem", "tls_cert": "cert.pem", "tls_key": "key.pem"}
# Where these are, a container runtime or a pod has put us.
_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True, slots=True)
class DockerSettings:
    options: DockerOptions = field(default_factory=DockerOptions)
    trouble: InvalidConfiguration | None = None
    """Why the options cannot be used, where only variables of other programs are at fault."""


def tls_verify(name: str, value: object) -> bool:
    """Docker takes any text in its variable for yes, and so must whoever reads it."""
    return name == "DOCKER_TLS_VERIFY" or flag(name, value)


def engine_address(name: str, value: object) -> SplitResult:
    """`unix:///path`, `tcp://host:port` or `ssh://[user@]host[:port]`; nothing else is spoken."""
    said = text(name, value)
    if not said.isprintable() or " " in said:
        raise bad(name, "an address", value)
    try:
        split = urlsplit(said)
        port = split.port
    except ValueError as exc:
        raise bad(name, "an address", value) from exc
    if split.scheme not in _SCHEMES:
        raise InvalidConfiguration(
            f"{name} has {said[:80]!r}, which is no address of an engine",
            hint="write unix:///path/to/socket, tcp://host:port or ssh://user@host",
            setting=name,
        )
    if split.query or split.fragment or split.password is not None:
        raise bad(name, "an address without a password, a query or a fragment", split.scheme)
    if split.scheme == "unix" and (split.netloc or not split.path.startswith("/")):
        raise bad(name, "unix:// with an absolute path, such as unix:///run/docker.sock", value)
    bare = split.hostname and port != 0 and split.path in ("", "/")
    if split.scheme == "tcp" and not bare:
        raise bad(name, "tcp://host:port", value)
    if split.scheme == "ssh" and not split.hostname:
        raise bad(name, "ssh://[user@]host[:port]", value)
    return split


def volume(name: str, value: object) -> str:
    said = text(name, value)
    if not _VOLUME.match(said):
        raise bad(name, "the name of a volume", value)
    return said


def in_a_container(environ: Mapping[str, str]) -> bool:
    """Whether this process looks like one of a container: only such a one has a sidecar."""
    return "KUBERNETES_SERVICE_HOST" in environ or any(map(os.path.exists, _CONTAINER_MARKS))


def docker_settings(
    said: Mapping[str, tuple[Value, str]], environ: Mapping[str, str], *, default: bool
) -> DockerSettings:
    """`said`: each value with its origin. `default`: whether docker is the default backend."""
    values = {key: said[_ROOM + key][0] for key in KEYS}
    try:
        return DockerSettings(_options(values, environ))
    except InvalidConfiguration as exc:
        ours = any(not said[_ROOM + key][1].startswith(_FOREIGN) for key in KEYS)
        if default or ours:
            raise
        return DockerSettings(trouble=exc)


def _options(values: Mapping[str, Value], environ: Mapping[str, str]) -> DockerOptions:
    host = str(values["host"] or "")
    split = engine_address(_ROOM + "host", host) if host else urlsplit("")
    mode = str(values["engine_mode"])
    files = _files(values, environ)
    _check_mode(mode, split, environ)
    _check_tls(values, split, files)
    # A socket and ssh have a protection of their own, and no use for certificates.
    used = files if split.scheme == "tcp" else dict.fromkeys(_PEM, "")
    seconds = values["timeout_seconds"]
    return DockerOptions(
        host=host,
        engine=cast("EngineMode", mode),
        workspace=cast("WorkspaceMode", values["workspace_mode"]),
        shared_volume=str(values["shared_volume"]),
        tls_ca=used["tls_ca"],
        tls_cert=used["tls_cert"],
        tls_key=used["tls_key"],
        insecure=bool(values["insecure"]),
        pull=cast("Pull", values["pull"]),
        timeout_s=float(seconds) if isinstance(seconds, int | float) else DockerOptions().timeout_s,
    )


def _files(values: Mapping[str, Value], environ: Mapping[str, str]) -> dict[str, str]:
    """Each named one, else the one of cert_path; as Docker, ~/.docker where none is named."""
    directory = values["cert_path"]
    if directory is None and values["tls_verify"] and values["tls_ca"] is None:
        directory = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".docker")
    return {
        key: str(values[key] or (os.path.join(str(directory), file) if directory else ""))
        for key, file in _PEM.items()
    }


def _check_mode(mode: str, split: SplitResult, environ: Mapping[str, str]) -> None:
    here = split.scheme in ("", "unix")
    if mode == "docker_socket" and not here:
        raise _contradiction(
            f"engine_mode is docker_socket, but the engine's address is {split.scheme}://",
            "leave host out or name a unix:// socket; for an engine elsewhere, engine_mode: remote",
        )
    if mode == "remote" and here:
        raise _contradiction(
            "engine_mode is remote, but "
            + ("the engine's address is a socket of this machine" if split.scheme else "no host"),
            "set host to tcp://host:2376 (with TLS) or ssh://user@host",
        )
    if mode == "sidecar" and here and not in_a_container(environ):
        raise _contradiction(
            "engine_mode is sidecar, but the socket is this machine's: a sidecar stands beside "
            "a daemon in a container",
            "set host to the sidecar's address (tcp://localhost:2375), or engine_mode to auto",
        )
    if mode == "sidecar" and split.scheme == "ssh":
        raise _contradiction(
            "engine_mode is sidecar, but the engine's address is ssh://",
            "set engine_mode to remote, or host to the sidecar's address",
        )


def _check_tls(values: Mapping[str, Value], split: SplitResult, files: Mapping[str, str]) -> None:
    secured = any(files.values())
    if secured and not all(files.values()):
        raise _contradiction(
            "tls_ca, tls_cert and tls_key go together, and not all are named",
            "name all three files, or a directory that has them (cert_path)",
        )
    if secured and values["insecure"] and split.scheme == "tcp":
        raise _contradiction(
            "insecure is set, and so are certificates",
            "leave insecure out: with certificates the engine is spoken to over TLS",
        )
    private = values["engine_mode"] == "sidecar" or is_loopback(split.hostname or "")
    if split.scheme == "tcp" and not (secured or private or values["insecure"]):
        raise _contradiction(
            f"{split.hostname} is another machine, and whoever reads or changes what goes there "
            "over plain tcp has its engine",
            "give it TLS (cert_path with ca.pem, cert.pem and key.pem), use ssh://user@host, or "
            "set insecure: true on a network that is yours alone",
        )


def _contradiction(what: str, hint: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"backends.docker: {what}", hint=hint, setting="backends.docker")
