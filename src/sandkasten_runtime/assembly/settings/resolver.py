"""The settings in force: flag over environment over file over default, with origins.

Malformed configuration raises InvalidConfiguration, which names the setting and where it was
set; an unknown name is refused. Reads the environment and one file, and creates nothing.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.backend_rules import check_rules
from sandkasten.model.sandbox.host_mounts import MountRule, parse_mounts
from sandkasten.model.sandbox.limit_names import public_limits
from sandkasten.model.sandbox.policy import Policy
from sandkasten.plugins.plugin_failure import REMEDY, described, failure, is_its_own, opening
from sandkasten.ports.backend_plugins import (
    BACKENDS_GROUP,
    BackendPlugin,
    NamesBackends,
    SettingContext,
)
from sandkasten.ports.settings_plugins import SETTINGS_GROUP
from sandkasten.ports.store_plugins import STORES_GROUP
from sandkasten.settings.setting_fields import (
    Origin,
    Section,
    SettingSource,
    Shown,
    settings_of,
    value_of,
)
from sandkasten_runtime.assembly.settings.backend_names import check_backend
from sandkasten_runtime.assembly.settings.core_settings import (
    GeneralSettings,
    ImageSettings,
    PolicySettings,
)
from sandkasten_runtime.assembly.settings.installed_sections import (
    CORE_SECTIONS,
    installed_sections,
)
from sandkasten_runtime.assembly.settings.limit_settings import (
    DiskSettings,
    FixedDefaults,
    LimitCeilings,
    LimitDefaults,
    SnapshotSettings,
    WorkspaceSettings,
    default_limits,
)
from sandkasten_runtime.assembly.settings.network_settings import (
    NetworkLimitSettings,
    NetworkSettings,
)
from sandkasten_runtime.assembly.settings.secret_settings import SecretSettings
from sandkasten_runtime.assembly.settings.settings_file import find_file, read_file
from sandkasten_runtime.assembly.settings.unknown_settings import (
    check_variables,
    unknown_setting,
    unknown_variables,
)
from sandkasten_runtime.backends.backend_catalog import CAPABILITIES, capabilities_of
from sandkasten_runtime.backends.plugin_rules import foreign_names
from sandkasten_runtime.engine.pool.pool_rules import PoolRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten.model.backends.named_backends import NamedBackendRules

S = TypeVar("S", bound=Section)
INSTALLED: Final = installed_sections()


def sections() -> tuple[type[Section], ...]:
    """Return the sections of everything that is installed, in the order of the reference page."""
    backends = (plugin.settings for plugin in INSTALLED.backends)
    return (
        *CORE_SECTIONS,
        *(section for section in backends if section is not None),
        *(section for plugin in INSTALLED.settings for section in plugin.sections),
        *(section for plugin in INSTALLED.stores for section in plugin.settings),
    )


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: Path
    socket: Path
    """Where a daemon of this data directory listens for its operator."""
    policy: Policy = field(repr=False)
    """Holds values of the operator's environment: never printed."""
    secrets_key: str | None = field(repr=False)
    """The key of stored secrets; None: one in the data directory."""
    backend_plugins: tuple[BackendPlugin, ...]
    """The plugins of backends that may be opened."""
    plugins: Mapping[str, Any] = field(repr=False)
    """Sections of plugins of backends, by their names. May hold secrets: never printed."""
    sections: Mapping[type[Section], Any] = field(repr=False)
    """May hold secrets: never printed."""
    values: tuple[Origin, ...]
    warnings: tuple[str, ...] = ()
    """Variables of the environment that have no effect, and plugins that cannot be used."""

    def origins(self) -> list[Origin]:
        return list(self.values)

    def of(self, section: type[S]) -> S:
        """Return the options of a section; InvalidConfiguration if its plugin cannot be used."""
        return _section(self.sections, section)

    def named(self, name: str) -> Any:
        """Return the value of a setting of any part; None if no installed part declares it."""
        for section in self.sections.values():
            value = value_of(section, name)
            if value is not None:
                return value
        return None


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
        DocumentedSetting(setting.name, setting.variables, shown[setting.name], setting.doc)
        for section in sections()
        for setting in settings_of(section)
    ]


