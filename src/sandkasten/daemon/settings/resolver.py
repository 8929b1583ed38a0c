"""One resolver for every setting: flag over environment over file over default, with origins.

Malformed configuration raises InvalidConfiguration, which names the setting and where it was
said; nothing is guessed and nothing unknown is passed over. Reads the environment and the
file it is given, and makes nothing: `compose` does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.backends.docker.docker_options import (
    ENGINE_MODES,
    SHARED_VOLUME,
    WORKSPACE_MODES,
    DockerOptions,
)
from sandkasten.daemon.settings import limit_ceilings
from sandkasten.daemon.settings import setting_values as values
from sandkasten.daemon.settings.agent_settings import SETTINGS as AGENT_SETTINGS
from sandkasten.daemon.settings.agent_settings import AgentSettings, agent_settings
from sandkasten.daemon.settings.docker_settings import (
    DockerSettings,
    docker_settings,
    tls_verify,
    volume,
)
from sandkasten.daemon.settings.durations import seconds
from sandkasten.daemon.settings.http_settings import HttpSettings, http_settings
from sandkasten.daemon.settings.package_settings import SETTINGS as PACKAGE_SETTINGS
from sandkasten.daemon.settings.package_settings import package_rules, printable
from sandkasten.daemon.settings.registry_settings import Registries, parse_registries
from sandkasten.daemon.settings.setting_parsers import (
    Value,
    address,
    choice,
    count,
    figure,
    flag,
    names,
    none_or_one,
    only_true,
    secret,
    text,
)
from sandkasten.daemon.settings.settings_file import find_file, read_file
from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.images.packages.package_rules import PackageRules
from sandkasten.model.files.file_keys import FileRules
from sandkasten.model.journal_rows import Retention
from sandkasten.model.numbers import number
from sandkasten.model.sandbox.host_mounts import MountRule, parse_mounts
from sandkasten.model.sandbox.isolation_levels import ISOLATIONS, MINIMA
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.model.sandbox.policy import (
    DEFAULT_BLOCKED_PATHS,
    LIMIT_NAMES,
    Policy,
    parse_limits,
    public_limits,
)
from sandkasten.model.sandbox.workspace import WorkspaceRules
from sandkasten.model.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.images.registry.registry_credentials import Access

PULL_POLICIES = ("never", "missing", "always")
BACKENDS: tuple[str, ...] = ("local", "oci", "gvisor", "docker", "memory")
RUNTIMES = ("runc", "crun")


@dataclass(frozen=True, slots=True)
class Origin:
    """One line of `config show --origin`."""

    name: str
    value: Value
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: Path
    backend: str
    allowed_images: tuple[str, ...] | None
    images_strict: bool
    oneshot_spares: bool
    image_aliases: Mapping[str, str]
    images_pull: str
    pull_timeout_s: float
    registries: Mapping[str, Access] = field(repr=False)
    """Holds secrets: never printed."""
    policy: Policy = field(repr=False)
    """Holds values of the operator's environment: never printed."""
    env_allow: tuple[str, ...] = ()
    values: tuple[Origin, ...] = ()
    oci_runtime: str = "runc"
    oci_strict: bool = False
    """Whether a runc with known ways out is refused, and not only warned of."""
    retention: Retention = field(default_factory=Retention)
    file_rules: FileRules = field(default_factory=FileRules)
    http: HttpSettings = field(default_factory=HttpSettings, repr=False)
    """What `serve` alone needs. Holds the key: never printed."""
    docker: DockerSettings = field(default_factory=DockerSettings)
    agents: AgentSettings = field(default_factory=AgentSettings)
    packages: PackageRules = field(default_factory=PackageRules)

    def origins(self) -> list[Origin]:
        return list(self.values)


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    parse: Callable[[str, object], Value]
    default: Value
    also: tuple[str, ...] = ()
    """Other environment names that older documents use."""

    @property
    def variable(self) -> str:
        return "SANDKASTEN_" + self.name.removeprefix("backends.").upper().replace(".", "_")


_LIMIT_ALIASES = {
    "exec_timeout_seconds": ("STATION_SANDBOX_DEFAULT_TIMEOUT_SECONDS",),
    "max_stdout_bytes": ("STATION_SANDBOX_MAX_STDOUT_BYTES",),
    "max_stderr_bytes": ("STATION_SANDBOX_MAX_STDERR_BYTES",),
    "max_artifact_bytes": ("STATION_SANDBOX_MAX_ARTIFACT_BYTES",),
}
# Said in milliseconds in files, in seconds in a request.
_MAX_TIMEOUT = "max_exec_timeout_seconds"
_LIMITS = [
    name for name in LIMIT_NAMES if name not in (_MAX_TIMEOUT, "cpu_millicores", "memory_mb")
]


