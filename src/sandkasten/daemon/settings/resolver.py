"""The settings in force: flag over environment over file over default, with origins.

Malformed configuration raises InvalidConfiguration, which names the setting and where it was
set; an unknown name is refused. Reads the environment and one file, and creates nothing.
"""

from __future__ import annotations

import os
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandkasten.api.http_limits import HttpLimits
from sandkasten.api.previews.preview_rules import PreviewRules
from sandkasten.api.request.token_rules import TokenRules
from sandkasten.backends.backend_catalog import PLUGINS, PROBLEMS, capabilities_of
from sandkasten.daemon.settings.agent_settings import AgentSettings
from sandkasten.daemon.settings.backends.backend_names import check_backend
from sandkasten.daemon.settings.compat_settings import CompatSettings
from sandkasten.daemon.settings.core_settings import (
    AuditSettings,
    GeneralSettings,
    ImageSettings,
    PolicySettings,
)
from sandkasten.daemon.settings.http_settings import HttpSettings
from sandkasten.daemon.settings.limit_settings import (
    DiskSettings,
    FixedDefaults,
    LimitCeilings,
    LimitDefaults,
    WorkspaceSettings,
    default_limits,
)
from sandkasten.daemon.settings.network_settings import NetworkLimitSettings, NetworkSettings
from sandkasten.daemon.settings.provider_settings import ProviderEndpoint, ProviderSettings
from sandkasten.daemon.settings.secret_settings import SecretSettings
from sandkasten.daemon.settings.settings_file import find_file, read_file
from sandkasten.daemon.settings.store_settings import StoreSettings
from sandkasten.daemon.settings.telemetry_settings import TelemetrySettings
from sandkasten.daemon.settings.unknown_settings import unknown_setting, unknown_variables
from sandkasten.engine.pool.pool_rules import PoolRules
from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.images.packages.package_rules import PackageRules
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.backend_rules import check_rules
from sandkasten.model.images.pull_rules import PullLimits
from sandkasten.model.sandbox.host_mounts import MountRule, parse_mounts
from sandkasten.model.sandbox.policy import Policy, public_limits
from sandkasten.ports.backend_plugins import NamesEngines, SettingContext
from sandkasten.settings.setting_fields import Origin, SettingSource, Shown, settings_of
from sandkasten.store.bucket.bucket_options import BucketOptions
from sandkasten.store.record_rules import FileRules, RecordingRules, Retention

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.images.registry.registry_credentials import Access
    from sandkasten.images.signatures.trust_rules import TrustRule
    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.settings.setting_fields import Section

_RUNTIME: Final = (
    GeneralSettings,
    LimitDefaults,
    FixedDefaults,
    PolicySettings,
    LimitCeilings,
    WorkspaceSettings,
    DiskSettings,
    NetworkSettings,
    NetworkLimitSettings,
    SecretSettings,
    ImageSettings,
    PoolRules,
)
_SERVER: Final = (
    PackageRules,
    HttpSettings,
    HttpLimits,
    PreviewRules,
    TokenRules,
    CompatSettings,
    Retention,
    AuditSettings,
    RecordingRules,
    FileRules,
    StoreSettings,
    BucketOptions,
    TelemetrySettings,
    AgentSettings,
    ProviderSettings,
)


def sections() -> tuple[type[Section], ...]:
    """Return the sections of everything that is installed, in the order of the reference page."""
    plugins = (plugin.settings for plugin in PLUGINS)
    return (*_RUNTIME, *(section for section in plugins if section is not None), *_SERVER)


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: Path
    backend: str
    allowed_images: tuple[str, ...] | None
    images_strict: bool
    pool: PoolRules
    image_aliases: Mapping[str, str]
    images_pull: PullMode
    pull_limits: PullLimits
    signatures: tuple[TrustRule, ...]
    registries: Mapping[str, Access] = field(repr=False)
    """Holds secrets: never printed."""
    policy: Policy = field(repr=False)
    """Holds values of the operator's environment: never printed."""
    retention: Retention
    audit: bool
    recording: RecordingRules
    file_rules: FileRules
    http: HttpSettings = field(repr=False)
    """Settings of the HTTP server. Holds the key: never printed."""
    previews: PreviewRules
    jwt: TokenRules = field(repr=False)
    """Whose tokens are accepted. May hold a secret: never printed."""
    compat: CompatSettings
    """The protocols of other services."""
    secrets_key: str | None = field(repr=False)
    """The key of stored secrets; None: one in the data directory."""
    store: StoreSettings
    """The database of several daemons."""
    bucket: BucketOptions | None
    """The bucket for the content of stored files."""
    telemetry: TelemetrySettings
    plugins: Mapping[str, Any] = field(repr=False)
    """The section of each plugin by its name. May hold secrets: never printed."""
    agents: AgentSettings
    providers: tuple[ProviderEndpoint, ...]
    """Model providers by the prefix of a model's name."""
    packages: PackageRules
    values: tuple[Origin, ...]
    warnings: tuple[str, ...] = ()
    """Variables of the environment that have no effect, and plugins that cannot be used."""

    def origins(self) -> list[Origin]:
        return list(self.values)


