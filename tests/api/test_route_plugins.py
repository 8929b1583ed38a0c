"""Routes of plugins: those that are served, those that cannot be, and those not installed."""

from __future__ import annotations

from typing import Any

import pytest

from sandkasten.model.optional_extras import ROUTE_EXTRAS, install_command
from sandkasten.plugins.installed import Installed
from sandkasten_server.api import route_plugins
from sandkasten_server.api.route import Route
from sandkasten_server.api.route_plugins import RoutePlugin, not_installed
from sandkasten_server.api.routes.route_table import CORE, joined, route_table
from sandkasten_tools.lazy_tools import LazyTools
from tests.api.daemon_in_process import serving


async def _nothing(call):
    return None


def _route(method: str, path: str) -> Route:
    return Route(method, path, _nothing, "A route", "other")  # type: ignore[arg-type]


def _plugin(name: str, *routes: Route) -> RoutePlugin:
    return RoutePlugin(name, routes=lambda: routes)


def test_routes_of_plugins_follow_those_of_the_core():
    mine = _route("GET", "/v1/mine")
    other = _route("POST", "/v1/mine")
    first, second = _plugin("first", mine), _plugin("second", other)
    table = joined([first, second])
    assert table.routes == (*CORE, mine, other)
    assert (table.plugins, table.problems) == ((first, second), ())


def test_a_plugin_with_a_route_of_the_core_is_not_used():
    clashing = _plugin("clashing", _route("GET", "/v1/mine"), _route("GET", "/v1/sessions/{name}"))
    table = joined([clashing], ["an earlier problem"])
    assert (table.routes, table.plugins) == (CORE, ())
    assert table.problems == (
        "an earlier problem",
        "sandkasten.routes: the plugin clashing is not used: another part has its route "
        "GET /v1/sessions/{name} too",
    )


def test_of_two_plugins_with_one_route_neither_is_used():
    twins = [_plugin(name, _route("GET", "/v1/mine")) for name in ("first", "second")]
    table = joined(twins)
    assert (table.routes, table.plugins) == (CORE, ())
    assert [problem.split()[3] for problem in table.problems] == ["first", "second"]


def test_a_plugin_whose_routes_cannot_be_loaded_stops_no_other():
    def broken():
        raise ImportError("no library")

    mine = _plugin("mine", _route("GET", "/v1/mine"))
    table = joined([RoutePlugin("broken", routes=broken), mine])
    assert table.plugins == (mine,)
    assert table.problems == (
        "sandkasten.routes: the routes of the plugin broken cannot be loaded: "
        "ImportError: no library",
    )


def test_the_routes_of_this_project_have_no_problems():
    assert route_table().problems == ()
    assert {plugin.name for plugin in route_table().plugins} >= {"agents", "e2b-protocol", "tools"}


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(route_plugins, "route_plugins", lambda: Installed((), {}, ()))


def test_every_documented_route_of_a_plugin_is_known_without_it(nothing_installed):
    paths = {route.path for route in route_table().routes[len(CORE) :]}
    assert [path for path in paths if not_installed(path) is None] == []
    assert [route.path for route in CORE if not_installed(route.path) is not None] == []


def test_paths_that_only_begin_like_those_of_a_plugin_are_nothing(nothing_installed):
    assert not_installed("/agentsmith") is None
    assert not_installed("/v1/agents/x") is not None


def test_path_of_e2bs_protocol_names_the_extra_that_contains_its_plugin(nothing_installed):
    error = not_installed("/e2b/sandboxes")
    assert error is not None
    assert error.message == (
        "this daemon does not serve /e2b: the plugin e2b-protocol is not installed"
    )
    assert install_command("server") in error.hint


def test_a_plugin_that_cannot_be_used_is_not_reported_as_missing(monkeypatch):
    problem = "sandkasten.routes: plugin agents (x:PLUGIN) of the distribution x cannot be imported"
    plugins = Installed[RoutePlugin]((), {}, (problem,))
    monkeypatch.setattr(route_plugins, "route_plugins", lambda: plugins)
    error = not_installed("/v1/agents")
    assert error is not None
    message = "this daemon does not serve /v1/agents: the plugin agents cannot be used"
    assert error.message == message
    assert error.hint == "on the daemon's machine: sandkasten doctor reports why"
    assert error.operator_message == f"{message}; {problem}"
    other = not_installed("/v1/tools")
    assert other is not None
    assert other.message.endswith("the plugin tools is not installed")


def test_routes_of_an_installed_plugin_are_not_missing():
    assert [path for path in ROUTE_EXTRAS if not_installed(path) is not None] == []


async def test_a_daemon_without_a_plugin_says_how_to_install_it(nothing_installed, engine):
    async with serving(engine) as daemon:
        reply = await daemon.ask("GET", "/v1/agents/a/b")
        assert (reply.status, reply.json["code"]) == (422, "UNSUPPORTED_BY_BACKEND")
        assert reply.json["message"] == (
            "this daemon does not serve /v1/agents: the plugin agents is not installed"
        )
        assert reply.json["hint"] == (
            f"on the daemon's machine: {install_command('agents')}; then restart the daemon"
        )
        assert (await daemon.ask("GET", "/v1/nothing")).status == 404


async def test_tools_do_without_agents(engine):
    no_files: Any = None
    tools = LazyTools(engine, no_files, 4)
    async with serving(engine, services={LazyTools: tools}) as daemon:
        ran = await daemon.ask(
            "POST", "/v1/tools/sandbox_exec", {"arguments": {"command": "echo hi"}}
        )
        assert ran.json["stdout"] == "hi\n"
        assert (await daemon.ask("GET", "/v1/agents")).json["code"] == "UNSUPPORTED_BY_BACKEND"


async def test_doctor_reports_a_plugin_that_cannot_be_used(engine):
    async with serving(engine, plugin_problems=lambda: ("a plugin cannot be used",)) as daemon:
        report = (await daemon.ask("GET", "/v1/doctor")).json
        rows = report["requirements"]
        assert [row for row in rows if row["name"] == "plugins"] == [
            {
                "name": "plugins",
                "ok": False,
                "state": "a plugin cannot be used",
                "remedy": "remove or update the distribution that brings it",
                "required": False,
            }
        ]