def _settings(environ: Mapping[str, str]) -> dict[str, _Setting]:
    known = [
        _Setting("data_dir", text, _default_data_dir(environ), ("STATION_SANDBOX_DIR",)),
        _Setting("backend", lambda name, value: choice(*BACKENDS)(name, value), "local"),
        _Setting("default_image", values.image, "host"),
        _Setting("allowed_images", values.images, None, ("STATION_SANDBOX_ALLOWED_IMAGES",)),
        _Setting("session_ttl_seconds", seconds, 1800.0),
        _Setting(
            "session_idle_timeout_seconds", seconds, 1800.0, ("SANDBOX_SESSION_IDLE_TIMEOUT",)
        ),
        _Setting(
            "session_max_lifetime_seconds", seconds, 14_400.0, ("SANDBOX_SESSION_MAX_LIFETIME",)
        ),
        *(
            _Setting(
                f"defaults.{name}",
                seconds if name.endswith("_seconds") else figure,
                None,
                _LIMIT_ALIASES.get(name, ()),
            )
            for name in _LIMITS
        ),
        _Setting("defaults.max_exec_timeout_ms", figure, 3_600_000),
        _Setting("defaults.network_mode", choice("none"), "none"),
        _Setting("defaults.readonly_rootfs", only_true, True),
        _Setting("policy.blocked_paths", values.paths, list(DEFAULT_BLOCKED_PATHS)),
        _Setting("policy.env_allow", names, []),
        _Setting("policy.mounts", values.mounts, []),
        _Setting("policy.allow_network", flag, False),
        *(_Setting(name, figure, None) for name in limit_ceilings.SETTINGS),
        _Setting("workspace.default_mb", figure, None),
        _Setting("workspace.max_mb", figure, 1_048_576),
        _Setting("workspace.max_count", figure, 1000),
        _Setting("policy.isolation", choice(*ISOLATIONS), None),
        _Setting("policy.isolation_minimum", choice(*MINIMA), None),
        _Setting("idle.reclaim_after_seconds", seconds, None),
        _Setting("images.strict", flag, False),
        _Setting("pool.oneshot_spares", none_or_one, 1),
        _Setting("images.aliases", values.aliases, []),
        _Setting("images.pull", choice(*PULL_POLICIES), "never"),
        _Setting("images.pull_timeout_seconds", seconds, 3600.0),
        _Setting("images.registries", parse_registries, []),
        _Setting("oci.runtime", choice(*RUNTIMES), "runc"),
        _Setting("oci.strict", flag, False),
        *_docker_settings(),
        *(_Setting(*one) for one in PACKAGE_SETTINGS),
        _Setting("listen", address, "127.0.0.1:8080"),
        _Setting("api_key", secret, None),
        _Setting("api_key_file", text, None),
        _Setting("db_path", text, None),
        _Setting("socket", text, None),
        _Setting("tls.cert", text, None),
        _Setting("tls.key", text, None),
        _Setting("http.allowed_hosts", names, []),
        _Setting("http.allowed_origins", names, []),
        _Setting("http.max_json_mb", figure, 16),
        _Setting("http.body_timeout_seconds", seconds, 8.0),
        _Setting("http.upload_timeout_seconds", seconds, 60.0),
        _Setting("http.keep_alive_seconds", seconds, 75.0),
        _Setting("telemetry.metrics", choice("key", "open"), "key"),
        _Setting("telemetry.log_level", choice("debug", "info", "warning", "error"), "info"),
        _Setting("drain_seconds", seconds, 20.0),
        _Setting("retention.sessions_seconds", seconds, Retention().sessions_s),
        _Setting("retention.execs_seconds", seconds, Retention().execs_s),
        _Setting("retention.audit_seconds", seconds, Retention().audit_s),
        _Setting("files.max_bytes", count, FileRules().max_bytes),
        _Setting("files.max_total_bytes", count, FileRules().max_total_bytes),
        _Setting("files.ttl_seconds", seconds, None),
        *(_Setting(*one) for one in AGENT_SETTINGS),
    ]
    return {setting.name: setting for setting in known}


def _docker_settings() -> list[_Setting]:
    room = "backends.docker."
    return [
        # Looked at as an address later: a foreign DOCKER_HOST hurts nobody who has no use for it.
        _Setting(room + "host", text, None, ("DOCKER_HOST",)),
        _Setting(
            room + "engine_mode", choice(*ENGINE_MODES), "auto", ("STATION_SANDBOX_ENGINE_MODE",)
        ),
        _Setting(room + "workspace_mode", choice(*WORKSPACE_MODES), "auto"),
        _Setting(room + "shared_volume", volume, SHARED_VOLUME),
        _Setting(room + "cert_path", text, None, ("DOCKER_CERT_PATH",)),
        _Setting(room + "tls_ca", text, None),
        _Setting(room + "tls_cert", text, None),
        _Setting(room + "tls_key", text, None),
        _Setting(room + "tls_verify", tls_verify, False, ("DOCKER_TLS_VERIFY",)),
        _Setting(room + "insecure", flag, False),
        _Setting(room + "pull", choice(*PULL_POLICIES), DockerOptions().pull),
        _Setting(room + "timeout_seconds", seconds, DockerOptions().timeout_s),
    ]


