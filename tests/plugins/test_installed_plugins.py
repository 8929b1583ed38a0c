"""Plugins of other distributions are loaded, and those that cannot be used are problems."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, cast

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.plugins.installed import Installed, installed
from sandkasten.ports.backend_plugins import BACKENDS_GROUP, BackendPlugin
from sandkasten.ports.plugin_interface import INTERFACE
from sandkasten.ports.settings_plugins import SETTINGS_GROUP, SettingsPlugin
from sandkasten.ports.store_plugins import STORES_GROUP, StorePlugin
from sandkasten_runtime.assembly.backend_registry import open_backing
from sandkasten_runtime.assembly.settings import installed_sections, resolver
from sandkasten_runtime.assembly.settings.installed_sections import (
    InstalledSections,
    without_conflicts,
)
from sandkasten_runtime.backends.backend_catalog import CORE
from sandkasten_runtime.backends.plugin_rules import unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sandkasten.ports import Backend
    from sandkasten_runtime.images.layers.image_store import LayerStore

    Install = Callable[..., None]

_PLUGIN = """
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.ports.backend_plugins import BackendPlugin

PLUGIN = BackendPlugin({name!r}, Capabilities(strength=1), lambda context: {{}}, {interface})
"""

_SECTION = """
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten.ports.settings_plugins import SettingsPlugin
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import string

@dataclass(frozen=True, slots=True)
class Options:
    x: str = setting("{setting}", string, "", "A string.", {more})
"""
_BACKEND = (
    _SECTION.replace("{more})", "{more})\n    def completed(self, context): return self\n")
    + """
PLUGIN = BackendPlugin("{name}", Capabilities(1), lambda context: {{}}, settings=Options)
"""
)
_SETTINGS = (
    _SECTION
    + """
