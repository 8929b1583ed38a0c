"""Plugins that raise an exception when they are opened: an error that names the distribution."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest
import typer

from sandkasten.client.server import embedded
from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.errors import (
    BackendUnavailable,
    InvalidConfiguration,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.plugins import installed as installed_plugins
from sandkasten.plugins.installed import Installed, installed
from sandkasten.plugins.plugin_failure import REMEDY, described, opening
from sandkasten.ports.agent_plugins import AGENTS_GROUP
from sandkasten.ports.backend_plugins import BACKENDS_GROUP, BackendPlugin
from sandkasten.ports.settings_plugins import SETTINGS_GROUP
from sandkasten.ports.store_plugins import STORES_GROUP, StorePlugin
from sandkasten.ports.telemetry_plugins import TELEMETRY_GROUP, TelemetryPlugin
from sandkasten_runtime.assembly import store_catalog, telemetry_catalog
from sandkasten_runtime.assembly.backend_registry import open_backing, shared_backends
from sandkasten_runtime.assembly.settings import installed_sections, resolver
from sandkasten_runtime.assembly.shared_store import open_shared
from sandkasten_runtime.backends import backend_catalog
from sandkasten_runtime.images.image_plugins import IMAGES_GROUP, ImagePlugin
from sandkasten_runtime.images.installed_parts import InstalledParts
from sandkasten_server.api.route_plugins import ROUTES_GROUP, RoutePlugin
from sandkasten_server.api.routes.route_table import RouteTable, joined
from sandkasten_server.cli import command_plugins, completions
from sandkasten_server.cli.command_plugins import COMMANDS_GROUP, CommandPlugin
from sandkasten_server.cli.commands.doctor import plugin_groups
from sandkasten_server.daemon import daemon_assembly, shared_records
from sandkasten_server.records.record_plugins import RECORDS_GROUP
from tests.daemon.process import ask, running
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.images.layers.image_store import LayerStore

    Install = Callable[..., None]
    Opener = Callable[[Path, pytest.MonkeyPatch], Awaitable[object]]

_BROKEN = """
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten.settings.setting_fields import setting

def broken(*_):
    raise RuntimeError("no luck")

def section(name, parse=lambda name, value: value):
    @dataclass(frozen=True, slots=True)
    class Options:
        x: str = setting(name, parse, "", "A string.")
        def completed(self, context): return self
    return Options
"""
_RAISE = 'raise RuntimeError("no luck")'
_PANIC = 'raise type("Panic", (BaseException,), {"__module__": "pyo3_runtime"})("no luck")'
_MUTE = 'raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})'
# What a plugin does, and how the exception is described: its type and its text.
RAISED = pytest.mark.parametrize(
    ("raising", "kind", "text"),
    [
        (_RAISE, "RuntimeError", "no luck"),
        ('raise SystemExit("no luck")', "SystemExit", "no luck"),
        (_PANIC, "Panic", "no luck"),
        (_MUTE, "Mute", "its text cannot be read: ZeroDivisionError"),
    ],
    ids=["error", "exit", "panic", "mute"],
)
_SECTION = _BROKEN + "Options = section({name!r})\nOptions.{method} = broken\n"
_BACKEND = """
PLUGIN = BackendPlugin(
    "bad", Capabilities(1), lambda _: {}, settings=Options, shares={shares}
)
"""
_SETTINGS = (
    "from sandkasten.ports.settings_plugins import SettingsPlugin\n"
    "PLUGIN = SettingsPlugin('bad', ('bad',), (Options,))\n"
)
_STORE = (
    "from sandkasten.ports.store_plugins import StorePlugin\n"
    "PLUGIN = StorePlugin('bad', {is_active}, {open}, settings={settings})\n"
)
_RECORDS = (
    "from sandkasten_server.records.record_plugins import RecordsPlugin\n"
    "PLUGIN = RecordsPlugin('bad', broken)\n"
)
_IMAGES = (
    "from sandkasten_runtime.images.image_plugins import ImagePlugin\n"
    "PLUGIN = ImagePlugin('bad', broken, broken, broken)\n"
)
_TELEMETRY = (
    "from types import SimpleNamespace\n"
    "from sandkasten.ports.telemetry_plugins import TelemetryPlugin\n"
    "opened = SimpleNamespace(tracing=broken, metrics=broken)\n"
    "PLUGIN = TelemetryPlugin('bad', {open})\n"
)
_AGENTS = (
    "from sandkasten.ports.agent_plugins import AgentsPlugin\n"
    "PLUGIN = AgentsPlugin('bad', broken)\n"
)
_ROUTES = (
    "from contextlib import asynccontextmanager\n"
    "from sandkasten_server.api.route_plugins import OpenedRoutes, RoutePlugin\n"
    "@asynccontextmanager\nasync def opened(_): yield OpenedRoutes(names=broken)\n"
    "PLUGIN = RoutePlugin('bad', {parts})\n"
)
_COMMANDS = (
    "from sandkasten_server.cli.command_plugins import CommandPlugin, PluginCommand\n"
    "PLUGIN = CommandPlugin('bad', {'bad': PluginCommand('Other', 'bad_plugin:broken')})\n"
)


def _loaded(
    site: Path, monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings as a process reads them that started with the plugins of the site."""
    monkeypatch.setattr(backend_catalog, "INSTALLED", installed(BACKENDS_GROUP, BackendPlugin))
    monkeypatch.setattr(resolver, "INSTALLED", installed_sections.installed_sections())
    return resolver.load({"data_dir": str(site / "data")}, environ or {}, site)


