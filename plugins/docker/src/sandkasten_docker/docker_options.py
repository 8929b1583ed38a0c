"""Options of the backend docker: the engines and how to reach them, checked for contradictions.

`DOCKER_HOST` and its kin are often meant for other programs. A contradiction that comes from them
alone must not stop a user who does not use Docker: it is kept and raised when the backend is used.
A contradiction in our own settings raises InvalidConfiguration at once. Contacts no engine and
opens no file; the backend reads the files of a certificate.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import SplitResult, urlsplit

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.addresses import is_loopback
from sandkasten.model.backends.named_backends import (
    LABEL_KEY,
    LABEL_VALUE,
    NAME,
    NamedBackendRules,
)
from sandkasten.model.images.pull_rules import PULL_MODES
from sandkasten.settings.setting_fields import setting, settings_of
from sandkasten.settings.setting_parsers import (
    boolean,
    check_keys,
    choice,
    from_json,
    invalid,
    positive_integer,
    seconds,
    string,
)
from sandkasten_docker.capabilities import NAMED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.ports.backend_plugins import SettingContext

DockerMode = Literal["auto", "docker_socket", "sidecar", "remote"]
WorkspaceMode = Literal["auto", "bind", "volume", "shared", "archive"]

DOCKER_MODES: Final[tuple[DockerMode, ...]] = ("auto", "docker_socket", "sidecar", "remote")
WORKSPACE_MODES: Final[tuple[WorkspaceMode, ...]] = ("auto", "bind", "volume", "shared", "archive")
SHARED_VOLUME: Final = "station-sandboxes"
_SECTION: Final = "backends.docker"
STATION_HOST: Final = "sandbox.docker_host"
"""Key of a Station configuration. It is about Docker only, so it selects the backend too."""
_FOREIGN: Final = ("default", "env DOCKER_")
_SCHEMES: Final = ("unix", "tcp", "ssh")
_ADDRESSES: Final = "write unix:///path/to/socket, tcp://host:port or ssh://user@host"
_VOLUME: Final = lazy_pattern.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}\Z")
_RULES: Final = ("labels", "max_sandboxes")
_NAMED_HINT: Final = "write west: {host: tcp://192.0.2.7:2376, cert_path: /etc/sandkasten/west}"
_PEM: Final = {"tls_ca": "ca.pem", "tls_cert": "cert.pem", "tls_key": "key.pem"}
# Files that container runtimes create in every container.
_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")


def docker_boolean(name: str, value: object) -> bool:
    """Parse a boolean; in Docker's own variable any value means true, as in Docker."""
    return name == "DOCKER_TLS_VERIFY" or boolean(name, value)


def volume(name: str, value: object) -> str:
    volume_name = string(name, value)
    if not _VOLUME.match(volume_name):
        hint = "write 2 to 128 letters, digits, dots, _ and -, such as sandkasten-data"
        raise invalid(name, "a volume name", value, hint)
    return volume_name


def docker_directory(name: str, value: object) -> str:
    """Accept an absolute path of the engine's machine; it cannot be looked at from here."""
    directory = string(name, value).rstrip("/")
    parts = directory.split("/")[1:]
    if (
        not directory.startswith("/")
        or not directory.isprintable()
        or ":" in directory
        or {"", ".", ".."} & {*parts}
    ):
        hint = "write a path such as /srv/workspaces"
        raise invalid(name, "an absolute path without colons, . and ..", value, hint)
    return directory


def docker_engine_map(name: str, value: object) -> dict[str, NamedDockerEngine]:
    """Accept a mapping of names, or the same as JSON, as a variable has it."""
    value = from_json(name, value, _NAMED_HINT)
    if not isinstance(value, dict):
        raise invalid(name, "a mapping of names", value, _NAMED_HINT)
    for own_name, entry in value.items():
        if not isinstance(own_name, str) or not NAME.match(own_name):
            hint = "write up to 32 letters a-z, digits and -, such as west or rack-2"
            raise invalid(name, "a mapping of valid names", own_name, hint)
        if not isinstance(entry, dict):
            raise invalid(f"{name}.{own_name}", "a mapping", entry, _NAMED_HINT)
    return {
        own_name: _named_docker_engine(f"{name}.{own_name}", entry)
        for own_name, entry in value.items()
    }