PLUGIN = SettingsPlugin("{name}", ("{setting}".partition(".")[0],), (Options,))
"""
)


def _plugin(name: str, interface: int = INTERFACE) -> str:
    return dedent(_PLUGIN).format(name=name, interface=interface)


def _incomplete(setting: str) -> str:
    source = _BACKEND.replace("    def completed(self, context): return self\n", "")
    return source.format(setting=setting, name="bad", more="")


def _backend(name: str, setting: str, more: str = "") -> str:
    return _BACKEND.format(name=name, setting=setting, more=more)


def _settings(name: str, setting: str, more: str = "") -> str:
    return _SETTINGS.format(name=name, setting=setting, more=more)


def _backends(site: Path) -> Installed[BackendPlugin]:
    names = [plugin.name for plugin in CORE]
    path = [str(site), str(site), str(site / "missing")]
    return installed(BACKENDS_GROUP, BackendPlugin, partial(unusable, core=names), path)


def _all(site: Path) -> InstalledSections:
    settings = installed(SETTINGS_GROUP, SettingsPlugin, installed_sections.unusable, [str(site)])
    stores = installed(STORES_GROUP, StorePlugin, installed_sections.unusable_store, [str(site)])
    return without_conflicts(CORE, _backends(site), stores, settings)


def test_plugin_of_another_distribution_is_found_once(site: Path, install: Install) -> None:
    install("first_plugin", _plugin("second"))
    install("second_plugin", _plugin("first"))
    install("other_group", "", group="another.program")

    backends = _backends(site)

    assert [plugin.name for plugin in backends.plugins] == ["first", "second"]
    assert backends.origins["first"].distribution == "second-plugin"
    assert backends.problems == ()


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        ("import does_not_exist", "", "cannot be imported: ModuleNotFoundError"),
        ("raise RuntimeError('broken')", "", "cannot be imported: RuntimeError: broken"),
        ("raise SystemExit(3)", "", "cannot be imported: SystemExit: 3"),
        (
            "class Panic(BaseException): ...\nraise Panic('broken')",
            "",
            "cannot be imported: Panic: broken",
        ),
        ("", "", "cannot be imported: AttributeError"),
        ("PLUGIN = 5", "", "is not a BackendPlugin"),
        (_plugin("bad"), "bad_plugin", "must name an object, as in bad_plugin:PLUGIN"),
        (_plugin("bad", INTERFACE + 1), "", f"requires plugin interface {INTERFACE + 1}"),
        (_plugin("local"), "", "has the name local, which a backend of the core has"),
        (_plugin("gvisor"), "", "has the name gvisor, which a backend of the core has"),
        (_plugin("Bad/Name"), "", "has the name 'Bad/Name', which is not a valid name"),
        (
            _plugin("bad").replace("'bad'", "['bad']"),
            "",
            "has the name ['bad'], which is not a string",
        ),
        (_backend("bad", "data_dir"), "", "has the setting data_dir, which must begin with"),
        (_backend("bad", "backends.good.x"), "", "must begin with backends.bad."),
        (_incomplete("backends.bad.x"), "", "without a method named completed"),
        (_plugin("bad").replace(", 1)", ", settings=int)"), "", "not a dataclass"),
        (
            _backend("bad", "backends.bad.x").replace(
                "settings=Options", "settings=Options, selecting_keys=('backend',)"
            ),
            "",
            "is selected by the key backend, which is not a key of its settings",
        ),
    ],
    ids=[
        "import",
        "raises",
        "exits",
        "panics",
        "attribute",
        "type",
        "target",
        "interface",
        "local",
        "gvisor",
        "name",
        "name of another type",
        "setting of the core",
        "setting of another",
        "no method",
        "no section",
        "selecting key",
    ],
)
def test_plugin_that_cannot_be_used_is_a_problem_and_stops_no_other(
    site: Path, install: Install, source: str, target: str, problem: str
) -> None:
    install("bad_plugin", source, target=target)
    install("good_plugin", _plugin("good"))

    backends = _backends(site)

    assert [plugin.name for plugin in backends.plugins] == ["good"]
    [message] = backends.problems
    assert message.startswith("sandkasten.backends: plugin bad_plugin (bad_plugin")
    assert "of the distribution bad-plugin" in message
    assert problem in message


def test_of_two_plugins_with_one_name_neither_is_used(site: Path, install: Install) -> None:
    install("first_plugin", _plugin("same"))
    install("second_plugin", _plugin("same"))
    install("third_plugin", _plugin("other"))

    backends = _backends(site)

    assert [plugin.name for plugin in backends.plugins] == ["other"]
    [message] = backends.problems
    assert "first-plugin and plugin second_plugin" in message
    assert message.endswith("of the distribution second-plugin have the same name, same; none of "
                            "them is used")  # fmt: skip


@pytest.mark.parametrize(
    ("source", "group", "conflict"),
    [
        (_backend("data", "backends.data.dir"), BACKENDS_GROUP, "variable SANDKASTEN_DATA_DIR"),
        (_backend("url", "backends.url.x", "aliases=('SANDKASTEN_URL',)"), BACKENDS_GROUP,
         "variable SANDKASTEN_URL"),
        (_backend("x", "backends.x.x", "aliases=('STATION_SANDBOX_DIR',)"), BACKENDS_GROUP,
         "variable STATION_SANDBOX_DIR"),
        (_backend("x", "backends.x.x", "keys=('data_dir',)"), BACKENDS_GROUP, "setting data_dir"),
        (_settings("x", "backend"), SETTINGS_GROUP, "setting backend"),
        (_settings("x", "policy.network.x"), SETTINGS_GROUP, "setting policy.network"),
        (_settings("x", "policy"), SETTINGS_GROUP, "setting policy"),
        (_settings("x", "x.y", "shared_aliases=('SANDKASTEN_BACKEND',)"), SETTINGS_GROUP,
         "variable SANDKASTEN_BACKEND"),
    ],
    ids=["variable", "client", "alias", "key", "setting", "below", "above", "shared"],
)  # fmt: skip
def test_plugin_that_declares_something_of_the_core_is_not_used(
    site: Path, install: Install, source: str, group: str, conflict: str
) -> None:
    install("bad_plugin", source, group=group)
    install("good_plugin", _backend("good", "backends.good.x"))

    usable = _all(site)

    assert [plugin.name for plugin in usable.backends][len(CORE) :] == ["good"]
    assert usable.settings == ()
    [message] = usable.problems
    assert message.endswith(f"declares the {conflict}, which belongs to Sandkasten itself")
    assert message.startswith(f"{group}: plugin bad_plugin")


def test_plugin_that_would_read_the_key_of_the_daemon_is_not_used(
    site: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("api_plugin", _backend("api", "backends.api.key"))
    ours = resolver.INSTALLED
    settings = installed(SETTINGS_GROUP, SettingsPlugin, installed_sections.unusable)
    stores = installed(STORES_GROUP, StorePlugin, installed_sections.unusable_store)
    usable = without_conflicts(CORE, _backends(site), stores, settings)
    assert usable.settings == ours.settings
    assert len(usable.backends) == len(CORE)
    [message] = usable.problems
    assert "declares the variable SANDKASTEN_API_KEY" in message

    monkeypatch.setattr(resolver, "INSTALLED", usable)
    monkeypatch.setattr(resolver, "CAPABILITIES", {"api": Capabilities(1)})
    monkeypatch.setattr(resolver, "check_backend", lambda *_: None)
    loaded = resolver.load({}, {"SANDKASTEN_API_KEY": "k" * 20}, site)
    assert message in loaded.warnings
    assert "api" not in loaded.plugins
    with pytest.raises(InvalidConfiguration, match="whose plugin cannot be used") as refused:
        resolver._check_named("api", {})
    assert message in refused.value.message


def test_two_plugins_that_read_one_variable_are_both_refused(site: Path, install: Install) -> None:
    install("first_plugin", _backend("first", "backends.first.x", "aliases=('TOKEN',)"))
    install("second_plugin", _settings("second", "second.x", "aliases=('TOKEN',)"),
            group=SETTINGS_GROUP)  # fmt: skip
    usable = _all(site)
    assert usable.backends == CORE
    assert usable.settings == ()
    assert len(usable.problems) == 2
    for message in usable.problems:
        assert "declares the variable TOKEN" in message
        assert "first_plugin" in message
        assert "second_plugin" in message


def test_two_plugins_may_share_a_variable_if_both_say_so(site: Path, install: Install) -> None:
    shared = "shared_aliases=('TOKEN',)"
    install("first_plugin", _backend("first", "backends.first.x", shared))
    install("second_plugin", _backend("second", "backends.second.x", shared))
    assert _all(site).problems == ()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (_settings("x", "backends.local.x"), "which only a plugin of a backend may have"),
        (
            _settings("x", "other.x").replace('partition(".")[0]', "title()"),
            "be below one of: Other.X",
        ),
        (_settings("X", "x.y"), "not a valid name"),
        (_settings("x", "x.y").replace("(Options,)", "(int,)"), "not a dataclass"),
        (_plugin("x"), "is not a SettingsPlugin"),
    ],
    ids=["backend", "prefix", "name", "section", "kind"],
)
def test_settings_plugin_that_cannot_be_used_is_a_problem(
    site: Path, install: Install, source: str, problem: str
) -> None:
    install("bad_plugin", source, group=SETTINGS_GROUP)
    usable = _all(site)
    assert usable.settings == ()
    [message] = usable.problems
    assert problem in message


def test_section_of_another_distribution_is_read(
    site: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("mine", _settings("mine", "mine.x"), group=SETTINGS_GROUP)
    monkeypatch.setattr(resolver, "INSTALLED", installed_sections.installed_sections())
    [plugin] = [entry for entry in resolver.INSTALLED.settings if entry.name == "mine"]
    [section] = plugin.sections
    loaded = resolver.load({}, {"SANDKASTEN_MINE_X": "far"}, site)
    options = loaded.of(section)
    assert getattr(options, "x") == "far"  # noqa: B009  (its class is of another distribution)
    assert loaded.warnings == ()


def test_section_whose_plugin_is_not_used_is_refused(site: Path) -> None:
    [other] = resolver.INSTALLED.stores
    loaded = resolver.load({}, {}, site)
    loaded = replace(loaded, sections={})
    with pytest.raises(InvalidConfiguration, match="store_settings are not available"):
        loaded.of(other.settings[0])


def test_store_whose_settings_are_not_below_store_is_not_used(site: Path, install: Install) -> None:
    source = _SECTION.format(setting="data_dir", more="") + (
        "from sandkasten.ports.store_plugins import StorePlugin\n"
        "PLUGIN = StorePlugin('x', lambda settings: False, None, settings=(Options,))\n"
    )
    install("bad_plugin", source, group=STORES_GROUP)
    usable = _all(site)
    assert usable.stores == ()
    [message] = usable.problems
    assert "has the setting data_dir, which must be or be below one of: store" in message


class _Events:
    def __init__(self) -> None:
        self.emitted: list[tuple[str, Mapping[str, object]]] = []

    def emit(self, event: str, fields: Mapping[str, object]) -> None:
        self.emitted.append((event, fields))


def test_plugin_that_opens_a_backend_of_another_name_is_not_used(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opens(name: str, *backends: str) -> BackendPlugin:
        opened = dict.fromkeys(backends, cast("Backend", None))
        return BackendPlugin(name, Capabilities(1), lambda context: opened)

    plugins = (opens("good", "good", "good/other"), opens("bad", "local"), opens("x", "xy", "x"))
    sections = replace(resolver.INSTALLED, backends=(*CORE, *plugins))
    monkeypatch.setattr(resolver, "INSTALLED", sections)
    loaded = resolver.load({"data_dir": str(site / "data")}, {}, site)
    events = _Events()
    backing = open_backing(loaded, cast("LayerStore", None), events)
    assert set(backing.backends) == {*(plugin.name for plugin in CORE), "good", "good/other"}
    assert backing.backends["local"] is not None
    assert [fields["foreign_names"] for _, fields in events.emitted] == ["local", "xy"]


@pytest.mark.parametrize(
    ("named", "foreign"),
    [
        (("good", "good/other"), None),
        (("local",), "local"),
        (("good", "other/good"), "other/good"),
        (("good2",), "good2"),
    ],
    ids=["own", "core", "below another", "longer"],
)
def test_section_that_configures_a_backend_of_another_plugin_is_refused(
    site: Path,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[str, ...],
    foreign: str | None,
) -> None:
    source = _backend("good", "backends.good.x") + (
        "from sandkasten.model.backends.named_backends import NamedBackendRules\n"
        f"Options.named_backends = lambda self: dict.fromkeys({named!r}, NamedBackendRules())\n"
    )
    install("good_plugin", source)
    monkeypatch.setattr(resolver, "INSTALLED", _all(site))
    if foreign is None:
        assert tuple(resolver.load({}, {}, site).policy.named_backends) == named
        return
    with pytest.raises(InvalidConfiguration) as caught:
        resolver.load({}, {}, site)
    assert caught.value.message == (
        "plugin good_plugin (good_plugin:PLUGIN) of the distribution good-plugin configures the "
        f"backend {foreign}, and may only configure good and good/NAME"
    )
    assert caught.value.details == {"setting": "backends.good"}
