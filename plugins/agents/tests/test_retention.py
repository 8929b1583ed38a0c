"""Sessions that outlive their run: asked for, bounded by the operator, and reopened by key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkasten.errors import InvalidAgent, InvalidRequest, PolicyDenied, SandkastenError
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.runs.run_values import AgentRunRequest, WorkflowRunRequest
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.agents.agency import DEFAULT_TENANT, FLOW, READER, WRITER, house
from tests.models.server import Answer, Call

SHARED = "sandbox: {mode: code, runtime: bash, session: workflow}"
KEPT = "sandbox: {mode: code, runtime: bash, session: {name: workflow, retain: 30m}}"
KEEPER = WRITER.replace(SHARED, KEPT)


@pytest.fixture
async def home(tmp_path):
    async with house(tmp_path, backend="unisolated") as one:
        yield one


@pytest.mark.promise("P64")
async def test_a_retained_session_is_reopened_by_its_key_with_its_files(home):
    row = await home.agent("keeper", "hello", source=KEEPER)
    key = f"agent:{row.id}:default"
    assert row.status == "completed", row.error
    [info] = await home.engine.list()
    assert dict(row.retained) == {key: info.id}
    assert "session.retained" in await home.types(row)
    reopened = await home.engine.create(CreateRequest(session_key=key))
    assert (reopened.id, reopened.created) == (info.id, False)
    read = await home.engine.exec(info.id, ExecRequest("cat note.txt"))
    assert read.stdout == b"hello\n"
    # It ends by itself, and nothing renews it.
    assert reopened.idle_timeout_s == 1800
    assert 1800 <= reopened.lifetime_s <= 1860


async def test_a_session_without_retention_is_gone_and_so_is_that_of_a_cancelled_run(home):
    row = await home.agent("writer", "hello")
    assert (dict(row.retained), await home.sandboxes()) == ({}, [])
    row = await home.service.start_agent(AgentRunRequest("keeper", "hang", source=KEEPER))
    await home.heard(row, "tool.answered")
    cancelled = await home.service.cancel(row.id, DEFAULT_TENANT)
    assert (cancelled.status, dict(cancelled.retained)) == ("cancelled", {})
    assert await home.sandboxes() == []


async def test_a_failed_run_keeps_its_session(tmp_path):
    def script(asked):
        if asked.turn == 0:
            return Answer(calls=[Call("sandbox_open", {})])
        return Answer(status=400, raw=b'{"error": {"message": "no"}}')

    async with house(tmp_path, backend="unisolated", script=script) as home:
        row = await home.agent("broken", "x", source=KEEPER)
        assert row.status == "failed"
        assert list(row.retained) == [f"agent:{row.id}:default"]


@pytest.mark.parametrize("how", ["the workflow", "the request", "an agent that joins"])
async def test_the_session_of_a_workflow_can_be_retained(tmp_path, how):
    flow = FLOW + ("session: {retain: 10m}\n" if how == "the workflow" else "")
    files = {"workflows/flow.yaml": flow}
    if how == "an agent that joins":
        joined = "session: {name: workflow, retain: 600}"
        files["agents/reader.prompt"] = READER.replace("session: workflow", joined)
    async with house(tmp_path, backend="unisolated", files=files) as home:
        retain = 600.0 if how == "the request" else None
        row = await home.flow("flow", {"text": "abc"}, retain_seconds=retain)
        assert row.status == "completed", row.error
        [info] = await home.engine.list()
        assert dict(row.retained) == {f"workflow:{row.id}:default": info.id}
        assert info.idle_timeout_s == 600


async def test_a_request_can_turn_the_retention_of_an_agent_off(home):
    row = await home.agent("keeper", "hello", source=KEEPER, retain_seconds=0)
    assert row.status == "completed", row.error
    assert (dict(row.retained), await home.sandboxes()) == ({}, [])


@pytest.mark.parametrize("name", ["workflow", "isolated"])
async def test_a_request_can_turn_the_retention_of_a_workflow_off(tmp_path, name):
    joined = f"session: {{name: {name}, retain: 600}}"
    files = {
        "workflows/flow.yaml": FLOW + "session: {retain: 10m}\n",
        "agents/reader.prompt": READER.replace("session: workflow", joined),
    }
    async with house(tmp_path, backend="unisolated", files=files) as home:
        row = await home.flow("flow", {"text": "abc"}, retain_seconds=0)
        assert (dict(row.retained), await home.sandboxes()) == ({}, [])


async def test_a_daemons_sweep_keeps_retained_sessions_and_removes_others(tmp_path):
    async with house(tmp_path, backend="unisolated", recovers=True) as home:
        row = await home.agent("keeper", "hello", source=KEEPER)
        [info] = await home.engine.list()
        other = await home.engine.create(CreateRequest(session_key=f"agent:{row.id}:other"))
        await home.service.recover()
        assert [one.id for one in await home.engine.list()] == [info.id]
        # A session of a run whose row is gone belongs to no one.
        await home.runs.save(replace(row, retained={}))
        await home.service.recover()
        assert await home.engine.list() == []
        assert other.id != info.id


@pytest.mark.promise("P27")
async def test_the_operator_bounds_retention(tmp_path):
    async with house(
        tmp_path, backend="unisolated", SANDKASTEN_SESSION_MAX_RETAIN_SECONDS="5m"
    ) as home:
        asked: SandkastenError
        for begin in (
            home.service.start_agent(AgentRunRequest("keeper", source=KEEPER)),
            home.service.start_agent(AgentRunRequest("writer", retain_seconds=301)),
            home.service.start_workflow(WorkflowRunRequest("flow", retain_seconds=301)),
            home.service.start_workflow(
                WorkflowRunRequest("x", source=FLOW + "session: {retain: 10m}\n")
            ),
        ):
            with pytest.raises(PolicyDenied) as caught:
                await begin
            asked = caught.value
            assert asked.details["rule"] == "session_max_retain_seconds"
        found = await home.service.check("agent", KEEPER, "keeper")
        assert found.error is not None
        assert found.error["message"] == (
            "sandbox.session.retain requests 1800 s, but session_max_retain_seconds allows 300"
        )
        found = await home.service.check("workflow", FLOW + "session: {retain: 10m}\n", "flow")
        assert found.error is not None
        assert "session.retain requests 600 s" in found.error["message"]
        with pytest.raises(InvalidRequest):
            await home.service.start_agent(AgentRunRequest("writer", retain_seconds=-1))


@pytest.mark.parametrize("wrong", ["{retain: soon}", "{retain: -1}", "{retain: true}", "{name: 5}"])
async def test_a_malformed_session_is_refused(home, wrong):
    with pytest.raises(InvalidAgent) as caught:
        await home.service.start_agent(
            AgentRunRequest("x", source=WRITER.replace("session: workflow", f"session: {wrong}"))
        )
    assert str(caught.value.details["field"]).startswith("sandbox.session")


async def test_a_retention_longer_than_the_lifetime_ends_with_the_lifetime(tmp_path):
    async with house(
        tmp_path, backend="unisolated", SANDKASTEN_SESSION_MAX_LIFETIME_SECONDS="600"
    ) as home:
        row = await home.agent("keeper", "hello", source=KEEPER)
        assert row.status == "completed", row.error
        [info] = await home.engine.list()
        assert (info.lifetime_s, info.idle_timeout_s) == (600, 600)