def _named_docker_engine(name: str, entry: Mapping[object, object]) -> NamedDockerEngine:
    declared = {
        option.name: option.metadata["setting"]
        for option in fields(DockerOptions)
        if "setting" in option.metadata and option.name != "docker_engines"
    }
    keys = {
        metadata.name.removeprefix(f"{_SECTION}."): field for field, metadata in declared.items()
    }
    values: dict[str, object] = {}
    check_keys(name, entry, (*keys, *_RULES))
    for key, value in entry.items():
        if key in keys and value is not None:
            field_name = keys[str(key)]
            values[field_name] = declared[field_name].parse(f"{name}.{key}", value)
    if not values.get("host"):
        # The usual sockets are those of the engine without a name.
        raise InvalidConfiguration(f"{name} requires host", hint=_ADDRESSES, setting=name)
    most = entry.get("max_sandboxes")
    rules = NamedBackendRules(
        labels=_labels(f"{name}.labels", entry.get("labels") or {}),
        max_sandboxes=None if most is None else positive_integer(f"{name}.max_sandboxes", most),
    )
    return NamedDockerEngine(DockerOptions(**values), rules)  # type: ignore[arg-type]


def _labels(name: str, value: object) -> dict[str, str]:
    hint = "write key: value, such as zone: eu; put a value like true or 1 in quotes"
    if not isinstance(value, dict):
        raise invalid(name, "a mapping of labels", value, hint)
    for key, text in value.items():
        if not isinstance(key, str) or not LABEL_KEY.match(key):
            raise invalid(name, "a mapping of labels with valid keys", key, hint)
        if not isinstance(text, str) or not LABEL_VALUE.match(text):
            raise invalid(f"{name}.{key}", "a string of letters, digits, . _ and -", text, hint)
    return dict(value)


