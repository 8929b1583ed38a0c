"""Every group of entry points: what is asked for is in the table of groups, and `doctor` names the
plugins that cannot be used.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from sandkasten.model.optional_extras import (
    COMMAND_EXTRAS,
    ROUTE_EXTRAS,
    ROUTE_PLUGINS,
    SECTION_EXTRAS,
)
from sandkasten.plugins.installed import installed
from sandkasten.ports.backend_plugins import BACKENDS_GROUP, BackendPlugin
from sandkasten.ports.settings_plugins import SETTINGS_GROUP, SettingsPlugin
from sandkasten.ports.store_plugins import STORES_GROUP, StorePlugin
from sandkasten_server.api.route_plugins import ROUTES_GROUP, RoutePlugin
from sandkasten_server.cli.command_plugins import COMMANDS_GROUP, CommandPlugin
from sandkasten_server.cli.commands.doctor import plugin_groups
from sandkasten_server.daemon import plugin_problems
from scripts.distributions import directories, installs
from tests.daemon.process import ask, running
from tests.patience import FAR_TOO_LATE_S
from tests.repo import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

GROUPS = sorted(plugin_groups(engine_here=True))
_ASK = "installed"


def _asked_for(source: str) -> tuple[set[str], list[str]]:
    """Return the groups that a module names, and calls that ask for a group without its name."""
    groups: set[str] = set()
    unclear = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(target).endswith("GROUP") for target in targets):
                groups.add(str(node.value.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == _ASK:
            # Other functions of this name take none.
            for group in node.args[:1]:
                if isinstance(group, ast.Constant):
                    groups.add(str(group.value))
                elif not ast.unparse(group).endswith(("GROUP", "group")):
                    unclear.append(ast.unparse(node))
    return groups, unclear


def test_groups_that_a_module_asks_for_are_found() -> None:
    source = (
        "GROUP: Final = 'a.b'\nOTHER_GROUP = 'a.c'\nNAME = 'a.d'\n"
        "found = plugins.installed('a.e', Plugin)\ninstalled(NAME, Plugin)\n"
        "installed(GROUP, Plugin)\nnot_installed(NAME)\ninstalled()\n"
    )
    assert _asked_for(source) == ({"a.b", "a.c", "a.e"}, ["installed(NAME, Plugin)"])


def test_every_group_that_is_asked_for_is_in_the_table() -> None:
    groups: set[str] = set()
    for path in tree.modules().values():
        asked, unclear = _asked_for(path.read_text())
        # `Programs.installed` of linux.programs takes a directory.
        assert [call for call in unclear if "_shipped.installed" not in call] == [], path
        groups |= {group for group in asked if group.startswith("sandkasten.")}
    assert groups == set(GROUPS)


def test_every_group_that_a_distribution_names_is_in_the_table() -> None:
    projects = [tomllib.loads((path / "pyproject.toml").read_text()) for path in directories()]
    named = {group for project in projects for group in project["project"].get("entry-points", {})}
    ours = {group for group in named if group.startswith("sandkasten.")}
    assert ours - set(GROUPS) == set()


def test_a_command_line_for_a_daemon_elsewhere_looks_at_its_commands_alone() -> None:
    assert set(plugin_groups(engine_here=False)) == {COMMANDS_GROUP}
    assert {*plugin_problems.GROUPS, COMMANDS_GROUP} == set(GROUPS)


def test_the_plugins_of_this_project_have_no_problems() -> None:
    assert plugin_problems.plugin_problems() == ()


def _names_of_routes(plugin: RoutePlugin) -> Iterable[str]:
    """Return what the routes of a plugin are below, or the path that it opens with a daemon."""
    for route in plugin.routes():
        above = (path for path in ROUTE_EXTRAS if f"{route.path}/".startswith(f"{path}/"))
        yield max(above, key=len, default=route.path)
    yield from (path for path, name in ROUTE_PLUGINS.items() if name == plugin.name)


def _names_of_commands(plugin: CommandPlugin) -> Iterable[str]:
    return plugin.commands


def _names_of_settings(plugin: SettingsPlugin) -> Iterable[str]:
    return plugin.prefixes


@pytest.mark.parametrize(
    ("group", "kind", "names", "extras"),
    [
        (COMMANDS_GROUP, CommandPlugin, _names_of_commands, COMMAND_EXTRAS),
        (SETTINGS_GROUP, SettingsPlugin, _names_of_settings, SECTION_EXTRAS),
        (ROUTES_GROUP, RoutePlugin, _names_of_routes, ROUTE_EXTRAS),
        (BACKENDS_GROUP, BackendPlugin, lambda plugin: [f"backends.{plugin.name}"], SECTION_EXTRAS),
        (STORES_GROUP, StorePlugin, lambda plugin: ["store"], SECTION_EXTRAS),
    ],
    ids=["commands", "settings", "routes", "backends", "stores"],
)
def test_every_part_of_a_plugin_has_an_extra_that_installs_it(
    group: str,
    kind: type[Any],
    names: Callable[[Any], Iterable[str]],
    extras: Mapping[str, str],
) -> None:
    plugins = installed(group, kind)
    assert plugins.plugins
    for plugin in plugins.plugins:
        parts = list(names(plugin))
        assert parts, plugin.name
        for name in parts:
            assert name in extras, plugin.name
            assert plugins.origins[plugin.name].distribution in installs(extras[name]), name


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a distribution for each group, whose plugin cannot be imported."""
    site = tmp_path / "site"
    for group in GROUPS:
        name = f"broken_{group.rpartition('.')[2]}"
        metadata = site / f"{name}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "entry_points.txt").write_text(f"[{group}]\nbroken = {name}:PLUGIN\n")
    return {"PYTHONPATH": str(site)}


def _sentences(groups: list[str]) -> set[str]:
    return {
        f"{group}: plugin broken (broken_{name}:PLUGIN) of the distribution "
        f"broken-{name.replace('_', '-')} cannot be imported: ModuleNotFoundError: No module named "
        f"'broken_{name}'"
        for group in groups
        for name in [group.rpartition(".")[2]]
    }


def _named(report: dict[str, list[dict[str, str]]]) -> Iterator[str]:
    return (line["state"] for line in report["requirements"] if line["name"] == "plugins")


@pytest.mark.real_start
def test_doctor_names_the_broken_plugin_of_every_group(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    data_dir = str(tmp_path / "data")
    words = ["-m", "sandkasten_server.cli", "--embedded", "--data-dir", data_dir]
    done = subprocess.run(
        [sys.executable, *words, "doctor", "--no-measure", "--json"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=FAR_TOO_LATE_S,
        check=False,
    )
    assert sorted(_named(json.loads(done.stdout))) == sorted(_sentences(GROUPS)), done.stderr


@pytest.mark.real_start
async def test_a_daemon_reports_the_broken_plugin_of_every_group_but_commands(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    async with (
        running(tmp_path / "data", environ=environ) as daemon,
        aiohttp.ClientSession() as http,
    ):
        status, report = await ask(http, "GET", daemon.url + "/v1/doctor")
    assert status == 200
    groups = [group for group in GROUPS if group != COMMANDS_GROUP]
    assert sorted(_named(report)) == sorted(_sentences(groups))