def documented() -> list[tuple[str, tuple[str, ...], Value]]:
    """Every setting: its name, the variables that set it, its default for an ordinary machine."""
    environ = {"XDG_STATE_HOME": "/nonexistent"}
    known, plain = _settings(environ), load({}, environ, Path("/nonexistent"))
    shown = {origin.name: origin.value for origin in plain.values}
    shown["data_dir"] = "/var/lib/sandkasten, or ~/.local/state/sandkasten without root"
    return [(s.name, (s.variable, *s.also), shown[s.name]) for s in known.values()]


def load(
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Resolve everything. `flags` are keyed by dotted names; `config` among them names the file."""
    environ = os.environ if environ is None else environ
    flags = dict(flags or {})
    known = _settings(environ)
    path = find_file(flags.pop("config", None) or environ.get("SANDKASTEN_CONFIG"), cwd)
    said = read_file(path, known) if path is not None else {}
    for name in flags:
        if name not in known:
            raise _unknown(name, known, "a flag")
    origins = {
        name: _resolve(setting, flags, environ, said, f"file {path}")
        for name, setting in known.items()
    }
    return _build(origins, environ)


def _resolve(
    setting: _Setting,
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    said: Mapping[str, object],
    file_origin: str,
) -> Origin:
    if setting.name in flags:
        return Origin(setting.name, setting.parse(setting.name, flags[setting.name]), "flag")
    for variable in (setting.variable, *setting.also):
        # An empty variable is how a shell script says "not set".
        if environ.get(variable):
            value = setting.parse(variable, environ[variable])
            return Origin(setting.name, value, f"env {variable}")
    if setting.name in said:
        return Origin(setting.name, setting.parse(setting.name, said[setting.name]), file_origin)
    return Origin(setting.name, setting.default, "default")


def _build(origins: dict[str, Origin], environ: Mapping[str, str]) -> Settings:
    def value(name: str) -> Value:
        return origins[name].value

    ceiling = limit_ceilings.parse_ceiling({name: one.value for name, one in origins.items()})
    limits = _limits(origins, ceiling)
    for name in _LIMITS:
        one = origins[f"defaults.{name}"]
        if one.value is None:
            shown = _public(limits, name)
            origins[one.name] = Origin(one.name, shown, "default")
    allow = _strings(value("policy.env_allow"))
    lifetime_s = _figure(value("session_max_lifetime_seconds"))
    allowed = value("allowed_images")
    registries = value("images.registries")
    data_dir = Path(str(value("data_dir")))
    workspaces = _workspaces(origins, limits)
    rest = value("idle.reclaim_after_seconds")
    isolation, minimum = value("policy.isolation"), value("policy.isolation_minimum")
    if isolation == "standard" and minimum == "gvisor":
        raise InvalidConfiguration(
            "policy.isolation is standard, which is less than policy.isolation_minimum (gvisor)",
            hint="leave policy.isolation out, or set it to gvisor or strongest",
            setting="policy.isolation",
        )
    plain = {name: one.value for name, one in origins.items()}
    http, agents = http_settings(plain, data_dir), agent_settings(plain)
    packages = package_rules(plain)
    for name in ("api_key", "models.api_key"):
        if origins[name].value is not None:
            origins[name] = replace(origins[name], value="(set)")
    for name, _, _ in PACKAGE_SETTINGS:
        origins[name] = replace(origins[name], value=printable(name, value(name)))
    policy = Policy(
        default_image=str(value("default_image")),
        limits=limits,
        ttl_s=min(_figure(value("session_ttl_seconds")), lifetime_s),
        idle_timeout_s=min(_figure(value("session_idle_timeout_seconds")), lifetime_s),
        lifetime_s=lifetime_s,
        blocked_paths=_strings(value("policy.blocked_paths")),
        env={name: environ[name] for name in allow if name in environ},
        workspaces=workspaces,
        mounts=_mount_rules(_strings(value("policy.mounts")), data_dir),
        reclaim_after_s=None if rest is None else _figure(rest),
        isolation=None if isolation is None else str(isolation),
        isolation_minimum=None if minimum is None else str(minimum),
        ceiling=ceiling,
        allow_network=bool(value("policy.allow_network")),
    )
    return Settings(
        data_dir=data_dir,
        backend=str(value("backend")),
        allowed_images=None if allowed is None else _strings(allowed),
        images_strict=bool(value("images.strict")),
        oneshot_spares=bool(value("pool.oneshot_spares")),
        image_aliases=dict(values.pair(one) for one in _strings(value("images.aliases"))),
        images_pull=str(value("images.pull")),
        pull_timeout_s=_figure(value("images.pull_timeout_seconds")),
        registries=registries.access if isinstance(registries, Registries) else {},
        policy=policy,
        env_allow=allow,
        values=tuple(origins.values()),
        oci_runtime=str(value("oci.runtime")),
        oci_strict=bool(value("oci.strict")),
        retention=Retention(
            _figure(value("retention.sessions_seconds")),
            _figure(value("retention.execs_seconds")),
            _figure(value("retention.audit_seconds")),
        ),
        file_rules=_file_rules(origins),
        http=http,
        agents=agents,
        docker=docker_settings(
            {name: (one.value, one.origin) for name, one in origins.items()},
            environ,
            default=value("backend") == "docker",
        ),
        packages=packages,
    )


def _file_rules(origins: dict[str, Origin]) -> FileRules:
    ttl_s = origins["files.ttl_seconds"].value
    return FileRules(
        max_bytes=int(_figure(origins["files.max_bytes"].value)),
        max_total_bytes=int(_figure(origins["files.max_total_bytes"].value)),
        ttl_s=None if ttl_s is None else _figure(ttl_s),
    )


def _limits(origins: dict[str, Origin], most: Mapping[str, int | float]) -> Limits:
    longest = origins["defaults.max_exec_timeout_ms"]
    asked: dict[str, int | float] = {}
    for name in _LIMITS:
        said = origins[f"defaults.{name}"].value
        if said is not None:
            asked[name] = _figure(said)
    for name, usual in public_limits(Limits()).items():
        if name in most:
            asked[name] = limit_ceilings.within(most, name, asked.get(name, usual), name in asked)
    try:
        # The ceiling first: what a request may ask for is laid over it later.
        ceiling = Limits(max_exec_timeout_s=86_400.0)
        base = parse_limits({_MAX_TIMEOUT: _figure(longest.value) / 1000}, ceiling)
        return parse_limits(asked, base)
    except InvalidRequest as exc:
        raise InvalidConfiguration(
            f"defaults: {exc.message}", hint=exc.hint or "correct the value", setting="defaults"
        ) from exc


def _workspaces(origins: dict[str, Origin], limits: Limits) -> WorkspaceRules:
    """The size of a new one is that of any workspace unless its own setting says otherwise."""
    if origins["workspace.default_mb"].value is None:
        origins["workspace.default_mb"] = Origin(
            "workspace.default_mb", _public(limits, "workspace_mb"), "default"
        )
    figures: dict[str, float] = {}
    most_mb = 1024 * 1024
    for name, high in (("max_mb", most_mb), ("default_mb", most_mb), ("max_count", 1_000_000)):
        setting = f"workspace.{name}"
        try:
            figures[name] = number(setting, origins[setting].value, low=1, high=high)
        except InvalidRequest as exc:
            raise InvalidConfiguration(exc.message, hint=exc.hint, setting=setting) from exc
    if figures["default_mb"] > figures["max_mb"]:
        raise InvalidConfiguration(
            "workspace.default_mb is more than workspace.max_mb",
            hint="a new workspace cannot be larger than the largest; change one of them",
            setting="workspace.default_mb",
        )
    return WorkspaceRules(
        int(figures["default_mb"] * MIB), int(figures["max_mb"] * MIB), int(figures["max_count"])
    )


def _mount_rules(texts: tuple[str, ...], data_dir: Path) -> tuple[MountRule, ...]:
    try:
        return parse_mounts(list(texts), os.path.abspath(data_dir))
    except InvalidRequest as exc:
        raise InvalidConfiguration(
            f"policy.mounts: {exc.message}", hint=exc.hint, setting="policy.mounts"
        ) from exc


def _public(limits: Limits, name: str) -> Value:
    return public_limits(limits)[name]


def _figure(value: Value) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidConfiguration("a setting that should be a number is not", hint="check it")
    return value


def _strings(value: Value) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else ()


def _default_data_dir(environ: Mapping[str, str]) -> str | None:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return "/var/lib/sandkasten"
    state = environ.get("XDG_STATE_HOME")
    if state and state.startswith("/"):
        return f"{state}/sandkasten"
    home = environ.get("HOME") or os.path.expanduser("~")
    return f"{home}/.local/state/sandkasten"


def _unknown(name: str, known: Mapping[str, object], where: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"there is no setting named {name[:80]!r} ({where})",
        hint=did_you_mean(name, known),
        setting=name[:80],
    )
