"""Which sandbox a tool call refers to; none leads into another run."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_tools.calls.agent_sandbox import AgentSandbox


async def ids(desk) -> list[str]:
    return [sandbox.id for sandbox in await desk.engine.list()]


async def test_the_first_call_opens_the_runs_sandbox_and_the_next_finds_it(tools):
    first = await tools.call("fs_write", path="x", text="1")
    opened = await tools.call("open")
    read = await tools.call("fs_read", path="x")
    assert opened == {
        "sandbox_id": first["sandbox_id"],
        "session_id": first["sandbox_id"],
        "session_key": "agent:run_a:default",
        "image": "host",
        "workdir": "/workspace",
        "cwd": "/workspace",
        "created": False,
        "status": "ready",
    }
    assert read["contents"] == "1"
    [info] = await tools.engine.list()
    assert info.labels == {"sandkasten.run": "run_a", "sandkasten.agent": "tester"}


@pytest.mark.promise("P16")
async def test_a_hundred_concurrent_calls_open_one_sandbox(tools):
    answers = await asyncio.gather(*(tools.call("open") for _ in range(100)))
    assert len({answer["sandbox_id"] for answer in answers}) == 1
    assert sum(answer["created"] for answer in answers) == 1
    assert len(await ids(tools)) == 1


async def test_agents_of_a_workflow_share_a_sandbox_and_an_isolated_one_has_its_own(tools):
    first = tools.within(workflow_run_id="flow", agent_run_id="run_1")
    two = tools.within(workflow_run_id="flow", agent_run_id="run_2")
    alone = two.asking(AgentSandbox(mode="code", session="isolated"))
    await first.call("fs_write", path="x", text="of the first")
    assert (await two.call("fs_read", path="x"))["contents"] == "of the first"
    assert (await alone.call("fs_read", path="x"))["code"] == "FILE_NOT_FOUND"
    keys = {info.session_key for info in await tools.engine.list()}
    assert keys == {"workflow:flow:default", "agent:run_2:default"}


async def test_three_spellings_of_a_session_name_mean_one_sandbox(tools):
    tools = tools.within(workflow_run_id="flow")
    named = await tools.call("open", session_key="second")
    again = await tools.call("open", session_key="workflow:flow:second")
    assert (named["created"], again["created"]) == (True, False)
    assert named["sandbox_id"] == again["sandbox_id"]
    own = await tools.call("open")
    legacy = await tools.call("open", session_key="workflow_flow_sandbox")
    assert own["sandbox_id"] == legacy["sandbox_id"] != named["sandbox_id"]


async def test_a_sandbox_can_be_addressed_by_its_id_in_both_spellings(tools):
    second = await tools.call("open", session_key="second")
    await tools.call("fs_write", path="x", text="2", sandbox_id=second["sandbox_id"])
    listing = await tools.call("fs_list", session_id=second["sandbox_id"])
    assert [entry["name"] for entry in listing["entries"]] == ["x"]
    assert (await tools.call("fs_list"))["entries"] == []
    both = await tools.call("fs_list", sandbox_id=second["sandbox_id"], session_id="sbx_other")
    assert both["message"] == "sandbox_id and session_id contradict each other"


@pytest.mark.promise("P64")
async def test_another_runs_sandbox_answers_exactly_like_an_unknown_one(tools):
    of_other_run = (await tools.within(agent_run_id="run_b").call("open"))["sandbox_id"]
    foreign = (await tools.within(tenant="other").call("open"))["sandbox_id"]
    plain = (await tools.engine.create(CreateRequest())).id
    unknown = "sbx_00000000000000ff"
    arguments = {
        "exec": {"cmd": "id"},
        "exec_read": {"exec_id": "exe_1"},
        "exec_wait": {"exec_id": "exe_1"},
        "fs_write": {"path": "x", "text": ""},
        "fs_read": {"path": "x"},
        "fs_list": {},
        "fs_delete": {"path": "x"},
        "stage_file": {"file_key": "k", "destination": "x"},
        "publish_file": {"source": "x"},
        "close": {},
    }
    for tool, values in arguments.items():
        answers = []
        for the_id in (unknown, of_other_run, foreign, plain, "nonsense"):
            answer = await tools.call(tool, sandbox_id=the_id, **values)
            answers.append({k: str(v).replace(the_id, "?") for k, v in answer.items()})
        assert answers[0]["code"] == "SESSION_NOT_FOUND", tool
        assert all(answer == answers[0] for answer in answers), tool
    assert {of_other_run, foreign, plain} <= set(await ids(tools))


async def test_another_runs_ended_sandbox_answers_like_an_unknown_one(tools):
    other = tools.within(agent_run_id="run_b")
    other_id = (await other.call("open"))["sandbox_id"]
    await other.call("close")
    ended = await tools.call("fs_list", sandbox_id=other_id)
    never = await tools.call("fs_list", sandbox_id="sbx_00000000000000ff")
    assert ended["message"].replace(other_id, "?") == never["message"].replace(
        "sbx_00000000000000ff", "?"
    )
    assert ended["code"] == "SESSION_NOT_FOUND"


async def test_the_runs_own_ended_sandbox_is_reported_with_its_end(tools):
    own_id = (await tools.call("open"))["sandbox_id"]
    await tools.engine.destroy(own_id)
    assert (await tools.call("fs_list", sandbox_id=own_id))["code"] == "SESSION_EXPIRED"


@pytest.mark.promise("P64")
async def test_another_runs_key_answers_like_an_unknown_one_and_opens_nothing(tools):
    await tools.within(agent_run_id="run_b").call("open")
    before = await ids(tools)
    for key in ("agent:run_b:default", "agent:run_c:default", "agent_run_b_sandbox"):
        refused = await tools.call("open", session_key=key)
        assert (refused["code"], refused["message"]) == (
            "SESSION_NOT_FOUND",
            "the key does not belong to this run",
        )
    assert (await tools.call("open", session_key="a:b"))["code"] == "INVALID_REQUEST"
    assert (await tools.call("open", session_key="../x"))["code"] == "INVALID_REQUEST"
    assert await ids(tools) == before


@pytest.mark.promise("P63")
async def test_a_dead_sandbox_is_replaced_and_the_model_is_informed(tools):
    first = await tools.call("fs_write", path="x", text="1")
    await tools.engine.destroy(first["sandbox_id"])
    listed = await tools.call("fs_list")
    assert listed["entries"] == []
    assert listed["sandbox_id"] != first["sandbox_id"]
    assert listed["notice"].startswith("the sandbox of this session ended")
    assert "notice" not in await tools.call("fs_list")


async def test_close_removes_the_sandbox_and_succeeds_twice(tools):
    opened = await tools.call("open")
    closed = await tools.call("close", delete_workspace=True)
    which = {"sandbox_id": opened["sandbox_id"], "session_id": opened["sandbox_id"]}
    assert closed == {"ok": True, "closed": True, **which}
    assert await ids(tools) == []
    assert await tools.call("close") == {
        "ok": True,
        "closed": False,
        "sandbox_id": None,
        "session_id": None,
    }
    # A sandbox that was closed on purpose gives no notice.
    again = await tools.call("open")
    assert (again["created"], "notice" in again) == (True, False)


@pytest.mark.promise("P64")
async def test_finish_destroys_only_the_sandboxes_of_its_run(tools):
    flow = tools.within(workflow_run_id="flow")
    await flow.call("open")
    await flow.call("open", session_key="second")
    other = (await tools.within(workflow_run_id="flow2").call("open"))["sandbox_id"]
    own = (await flow.asking(AgentSandbox(mode="code", session="agent")).call("open"))["sandbox_id"]
    done = await tools.toolbox.finish("workflow", "flow")
    assert (len(done.destroyed), done.failed) == (2, ())
    assert set(await ids(tools)) == {other, own}
    assert (await tools.toolbox.finish("workflow", "flow")).destroyed == ()


@pytest.mark.promise("P64")
async def test_finish_continues_past_failures_and_reports_them(unisolated_tools, monkeypatch):
    sandbox_ids = [
        (await unisolated_tools.call("open", session_key=name))["sandbox_id"] for name in "abc"
    ]
    destroy = unisolated_tools.engine.destroy

    async def sometimes(sandbox_id: str) -> None:
        if sandbox_id == sandbox_ids[1]:
            raise BackendUnavailable("the engine is away")
        await destroy(sandbox_id)

    with monkeypatch.context() as patched:
        patched.setattr(unisolated_tools.engine, "destroy", sometimes)
        done = await unisolated_tools.toolbox.finish("agent", "run_a")
    assert set(done.destroyed) == {sandbox_ids[0], sandbox_ids[2]}
    assert [(the_id, exc.code) for the_id, exc in done.failed] == [
        (sandbox_ids[1], "BACKEND_UNAVAILABLE")
    ]
    assert (await unisolated_tools.toolbox.finish("agent", "run_a")).destroyed == (sandbox_ids[1],)


async def test_finishing_a_run_twice_concurrently_succeeds(tools):
    for name in "abc":
        await tools.call("open", session_key=name)
    both = await asyncio.gather(*(tools.toolbox.finish("agent", "run_a") for _ in range(2)))
    assert [result.failed for result in both] == [(), ()]
    assert await ids(tools) == []


@pytest.mark.promise("P67")
async def test_a_run_has_a_bounded_number_of_sandboxes(unisolated_tools, monkeypatch):
    desk = unisolated_tools
    monkeypatch.setattr(desk.toolbox._sessions, "_max_sandboxes", 4)
    calls = [desk.call("open", session_key=f"n{n}") for n in range(12)]
    answers = await asyncio.gather(*calls)
    refused = [answer for answer in answers if answer.get("ok") is False]
    assert len(await ids(desk)) == 4 == len(answers) - len(refused)
    assert {answer["code"] for answer in refused} == {"QUOTA_EXCEEDED"}
    assert "agents.max_sandboxes" in refused[0]["hint"]
    again = next(answer for answer in answers if "sandbox_id" in answer)
    assert (await desk.call("open", session_key=again["session_key"]))["created"] is False
    assert (await desk.within(agent_run_id="run_b").call("open"))["created"]
    await desk.call("close", sandbox_id=again["sandbox_id"])
    assert (await desk.call("open", session_key="last"))["created"]