def show_docker_engines(docker_engines: Mapping[str, NamedDockerEngine]) -> list[str]:
    return [f"{name} ({named.options.host})" for name, named in docker_engines.items()]


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """How an engine is reached, and what it is used for. An empty `host` means that DOCKER_HOST is
    not set either, and the usual sockets are tried.
    """

    # Checked as an address only when it is used: a foreign DOCKER_HOST must not stop others.
    host: str = setting(
        "backends.docker.host",
        string,
        "",
        "The Docker Engine: unix://, tcp:// or ssh://; default: the usual sockets.",
        aliases=("DOCKER_HOST",),
        keys=(STATION_HOST,),
    )
    mode: DockerMode = setting(
        "backends.docker.engine_mode",
        choice(*DOCKER_MODES),
        "auto",
        "Where the Docker Engine must be: docker_socket, sidecar, remote or auto (anywhere).",
        shared_aliases=("STATION_SANDBOX_ENGINE_MODE",),
    )
    workspace: WorkspaceMode = setting(
        "backends.docker.workspace_mode",
        choice(*WORKSPACE_MODES),
        "auto",
        "How workspaces are stored: bind, volume, shared, archive or auto.",
    )
    workspace_dir: str = setting(
        "backends.docker.workspace_dir",
        docker_directory,
        "",
        "Directory of the Docker Engine's machine in which workspaces are stored.",
        keys=("sandbox.workspace_base_dir",),
    )
    shared_volume: str = setting(
        "backends.docker.shared_volume",
        volume,
        SHARED_VOLUME,
        "The volume of workspace_mode shared.",
    )
    require_workspace_limit: bool = setting(
        "backends.docker.require_workspace_limit",
        boolean,
        False,
        "Refuse a Docker Engine that cannot enforce workspace_mb.",
    )
    cert_path: str = setting(
        "backends.docker.cert_path",
        string,
        "",
        "A directory with ca.pem, cert.pem and key.pem for tcp.",
        aliases=("DOCKER_CERT_PATH",),
    )
    tls_ca: str = setting(
        "backends.docker.tls_ca",
        string,
        "",
        "The authority of the Docker Engine's certificate; overrides cert_path.",
    )
    tls_cert: str = setting(
        "backends.docker.tls_cert",
        string,
        "",
        "The daemon's certificate, in PEM; overrides cert_path.",
    )
    tls_key: str = setting(
        "backends.docker.tls_key",
        string,
        "",
        "The certificate's key, in PEM; overrides cert_path.",
    )
    tls_verify: bool = setting(
        "backends.docker.tls_verify",
        docker_boolean,
        False,
        "Always use TLS; without cert_path the files are in ~/.docker.",
        aliases=("DOCKER_TLS_VERIFY",),
    )
    insecure: bool = setting(
        "backends.docker.insecure",
        boolean,
        False,
        "Whether plain tcp to another machine is allowed.",
    )
    pull: PullMode = setting(
        "backends.docker.pull",
        choice(*PULL_MODES),
        "named",
        "Whether the Docker Engine pulls a missing image: never, named, missing or always, as in "
        "images.pull.",
    )
    timeout_s: float = setting(
        "backends.docker.timeout_seconds",
        seconds,
        60.0,
        "How long one request to the Docker Engine may take.",
    )
    docker_engines: Mapping[str, NamedDockerEngine] = setting(
        "backends.docker.engines",
        docker_engine_map,
        MappingProxyType({}),
        "More Docker Engines, for backend docker/NAME: the keys above, labels and max_sandboxes.",
        show=show_docker_engines,
    )
    trouble: InvalidConfiguration | None = None
    """Why the options cannot be used, if only variables of other programs are at fault."""

    def named_backends(self) -> dict[str, NamedBackendRules]:
        """Implement `NamesBackends`, in the order of the settings."""
        return {NAMED + name: named.rules for name, named in self.docker_engines.items()}

    def completed(self, context: SettingContext) -> DockerOptions:
        """Station's engine mode is about the default backend."""
        docker_engines = {
            name: replace(named, options=_named_options(name, named.options, context.environ))
            for name, named in self.docker_engines.items()
        }
        try:
            return replace(_checked(self, context.environ), docker_engines=docker_engines)
        except InvalidConfiguration as exc:
            if context.origins[f"{_SECTION}.host"].origin.endswith(f"({STATION_HOST})"):
                message = exc.message.replace(_SECTION, STATION_HOST, 1)
                raise InvalidConfiguration(message, hint=exc.hint, **exc.details) from exc
            sources = [
                context.origins[entry.name].origin
                for entry in settings_of(DockerOptions)
                if entry.name != f"{_SECTION}.engines"
            ]
            backend = context.default_backend
            foreign = (*_FOREIGN, "env STATION_") if backend == "dagger" else _FOREIGN
            if backend == "docker" or not all(source.startswith(foreign) for source in sources):
                raise
            return DockerOptions(docker_engines=docker_engines, trouble=exc)


@dataclass(frozen=True, slots=True)
class NamedDockerEngine:
    """One entry of `backends.docker.engines`."""

    options: DockerOptions
    rules: NamedBackendRules


def docker_address(name: str, value: object) -> SplitResult:
    """Parse `unix:///path`, `tcp://host:port` or `ssh://[user@]host[:port]`."""
    url = string(name, value)
    if not url.isprintable() or " " in url:
        raise invalid(name, "a URL", value, _ADDRESSES)
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError as exc:
        raise invalid(name, "a URL", value, _ADDRESSES) from exc
    if split.scheme not in _SCHEMES:
        raise InvalidConfiguration(
            f"{name} must be the address of a Docker Engine, got {url[:80]!r}",
            hint=_ADDRESSES,
            setting=name,
        )
    if split.query or split.fragment or split.password is not None:
        expected = "a URL without a password, a query or a fragment"
        raise invalid(name, expected, split.scheme, _ADDRESSES)
    if split.scheme == "unix" and (split.netloc or not split.path.startswith("/")):
        hint = "write unix:///run/docker.sock"
        raise invalid(name, "unix:// with an absolute path", value, hint)
    bare = split.hostname and port != 0 and split.path in ("", "/")
    if split.scheme == "tcp" and not bare:
        raise invalid(name, "tcp://host:port", value, "write tcp://192.0.2.7:2376, without a path")
    if split.scheme == "ssh" and not split.hostname:
        raise invalid(name, "ssh://[user@]host[:port]", value, "write ssh://user@host")
    return split