def load(
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Resolve every setting. `flags` have dotted names; the flag `config` names the file."""
    environ = os.environ if environ is None else environ
    flags = dict(flags or {})
    declared = [setting for section in sections() for setting in settings_of(section)]
    names = [setting.name for setting in declared]
    file = find_file(flags.pop("config", None) or environ.get("SANDKASTEN_CONFIG"), cwd)
    keys = [key for setting in declared for key in setting.keys]
    file_values = read_file(file, [*names, *keys]) if file is not None else {}
    for name in flags:
        if name not in names:
            message = f"{name[:80]!r} is not a setting (given as a flag)"
            raise unknown_setting(message, name, names)
    variables = [variable for setting in declared for variable in setting.variables]
    check_variables(environ, variables)
    built = _build(
        SettingSource(flags, environ, file_values, f"file {file.path}" if file else ""), environ
    )
    return replace(built, warnings=(*unknown_variables(environ, variables), *INSTALLED.problems))


class _Sections:
    """The sections as they were read, each completed when it is first asked for."""

    def __init__(self, source: SettingSource) -> None:
        self.values: dict[type[Section], Any] = {}
        for section in sections():
            with _code_of(section):
                self.values[section] = source.read(section)
        self._pending = {value for value in self.values if hasattr(value, "completed")}

    def read(self, section: type[S]) -> S:
        return _section(self.values, section)

    def complete(self, context: SettingContext) -> None:
        """`context.of` must be `self.completed`."""
        self._context = context
        for section in tuple(self._pending):
            self.completed(section)

    def completed(self, section: type[S]) -> S:
        value = self.read(section)
        if section in self._pending:
            self._pending.remove(section)
            completed: Any = value
            with _code_of(section):
                self.values[section] = value = completed.completed(self._context)
        return value


@contextmanager
def _code_of(section: type[Section]) -> Iterator[None]:
    """Raise InvalidConfiguration, which names the plugin, for anything that its section raises."""
    try:
        yield
    except BaseException as exc:
        owner = _owner(section)
        if owner is None or not is_its_own(exc):
            raise
        raise InvalidConfiguration(failure(*owner, exc), hint=REMEDY) from exc


def _owner(section: type[Section]) -> tuple[str, str] | None:
    """Return the group and the name of the plugin that declares a section; None: the core does."""
    for group, name, declared in (
        *((BACKENDS_GROUP, plugin.name, (plugin.settings,)) for plugin in INSTALLED.backends),
        *((SETTINGS_GROUP, plugin.name, plugin.sections) for plugin in INSTALLED.settings),
        *((STORES_GROUP, plugin.name, plugin.settings) for plugin in INSTALLED.stores),
    ):
        if section in declared:
            return group, name
    return None


def _section(values: Mapping[type[Section], Any], section: type[S]) -> S:
    value: S | None = values.get(section)
    if value is None:
        raise InvalidConfiguration(
            f"the settings of {section.__module__} are not available: no plugin that can be used "
            "declares them",
            hint="install the distribution that has this module again; sandkasten doctor names "
            "plugins that cannot be used",
        )
    return value


def _build(source: SettingSource, environ: Mapping[str, str]) -> Settings:
    read = _Sections(source)
    general = read.read(GeneralSettings)
    defaults, fixed = read.read(LimitDefaults), read.read(FixedDefaults)
    policy, maxima = read.read(PolicySettings), read.read(LimitCeilings)
    workspace, disk = read.read(WorkspaceSettings), read.read(DiskSettings)
    images = read.read(ImageSettings)
    named = _named_backends(read)
    _check_named(general.backend, named)
    general = read.values[GeneralSettings] = _selected(general, source)
    pool = read.values[PoolRules] = read.read(PoolRules).checked()

    data_dir = general.data_dir or _default_data_dir(environ)
    source.show_default("data_dir", str(data_dir))
    ceilings = maxima.checked()
    limits = default_limits(defaults, fixed, ceilings)
    in_effect = public_limits(limits)
    for setting in settings_of(LimitDefaults):
        source.show_default(setting.name, in_effect[setting.name.removeprefix("defaults.")])
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
            _check_named(used, named, f"policy.backends[{at}].use")
    context = SettingContext(
        environ=environ,
        origins=source.origins,
        default_backend=general.backend,
        longest_life_s=general.lifetime_s + pool.oldest_s,
        data_dir=data_dir,
        of=read.completed,
    )
    read.complete(context)
    return Settings(
        data_dir=data_dir,
        socket=general.socket(data_dir),
        policy=Policy(
            enabled=policy.enabled,
            code_mode=policy.code_mode,
            default_image=general.default_image,
            limits=limits,
            ttl_s=min(general.ttl_s, general.lifetime_s),
            idle_timeout_s=min(general.idle_timeout_s, general.lifetime_s),
            lifetime_s=general.lifetime_s,
            max_retain_s=general.max_retain_s,
            blocked_paths=policy.blocked_paths,
            env={name: environ[name] for name in policy.env_allow if name in environ},
            workspaces=workspace.rules(in_effect["workspace_mb"]),
            snapshots=read.read(SnapshotSettings).rules(),
            disk=disk.rules(),
            mounts=_mount_rules(policy.mounts, data_dir),
            reclaim_after_s=images.reclaim_after_s,
            gpus=policy.gpus,
            isolation=policy.isolation,
            isolation_minimum=policy.isolation_minimum,
            named_backends=named,
            backends=policy.backends,
            ceiling=ceilings,
            allow_network=policy.allow_network,
            readonly_rootfs=fixed.readonly_rootfs,
            network_default=fixed.network_mode == "full",
            network=read.read(NetworkSettings).ceiling(
                policy.network, read.read(NetworkLimitSettings).limits()
            ),
        ),
        secrets_key=read.read(SecretSettings).found(environ),
        backend_plugins=INSTALLED.backends,
        plugins={
            plugin.name: read.values[plugin.settings]
            for plugin in INSTALLED.backends
            if plugin.settings is not None
        },
        sections=read.values,
        values=tuple(source.origins.values()),
    )


def _named_backends(read: _Sections) -> dict[str, NamedBackendRules]:
    """Return the rules of the backends that sections configure, by name."""
    named: dict[str, NamedBackendRules] = {}
    for plugin in INSTALLED.backends:
        section = None if plugin.settings is None else read.values[plugin.settings]
        if isinstance(section, NamesBackends):
            with opening(BACKENDS_GROUP, plugin.name):
                rules = section.named_backends()
                foreign = foreign_names(plugin, rules)
            if foreign:
                raise InvalidConfiguration(
                    f"{described(BACKENDS_GROUP, plugin.name)} configures the backend "
                    f"{foreign[0]}, and may only configure {plugin.name} and {plugin.name}/NAME",
                    hint=REMEDY,
                    setting=f"backends.{plugin.name}",
                )
            named.update(rules)
    return named


def _check_named(
    backend: str, named: Mapping[str, NamedBackendRules], setting: str = "backend"
) -> None:
    check_backend(backend, named, setting)
    name = backend.partition("/")[0]
    if name in CAPABILITIES and all(plugin.name != name for plugin in INSTALLED.backends):
        raise InvalidConfiguration(
            f"{setting} is {backend}, whose plugin cannot be used: {'; '.join(INSTALLED.problems)}",
            hint="uninstall one of the distributions that contradict each other",
            setting=setting,
        )


def _selected(general: GeneralSettings, source: SettingSource) -> GeneralSettings:
    """Return the settings with the backend that a key of the file selects, if none is set."""
    if source.origins["backend"].origin != "default":
        return general
    for plugin in INSTALLED.backends:
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
