"""The code interpreter's requests as bytes: tokens, bounds, and charts of a hostile program."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import KernelFailed
from sandkasten_e2b import code_interpreter_routes
from sandkasten_e2b.code_interpreter_routes import _columns, e2b_chart
from tests.e2b_requests import ABSENT, TOKENS, E2b

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.commands.code_values import CodeText

JSON = {"Content-Type": "application/json"}


async def contexts(e2b: E2b, **headers: str) -> int:
    url = f"{e2b.daemon.url}/e2b/contexts"
    async with e2b.daemon.http.get(url, headers=headers) as found:
        return found.status


@pytest.mark.promise("P79")
async def test_contexts_need_one_of_the_two_tokens_of_their_sandbox(e2b):
    box, other = await e2b.create(), await e2b.create()
    token, traffic = TOKENS.token(box), TOKENS.traffic_token(box)
    named = {"E2b-Sandbox-Id": box}
    header = "E2B-Traffic-Access-Token"
    assert await contexts(e2b, **named, **{"X-Access-Token": token}) == 200
    assert await contexts(e2b, **named, **{header: traffic}) == 200
    for headers in (
        {},
        {"X-Access-Token": traffic},
        {header: token},
        {header: TOKENS.traffic_token(other)},
        {header: ""},
        {"X-API-KEY": e2b.key},
    ):
        assert await contexts(e2b, **named, **headers) == 401, headers
    gone = {"E2b-Sandbox-Id": ABSENT, header: TOKENS.traffic_token(ABSENT)}
    assert await contexts(e2b, **gone) == 502
    # The token of the ports opens neither files nor commands.
    headers = {"X-Access-Token": "", header: traffic}
    stat = await e2b.call(box, "/filesystem.Filesystem/Stat", {"path": "/"}, **headers)
    assert stat[0] == 401


async def test_a_request_that_cannot_run_has_a_status(e2b):
    box = await e2b.create()
    unknown = "ctx_python_0123456789abcdef"
    for body, status, word in (
        ({}, 422, "code"),
        ({"code": "1", "context_id": unknown, "language": "python"}, 400, "only one"),
        ({"code": "1", "context_id": unknown}, 404, "context"),
        ({"code": "1", "context_id": "../x"}, 404, "context"),
        ({"code": "1", "language": "no such"}, 400, "language"),
    ):
        found, raw = await e2b.send(box, "/execute", json.dumps(body).encode(), **JSON)
        told = json.loads(raw)
        assert (found, told["code"]) == (status, status), (body.keys(), told)
        assert word in told["message"]
    found, _ = await e2b.send(box, f"/contexts/{unknown}/restart", b"", **JSON)
    assert found == 404


def test_charts_have_the_names_of_e2b():
    elements = [{"label": "a", "x": ["p", "q"], "y": [1, 2]}]
    named = {"title": "T", "x_label": "l [m]", "y_label": ""}
    common = {"title": "T", "x_label": "l [m]", "x_unit": "m", "y_label": None, "y_unit": None}
    assert e2b_chart({"type": "bar", **named, "elements": elements}) == {
        "type": "bar",
        **common,
        "elements": [
            {"label": "p", "value": 1, "group": "a"},
            {"label": "q", "value": 2, "group": "a"},
        ],
    }
    ticks = {"x_ticks": [1.0], "x_tick_labels": ["1"], "x_scale": "linear"}
    line = e2b_chart({"type": "line", **named, **ticks, "elements": elements})
    assert line == {
        "type": "line",
        **common,
        **ticks,
        "y_ticks": [],
        "y_tick_labels": [],
        "y_scale": None,
        "elements": [{"label": "a", "points": [("p", 1), ("q", 2)]}],
    }
    part = {"label": "a", "share": 0.1, "radius": 1}
    pie = e2b_chart({"type": "pie", "title": "", "elements": [part]})
    assert pie == {
        "type": "pie",
        "title": None,
        "elements": [{"label": "a", "angle": 36.0, "radius": 1}],
    }
    several = e2b_chart({"type": "several", "title": "all", "charts": [{"type": "x"}, 7]})
    unknown: dict[str, object] = {"type": "unknown", "title": None, "elements": []}
    assert several == {"type": "superchart", "title": "all", "elements": [unknown]}


@pytest.mark.parametrize(
    "chart",
    [
        None,
        7,
        [],
        {"type": []},
        {"type": "pie", "elements": 7},
        {"type": "pie", "elements": [{"share": "x"}, 7]},
        {"type": "line", "title": {}, "x_label": [], "elements": [{"x": 1, "y": {}}]},
        {"type": "several", "charts": {"a": 1}},
        {"type": "pie", "elements": [{"share": 1e308}]},
    ],
)
def test_what_is_not_a_chart_raises_nothing(chart):
    found = e2b_chart(chart)
    json.dumps(found, allow_nan=False)
    assert found is None or isinstance(found["elements"], list)


@pytest.mark.parametrize(
    "table",
    [
        7,
        {"columns": ["a"], "data": ["text"]},
        {"columns": "abc", "data": [[1, 2, 3]]},
        {"columns": ["a"], "data": "abc"},
        {"columns": ["a", "b"], "data": [[1]]},
    ],
)
def test_a_table_has_rows_that_are_lists(table):
    assert _columns({"columns": ["a"], "data": [[1], [2]]}) == {"a": [1, 2]}
    assert _columns(table) is None


async def test_an_error_after_the_status_is_a_line(e2b, monkeypatch):
    failing = asyncio.Event()

    async def run_late(*_: object) -> AsyncIterator[CodeText]:
        await failing.wait()
        raise KernelFailed("the kernel did not start", hint="try again")
        yield

    monkeypatch.setattr(code_interpreter_routes, "run_shown", run_late)
    monkeypatch.setattr(code_interpreter_routes, "_KEEP_ALIVE_S", 0.01)
    box = await e2b.create()
    headers = {"E2b-Sandbox-Id": box, "X-Access-Token": TOKENS.token(box)}
    url = f"{e2b.daemon.url}/e2b/execute"
    async with e2b.daemon.http.post(url, json={"code": "1"}, headers=headers) as found:
        assert json.loads(await found.content.readline()) == {"type": "keepalive"}
        failing.set()
        rest = [json.loads(line) async for line in found.content]
    error, end = [one for one in rest if one["type"] != "keepalive"]
    assert (error["type"], error["name"]) == ("error", "KERNEL_FAILED")
    assert error["value"].startswith("the kernel did not start")
    assert end == {"type": "end_of_execution"}