def in_a_container(environ: Mapping[str, str]) -> bool:
    """Return whether this process seems to run in a container: only then can it have a sidecar."""
    return "KUBERNETES_SERVICE_HOST" in environ or any(map(os.path.exists, _CONTAINER_MARKS))


def _named_options(name: str, options: DockerOptions, environ: Mapping[str, str]) -> DockerOptions:
    try:
        return _checked(options, environ)
    except InvalidConfiguration as exc:
        where = f"{_SECTION}.engines.{name}"
        message, hint = (text.replace(_SECTION, where, 1) for text in (exc.message, exc.hint))
        raise InvalidConfiguration(message, hint=hint, setting=where) from exc


def _checked(options: DockerOptions, environ: Mapping[str, str]) -> DockerOptions:
    """Return the options with the files of the certificate, and without what named them."""
    split = urlsplit("")
    if options.host:
        split = docker_address(f"{_SECTION}.host", options.host)
    files = _certificate_files(options, environ)
    _check_mode(options.mode, split, environ)
    if options.workspace_dir and options.workspace != "auto":
        raise _contradiction(
            f"workspace_mode is {options.workspace}, but workspace_dir names a directory",
            "leave one of them out",
        )
    _check_tls(options, split, files)
    # A socket and ssh are protected by other means and use no certificates.
    used = files if split.scheme == "tcp" else dict.fromkeys(_PEM, "")
    return replace(
        options,
        tls_ca=used["tls_ca"],
        tls_cert=used["tls_cert"],
        tls_key=used["tls_key"],
        cert_path="",
        tls_verify=False,
    )


def _certificate_files(options: DockerOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return each file that is set, else the one of cert_path, else (as Docker) of ~/.docker."""
    directory = options.cert_path
    if not directory and options.tls_verify and not options.tls_ca:
        directory = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".docker")
    return {
        key: getattr(options, key) or (os.path.join(directory, file) if directory else "")
        for key, file in _PEM.items()
    }


def _check_mode(mode: str, split: SplitResult, environ: Mapping[str, str]) -> None:
    local = split.scheme in ("", "unix")
    if mode == "docker_socket" and not local:
        raise _contradiction(
            f"engine_mode is docker_socket, but the Docker Engine's address is {split.scheme}://",
            "leave host out or set it to a unix:// socket; elsewhere use engine_mode: remote",
        )
    if mode == "remote" and local:
        raise _contradiction(
            "engine_mode is remote, but "
            + ("host is a socket of this machine" if split.scheme else "host is not set"),
            "set host to tcp://host:2376 (with TLS) or ssh://user@host",
        )
    if mode == "sidecar" and local and not in_a_container(environ):
        raise _contradiction(
            "engine_mode is sidecar, but this process is not in a container and host is a socket "
            "of this machine",
            "set host to the sidecar's address (tcp://localhost:2375), or engine_mode to auto",
        )
    if mode == "sidecar" and split.scheme == "ssh":
        raise _contradiction(
            "engine_mode is sidecar, but the Docker Engine's address is ssh://",
            "set engine_mode to remote, or host to the sidecar's address",
        )


def _check_tls(options: DockerOptions, split: SplitResult, files: Mapping[str, str]) -> None:
    secured = any(files.values())
    if secured and not all(files.values()):
        raise _contradiction(
            "tls_ca, tls_cert and tls_key require each other, and not all are set",
            "set all three, or cert_path to a directory that has the files",
        )
    if secured and options.insecure and split.scheme == "tcp":
        raise _contradiction(
            "insecure and certificates exclude each other",
            "leave insecure out: with certificates the connection uses TLS",
        )
    private = options.mode == "sidecar" or is_loopback(split.hostname or "")
    if split.scheme == "tcp" and not (secured or private or options.insecure):
        raise _contradiction(
            f"plain tcp to {split.hostname} is not allowed: any machine in between could take "
            "over the Docker Engine",
            "use TLS (cert_path with ca.pem, cert.pem and key.pem), ssh://user@host, or "
            "backends.docker.insecure: true on a private network",
        )


def _contradiction(what: str, hint: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{_SECTION}: {what}", hint=hint, setting=_SECTION)