async def _load(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _loaded(site, monkeypatch)


async def _load_with_value(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _loaded(site, monkeypatch, {"SANDKASTEN_BAD_X": "x"})


async def _find_shared_backends(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_backends(_loaded(site, monkeypatch))


async def _open_store(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_shared(_loaded(site, monkeypatch))


async def _open_records(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StorePlugin("bad", lambda _: True, cast("Any", None))
    monkeypatch.setattr(store_catalog, "store_plugins", lambda: (store,))
    shared_records.shared_records(_loaded(site, monkeypatch), cast("Any", None))


def _parts(site: Path) -> InstalledParts:
    return InstalledParts(installed(IMAGES_GROUP, ImagePlugin, path=[str(site)]))


async def _open_builder(site: Path, _: pytest.MonkeyPatch) -> None:
    _parts(site).builder(cast("Any", None))


async def _open_packages(site: Path, _: pytest.MonkeyPatch) -> None:
    _parts(site).packages(cast("Any", None))


async def _open_signatures(site: Path, _: pytest.MonkeyPatch) -> None:
    _parts(site).signatures(cast("Any", ["a rule"]))


async def _open_agents(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_site = partial(installed, path=[str(site)])
    monkeypatch.setattr(installed_plugins, "installed", on_site)
    async with embedded.open_agents(ServerAddress(str(site / "data"))):
        pass


async def _open_exporter(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = installed(TELEMETRY_GROUP, TelemetryPlugin, path=[str(site)])
    monkeypatch.setattr(telemetry_catalog, "telemetry_plugins", lambda: plugins)
    telemetry_catalog.open_exporter(resolver.load({}, {}, site)).tracing()


def _routes(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = installed(ROUTES_GROUP, RoutePlugin, path=[str(site)]).plugins
    monkeypatch.setattr(daemon_assembly, "route_table", lambda: RouteTable((), plugins, ()))


async def _open_routes(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _routes(site, monkeypatch)
    async with AsyncExitStack() as stack:
        opened = await daemon_assembly._open_plugins(cast("Any", None), stack)
        daemon_assembly._with_names(opened, cast("Any", None), cast("Any", None))


async def _find_addresses(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _routes(site, monkeypatch)
    daemon_assembly._api_addresses(resolver.load({}, {}, site))


async def _add_command(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = installed(COMMANDS_GROUP, CommandPlugin, path=[str(site)])
    monkeypatch.setattr(command_plugins, "_installed", lambda: plugins)
    command_plugins.add("bad_plugin:broken", typer.Typer())


def _section(name: str, method: str) -> str:
    return _SECTION.format(name=name, method=method)


_KEPT = _BROKEN + "Options = section({name!r}, {parse})\n"
CASES: Mapping[str, tuple[tuple[str, Opener], ...]] = {
    BACKENDS_GROUP: (
        (_section("backends.bad.x", "completed") + _BACKEND.replace("{shares}", "bool"), _load),
        (
            _section("backends.bad.x", "named_backends") + _BACKEND.replace("{shares}", "bool"),
            _load,
        ),
        (
            _KEPT.format(name="backends.bad.x", parse="lambda *_: ''")
            + _BACKEND.replace("{shares}", "broken"),
            _find_shared_backends,
        ),
    ),
    SETTINGS_GROUP: (
        (_section("bad.x", "completed") + _SETTINGS, _load),
        (_KEPT.format(name="bad.x", parse="broken") + _SETTINGS, _load_with_value),
    ),
    STORES_GROUP: (
        (_section("store.bad", "completed")
         + _STORE.format(is_active="bool", open="broken", settings="(Options,)"), _load),
        (_BROKEN + _STORE.format(is_active="broken", open="broken", settings="()"), _open_store),
        (_BROKEN + _STORE.format(is_active="lambda _: True", open="broken", settings="()"),
         _open_store),
    ),
    RECORDS_GROUP: ((_BROKEN + _RECORDS, _open_records),),
    IMAGES_GROUP: (
        (_BROKEN + _IMAGES, _open_builder),
        (_BROKEN + _IMAGES, _open_packages),
        (_BROKEN + _IMAGES, _open_signatures),
    ),
    AGENTS_GROUP: ((_BROKEN + _AGENTS, _open_agents),),
    TELEMETRY_GROUP: (
        (_BROKEN + _TELEMETRY.format(open="broken"), _open_exporter),
        (_BROKEN + _TELEMETRY.format(open="lambda _: opened"), _open_exporter),
    ),
    ROUTES_GROUP: (
        (_BROKEN + _ROUTES.format(parts="open=broken"), _open_routes),
        (_BROKEN + _ROUTES.format(parts="open=opened"), _open_routes),
        (_BROKEN + _ROUTES.format(parts="addresses=broken"), _find_addresses),
    ),
    COMMANDS_GROUP: ((_BROKEN + _COMMANDS, _add_command),),
}  # fmt: skip
_ROWS = [
    pytest.param(group, source, opener, id=f"{group.rpartition('.')[2]}{number}")
    for group, rows in CASES.items()
    for number, (source, opener) in enumerate(rows)
]


def test_every_group_is_in_the_table_of_failures() -> None:
    assert set(CASES) == set(plugin_groups(engine_here=True))


@RAISED
@pytest.mark.parametrize(("group", "source", "opener"), _ROWS)
async def test_exception_of_a_plugin_is_an_error_that_names_its_distribution(
    site: Path,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    source: str,
    opener: Opener,
    raising: str,
    kind: str,
    text: str,
) -> None:
    install("bad_plugin", source.replace(_RAISE, raising), group=group)
    with pytest.raises(SandkastenError) as caught:
        await opener(site, monkeypatch)
    plugin = "plugin bad_plugin (bad_plugin:PLUGIN) of the distribution bad-plugin"
    assert caught.value.message == (
        f"bad_plugin:broken of the {plugin} cannot be added: {kind}: {text}"
        if group == COMMANDS_GROUP
        else f"{group}: {plugin} cannot be opened: {kind}: {text}"
    )
    assert caught.value.hint == REMEDY == "update or remove the distribution that brings it"


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, InvalidConfiguration]
)
def test_what_is_no_failure_of_the_plugin_passes(kind: type[BaseException]) -> None:
    passing = kind("x")
    with pytest.raises(kind) as caught, opening(BACKENDS_GROUP, "bad"):
        raise passing
    assert caught.value is passing


async def test_agents_that_cannot_be_used_are_not_reported_as_missing(
    site: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("bad_plugin", _RAISE, group=AGENTS_GROUP)
    with pytest.raises(InvalidConfiguration, match="cannot be imported: Runtime") as caught:
        await _open_agents(site, monkeypatch)
    assert caught.value.hint == REMEDY


async def test_two_plugins_of_agents_are_refused(
    site: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("bad_plugin", _BROKEN + _AGENTS, group=AGENTS_GROUP)
    install("other", (_BROKEN + _AGENTS).replace("'bad'", "'other'"), group=AGENTS_GROUP)
    with pytest.raises(InvalidConfiguration, match="bad and other both provide agents"):
        await _open_agents(site, monkeypatch)


def test_a_plugin_of_no_distribution_is_described_by_its_name() -> None:
    assert described(BACKENDS_GROUP, "local") == "plugin local"


class _Events:
    def __init__(self) -> None:
        self.emitted: list[tuple[str, Mapping[str, object]]] = []

    def emit(self, event: str, fields: Mapping[str, object]) -> None:
        self.emitted.append((event, fields))


@RAISED
async def test_backend_whose_plugin_raises_is_not_available_and_stops_no_other(
    site: Path,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    raising: str,
    kind: str,
    text: str,
) -> None:
    source = _BROKEN.replace(_RAISE, raising)
    install("bad_plugin", source + "PLUGIN = BackendPlugin('bad', Capabilities(1), broken)\n")
    events = _Events()
    backing = open_backing(_loaded(site, monkeypatch), cast("LayerStore", None), events)
    bad = backing.backends["bad"]
    assert "local" in backing.backends
    plugin = "plugin bad_plugin (bad_plugin:PLUGIN) of the distribution bad-plugin"
    problem = f"{BACKENDS_GROUP}: {plugin} cannot be opened: {kind}: {text}"
    assert events.emitted == [("plugin.unusable", {"problem": problem})]

    probed = await bad.probe()
    assert (probed.ready, probed.remedy) == (False, REMEDY)
    assert probed.reason == f"{plugin} cannot be opened: {kind}; {text}"
    for _ in range(2):
        # Its sandboxes are not taken for gone. The text of the exception is for operators.
        with pytest.raises(BackendUnavailable) as caught:
            await bad.owned()
        assert str(caught.value.message) == f"{plugin} cannot be opened: {kind}"


@RAISED
def test_routes_that_cannot_be_loaded_name_the_distribution(
    site: Path, install: Install, raising: str, kind: str, text: str
) -> None:
    source = _BROKEN.replace(_RAISE, raising) + _ROUTES.format(parts="routes=broken")
    install("bad_plugin", source, group=ROUTES_GROUP)
    table = joined(installed(ROUTES_GROUP, RoutePlugin, path=[str(site)]).plugins)
    assert table.plugins == ()
    assert table.problems == (
        "sandkasten.routes: the routes of the plugin bad_plugin (bad_plugin:PLUGIN) of the "
        f"distribution bad-plugin cannot be loaded: {kind}: {text}",
    )


@RAISED
def test_plugin_that_cannot_be_imported_is_a_problem(
    site: Path, install: Install, raising: str, kind: str, text: str
) -> None:
    install("bad_plugin", raising)
    problems = installed(BACKENDS_GROUP, BackendPlugin, path=[str(site)]).problems
    assert problems == (
        f"{BACKENDS_GROUP}: plugin bad_plugin (bad_plugin:PLUGIN) of the distribution bad-plugin "
        f"cannot be imported: {kind}: {text}",
    )


@pytest.fixture
def _no_command_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Installed[CommandPlugin]((), {}, ())
    monkeypatch.setattr(command_plugins, "_installed", lambda: plugins)


@RAISED
@pytest.mark.usefixtures("_no_command_plugins")
def test_command_that_cannot_be_imported_is_an_error(
    install: Install, raising: str, kind: str, text: str
) -> None:
    install("bad_plugin", raising, group=COMMANDS_GROUP)
    with pytest.raises(UnsupportedByBackend) as caught:
        command_plugins.loaded("bad_plugin:broken")
    assert caught.value.message == (
        f"bad_plugin:broken of a plugin cannot be imported: {kind}: {text}"
    )


@RAISED
@pytest.mark.usefixtures("_no_command_plugins")
async def test_completion_that_raises_is_an_error(
    install: Install, monkeypatch: pytest.MonkeyPatch, raising: str, kind: str, text: str
) -> None:
    install("bad_plugin", _BROKEN.replace(_RAISE, raising), group=COMMANDS_GROUP)
    bad = command_plugins.PluginCommands({}, {"bad": "bad_plugin:broken"}, ())
    monkeypatch.setattr(completions, "command_plugins", lambda: bad)
    words = completions._words("bad")
    assert words is not None
    with pytest.raises(UnsupportedByBackend) as caught:
        await words(cast("Any", None), cast("Any", None))
    assert caught.value.message == (
        f"bad_plugin:broken of a plugin cannot be called: {kind}: {text}"
    )


def test_exceptions_of_a_command_that_runs_are_not_changed(install: Install) -> None:
    source = "def add(app):\n    @app.command('bad')\n    def bad(): raise SystemExit(3)\n"
    install("bad_plugin", source, group=COMMANDS_GROUP)
    app = typer.Typer()
    command_plugins.add("bad_plugin:add", app)
    with pytest.raises(SystemExit) as ended:
        app([])
    assert ended.value.code == 3


def test_store_that_is_refused_for_its_settings_stops_nothing(
    site: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _section("data_dir", "completed")
    source += _STORE.format(is_active="broken", open="broken", settings="(Options,)")
    install("bad_plugin", source, group=STORES_GROUP)
    settings = _loaded(site, monkeypatch)
    assert "has the setting data_dir" in settings.warnings[0]
    assert store_catalog.active_store(settings) is None


@pytest.mark.real_start
@pytest.mark.parametrize(
    ("group", "source"),
    [
        (STORES_GROUP, CASES[STORES_GROUP][2][0]),
        (SETTINGS_GROUP, CASES[SETTINGS_GROUP][0][0]),
        (ROUTES_GROUP, CASES[ROUTES_GROUP][0][0]),
    ],
    ids=["stores", "settings", "routes"],
)
def test_daemon_does_not_start_and_names_the_distribution(
    site: Path, install: Install, group: str, source: str
) -> None:
    install("bad_plugin", source, group=group)
    words = ["-m", "sandkasten_server.cli", "--data-dir", str(site / "data")]
    done = subprocess.run(
        [sys.executable, *words, "serve", "--listen", "127.0.0.1:0"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=FAR_TOO_LATE_S,
        check=False,
    )
    assert done.returncode == 125, done.stderr
    output = " ".join(done.stderr.split())
    assert f"error: {group}: plugin bad_plugin (bad_plugin:PLUGIN) of the distribution" in output
    assert f"RuntimeError: no luck hint: {REMEDY}" in output
    assert "Traceback" not in output


@pytest.mark.real_start
async def test_daemon_starts_without_a_backend_that_cannot_be_opened(
    site: Path, install: Install
) -> None:
    install("bad_plugin", _BROKEN + "PLUGIN = BackendPlugin('bad', Capabilities(1), broken)\n")
    async with (
        running(site / "data", environ={"PYTHONPATH": str(site)}) as daemon,
        aiohttp.ClientSession() as http,
    ):
        _, report = await ask(http, "GET", daemon.url + "/v1/backends")
    [bad] = [backend for backend in report["backends"] if backend["name"] == "bad"]
    plugin = "plugin bad_plugin (bad_plugin:PLUGIN) of the distribution bad-plugin"
    assert (bad["ready"], bad["remedy"]) == (False, REMEDY)
    assert bad["reason"] == f"{plugin} cannot be opened: RuntimeError; no luck"