@dataclass(frozen=True, slots=True)
class DocumentedSetting:
    name: str
    variables: tuple[str, ...]
    default: Shown
    """On an ordinary machine, in effect."""
    doc: str


def documented() -> list[DocumentedSetting]:
    """Return every setting, for the reference page and the example file."""
    plain = load({}, {"XDG_STATE_HOME": "/nonexistent"}, Path("/nonexistent"))
    shown = {origin.name: origin.value for origin in plain.values}
    shown["data_dir"] = "/var/lib/sandkasten, or ~/.local/state/sandkasten without root"
    return [
        DocumentedSetting(one.name, one.variables, shown[one.name], one.doc)
        for section in sections()
        for one in settings_of(section)
    ]


def load(
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Resolve every setting. `flags` have dotted names; the flag `config` names the file."""
    environ = os.environ if environ is None else environ
    flags = dict(flags or {})
    declared = [one for section in sections() for one in settings_of(section)]
    names = [one.name for one in declared]
    file = find_file(flags.pop("config", None) or environ.get("SANDKASTEN_CONFIG"), cwd)
    keys = [key for one in declared for key in one.keys]
    file_values = read_file(file, [*names, *keys]) if file is not None else {}
    for name in flags:
        if name not in names:
            message = f"{name[:80]!r} is not a setting (given as a flag)"
            raise unknown_setting(message, name, names)
    built = _build(SettingSource(flags, environ, file_values, f"file {file}"), environ)
    variables = [variable for one in declared for variable in one.variables]
    return replace(built, warnings=(*unknown_variables(environ, variables), *PROBLEMS))


def _build(source: SettingSource, environ: Mapping[str, str]) -> Settings:
    general = source.read(GeneralSettings)
    defaults, fixed = source.read(LimitDefaults), source.read(FixedDefaults)
    policy, maxima = source.read(PolicySettings), source.read(LimitCeilings)
    workspace, disk = source.read(WorkspaceSettings), source.read(DiskSettings)
    images = source.read(ImageSettings)
    declared = {
        plugin.name: source.read(plugin.settings)
        for plugin in PLUGINS
        if plugin.settings is not None
    }
    engines = {
        name: rules
        for section in declared.values()
        if isinstance(section, NamesEngines)
        for name, rules in section.engine_rules().items()
    }
    check_backend(general.backend, engines)
    general = _selected(general, source)
    packages = source.read(PackageRules)
    pool = source.read(PoolRules).checked()
    http = source.read(HttpSettings)
    store = source.read(StoreSettings)
    agents, providers = source.read(AgentSettings), source.read(ProviderSettings)

    data_dir = general.data_dir or _default_data_dir(environ)
    source.show_default("data_dir", str(data_dir))
    previews = source.read(PreviewRules).completed(data_dir)
    ceilings = maxima.checked()
    limits = default_limits(defaults, fixed, ceilings)
    in_effect = public_limits(limits)
    for one in settings_of(LimitDefaults):
        source.show_default(one.name, in_effect[one.name.removeprefix("defaults.")])
    source.show_default("workspace.default_mb", in_effect["workspace_mb"])
    if policy.isolation == "standard" and policy.isolation_minimum == "gvisor":
        raise InvalidConfiguration(
            "policy.isolation is standard, which is less than policy.isolation_minimum (gvisor)",
            hint="leave policy.isolation out, or set it to gvisor or strongest",
            setting="policy.isolation",
        )
    check_rules(policy.backends, _strength, policy.isolation, policy.isolation_minimum)
    for at, rule in enumerate(policy.backends):
        for used in rule.use:
            check_backend(used, engines, f"policy.backends[{at}].use")
    context = SettingContext(
        environ=environ,
        origins=source.origins,
        default_backend=general.backend,
        longest_life_s=general.lifetime_s + pool.oldest_s,
    )
    return Settings(
        data_dir=data_dir,
        backend=general.backend,
        allowed_images=general.allowed_images,
        images_strict=images.strict,
        pool=pool,
        image_aliases=images.aliases,
        images_pull=images.pull,
        signatures=policy.signatures,
        pull_limits=PullLimits(images.pull_timeout_s, images.pull_max_bytes, images.max_bytes),
        registries=images.registries,
        policy=Policy(
            enabled=policy.enabled,
            code_mode=policy.code_mode,
            default_image=general.default_image,
            limits=limits,
            ttl_s=min(general.ttl_s, general.lifetime_s),
            idle_timeout_s=min(general.idle_timeout_s, general.lifetime_s),
            lifetime_s=general.lifetime_s,
            max_retain_s=general.max_retain_s,
            run_sandboxes=agents.max_sandboxes,
            blocked_paths=policy.blocked_paths,
            env={name: environ[name] for name in policy.env_allow if name in environ},
            workspaces=workspace.rules(in_effect["workspace_mb"]),
            disk=disk.rules(),
            mounts=_mount_rules(policy.mounts, data_dir),
            reclaim_after_s=images.reclaim_after_s,
            gpus=policy.gpus,
            isolation=policy.isolation,
            isolation_minimum=policy.isolation_minimum,
            docker_engines=engines,
            backends=policy.backends,
            ceiling=ceilings,
            allow_network=policy.allow_network,
            readonly_rootfs=fixed.readonly_rootfs,
            network_default=fixed.network_mode == "full",
            network=source.read(NetworkSettings).ceiling(
                policy.network, source.read(NetworkLimitSettings).limits()
            ),
        ),
        retention=source.read(Retention),
        audit=source.read(AuditSettings).enabled,
        recording=source.read(RecordingRules),
        file_rules=source.read(FileRules),
        secrets_key=source.read(SecretSettings).found(environ),
        http=http.completed(data_dir, source.read(HttpLimits)),
        previews=previews,
        jwt=source.read(TokenRules).checked(),
        compat=source.read(CompatSettings).completed(previews),
        store=store,
        bucket=source.read(BucketOptions).completed(store.url),
        telemetry=source.read(TelemetrySettings),
        plugins={name: section.completed(context) for name, section in declared.items()},
        agents=agents.completed(),
        providers=providers.endpoints(agents.base_url, source.origins),
        packages=packages.checked(),
        values=tuple(source.origins.values()),
    )


def _selected(general: GeneralSettings, source: SettingSource) -> GeneralSettings:
    """Return the settings with the backend that a key of the file selects, if none is set."""
    if source.origins["backend"].origin != "default":
        return general
    for plugin in PLUGINS:
        for origin in source.origins.values():
            if origin.origin.endswith(tuple(f"({key})" for key in plugin.selecting_keys)):
                source.origins["backend"] = replace(origin, name="backend", value=plugin.name)
                return replace(general, backend=plugin.name)
    return general


def _strength(backend: str) -> int:
    return capabilities_of(backend).strength


def _mount_rules(mounts: tuple[str, ...], data_dir: Path) -> tuple[MountRule, ...]:
    try:
        return parse_mounts(list(mounts), os.path.abspath(data_dir))
    except InvalidRequest as exc:
        raise InvalidConfiguration(
            f"policy.mounts: {exc.message}", hint=exc.hint, setting="policy.mounts"
        ) from exc


def _default_data_dir(environ: Mapping[str, str]) -> Path:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/sandkasten")
    state = environ.get("XDG_STATE_HOME")
    if state and state.startswith("/"):
        return Path(state) / "sandkasten"
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".local/state/sandkasten"
