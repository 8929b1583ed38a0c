"""Runs from start to end: what is refused, what is stored, and that no sandbox is left."""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from sandkasten.errors import (
    AgentNotFound,
    BackendUnavailable,
    Busy,
    Conflict,
    InvalidAgent,
    InvalidConfiguration,
    InvalidRequest,
    InvalidWorkflow,
    PolicyDenied,
    QuotaExceeded,
    RunFailed,
    RunNotFound,
    SandkastenError,
    WorkflowNotFound,
)
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.runs.run_values import AgentRunRequest, RunRow, WorkflowRunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_agents.agent_assembly import agent_service
from sandkasten_agents.agent_service import PLAIN_IDLE_S, TOUCH_EVERY_S
from sandkasten_agents.run_lifecycle import RunLifecycle
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.store.run_directory import RunDirectory
from sandkasten_server.daemon.transient_file_store import TransientFileStore
from tests.agents.agency import (
    DEFAULT_TENANT,
    FLOW,
    WRITER,
    house,
    played,
)
from tests.models.server import Answer, Asked, Call
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture
async def home(tmp_path):
    async with house(tmp_path) as one:
        yield one


async def test_an_agent_that_completes_leaves_its_answer_its_usage_and_no_sandbox(home):
    row = await home.agent("writer", "hello")
    assert (row.status, row.output, row.error) == ("completed", "written", None)
    assert (row.usage.steps, row.usage.tool_calls) == (2, 1)
    assert row.usage.prompt_tokens > 0
    assert row.source == WRITER
    types = await home.types(row)
    assert types[0] == "run.started"
    assert types[-1] == "run.ended"
    assert {"tool.called", "tool.answered"} <= set(types)
    assert await home.sandboxes() == []


async def test_a_workflow_shares_one_sandbox_and_makes_a_run_of_each_step(home):
    row = await home.flow("flow", {"text": "shared"})
    assert row.status == "completed", row.error
    assert row.output["said"] == "write shared"
    below = [one for one in await home.service.runs(DEFAULT_TENANT) if one.parent_id == row.id]
    assert [(one.name, one.status, one.workflow_run_id) for one in below] == [
        ("reader", "completed", row.id),
        ("writer", "completed", row.id),
    ]
    assert row.usage.tool_calls == sum(one.usage.tool_calls for one in below) == 2
    assert await home.sandboxes() == []


async def test_an_agent_that_calls_another_has_a_run_below_it_with_a_sandbox_of_its_own(home):
    row = await home.agent("caller", "go")
    assert row.status == "completed", row.error
    [below] = [one for one in await home.service.runs(DEFAULT_TENANT) if one.parent_id == row.id]
    assert (below.name, below.status, below.input["task"]) == (
        "writer",
        "completed",
        "hand it on",
    )
    assert row.usage.steps == 2 + below.usage.steps
    assert await home.sandboxes() == []


@pytest.mark.promise("P64")
async def test_a_failed_run_gives_the_reason_and_leaves_nothing(home, tmp_path):
    broken = WRITER.replace("You are the writer.", "I fail.")
    row = await home.agent("broken", "x", source=broken)
    assert row.status == "failed"
    assert row.error is not None
    assert set(row.error) >= {"code", "message", "hint"}
    assert (await home.types(row))[-1] == "run.ended"
    assert await home.sandboxes() == []


@pytest.mark.promise("P64")
async def test_cancelling_a_run_returns_after_its_sandbox_is_gone(home):
    row = await home.service.start_agent(AgentRunRequest("writer", "hang on"))
    await home.heard(row, "tool.answered")
    assert await home.sandboxes() == [f"agent:{row.id}:default"]
    cancelled = await home.service.cancel(row.id, DEFAULT_TENANT)
    assert (cancelled.status, cancelled.error["code"]) == ("cancelled", "CANCELLED")
    assert await home.sandboxes() == []
    assert await home.service.cancel(row.id, DEFAULT_TENANT) == cancelled


async def test_a_queued_run_can_be_cancelled(home):
    for _ in range(5):
        row = await home.service.start_agent(AgentRunRequest("writer", "hang"))
        assert (await home.service.cancel(row.id, DEFAULT_TENANT)).status == "cancelled"
    assert await home.sandboxes() == []


async def test_cancelling_a_workflow_cancels_its_current_step(home):
    row = await home.service.start_workflow(WorkflowRunRequest("flow", {"text": "hang"}))
    await home.step_at_work(row)
    cancelled = await home.service.cancel(row.id, DEFAULT_TENANT)
    below = [one for one in await home.service.runs(DEFAULT_TENANT) if one.parent_id == row.id]
    assert [cancelled.status, *(one.status for one in below)] == ["cancelled", "cancelled"]
    assert await home.sandboxes() == []


async def test_cancelling_a_child_run_fails_only_its_step(home):
    row = await home.service.start_workflow(WorkflowRunRequest("flow", {"text": "hang"}))
    step = await home.step_at_work(row)
    assert await home.sandboxes() == [f"workflow:{row.id}:default"]
    below = await home.service.cancel(step.id, DEFAULT_TENANT)
    assert below.status == "cancelled"
    ended = await home.ended(row)
    assert (ended.status, ended.error["details"]["cause"]) == ("failed", "CANCELLED")
    assert await home.sandboxes() == []


@pytest.mark.promise("P61")
async def test_an_invalid_request_is_refused_before_a_run_exists(home):
    greedy = WRITER.replace("mode: code", "mode: code, timeout_seconds: 7200")
    unknown = FLOW.replace("agent: reader", "agent: nobody")
    schema = FLOW + "inputSchema: {type: object, required: [text]}\n"
    refusal: type[SandkastenError]
    for request, refusal in (
        (AgentRunRequest("nobody"), AgentNotFound),
        (AgentRunRequest("x", source="---\nmodel: [\n---\nhi"), InvalidAgent),
        (AgentRunRequest("x", source=greedy), PolicyDenied),
        (AgentRunRequest("plain", "no word"), InvalidRequest),
    ):
        with pytest.raises(refusal):
            await home.service.start_agent(request)
    for flow, refusal in (
        (WorkflowRunRequest("nothing"), WorkflowNotFound),
        (WorkflowRunRequest("x", source="id: x\nsteps: 3\n"), InvalidWorkflow),
        (WorkflowRunRequest("x", source=unknown), AgentNotFound),
        (WorkflowRunRequest("x", {"other": 1}, source=schema), InvalidRequest),
    ):
        with pytest.raises(refusal):
            await home.service.start_workflow(flow)
    assert list(await home.service.runs(DEFAULT_TENANT)) == []
    assert home.model.requests == []


@pytest.mark.promise("P55")
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("compute", marks=pytest.mark.long(reason="`make test` has the other mode")),
        "code",
    ],
)
async def test_unavailable_packages_end_a_run_before_the_model_is_called(tmp_path, mode):
    (tmp_path / "wheels").mkdir()
    text = f"""---
model: scripted
sandbox: {{mode: {mode}, runtime: python, pip_packages: [nobody-has-this]}}
---
You are in vain.
"""
    async with house(
        tmp_path,
        files={"agents/vain.prompt": text},
        SANDKASTEN_PACKAGES_FIND_LINKS=str(tmp_path / "wheels"),
    ) as home:
        row = await home.agent("vain", "go")
        assert row.error is not None
        assert (row.status, row.error["code"]) == ("failed", "PROVISIONING_FAILED")
        assert "nobody-has-this" in row.error["message"]
        assert home.model.requests == []
        assert await home.sandboxes() == []


async def test_without_a_model_an_agent_is_refused_and_the_settings_named(tmp_path):
    async with house(tmp_path, SANDKASTEN_MODELS_BASE_URL="") as home:
        with pytest.raises(InvalidConfiguration) as refused:
            await home.service.start_agent(AgentRunRequest("writer", "x"))
        assert "SANDKASTEN_MODELS_BASE_URL" in refused.value.hint


@pytest.mark.promise("P64")
async def test_no_variable_of_a_request_leads_to_the_sandbox_of_another_run(home):
    victim = await home.service.start_agent(AgentRunRequest("writer", "hang here"))
    await home.heard(victim, "tool.answered")
    names = {"_runID", "run_id", "workflow_run_id", "agent_run_id", "session_key", "sandbox_id"}
    thief = await home.agent("reader", "steal", variables=dict.fromkeys(names, victim.id))
    assert thief.status == "completed", thief.error
    # The new sandbox has no such file: nothing of the other run was read.
    assert "hang here" not in str(thief.output)
    await home.service.cancel(victim.id, DEFAULT_TENANT)


async def test_a_run_of_another_tenant_looks_like_an_unknown_one(home):
    row = await home.agent("plain", variables={"word": "x"}, tenant="acme")
    refused = []
    for call in (
        home.service.run(row.id, "other"),
        home.service.run("run_0000000000000000", "other"),
        home.service.cancel(row.id, "other"),
        home.service.resume(row.id, "other"),
        anext(aiter(home.service.events(row.id, "other"))),
    ):
        with pytest.raises(RunNotFound) as caught:
            await call
        refused.append(str(caught.value))
    assert len(set(refused)) == 1
    assert list(await home.service.runs("other")) == []
    assert [one.id for one in await home.service.runs("acme")] == [row.id]


@pytest.mark.promise("P46")
async def test_a_tenants_quota_holds_for_the_sandboxes_of_its_agents(home):
    row = await home.agent("writer", "x", quota=TenantQuota(max_sessions=0), tenant="acme")
    [answered] = [one for one in await home.runs.events(row.id) if one.type == "tool.answered"]
    assert "QUOTA_EXCEEDED" in str(answered.data)


async def test_concurrent_runs_stay_within_the_operators_limit(tmp_path):
    async with house(tmp_path, SANDKASTEN_AGENTS_MAX_CONCURRENT_RUNS="1") as home:
        row = await home.service.start_agent(AgentRunRequest("writer", "hang"))
        with pytest.raises(QuotaExceeded):
            await home.service.start_agent(AgentRunRequest("plain", variables={"word": "x"}))
        await home.service.cancel(row.id, DEFAULT_TENANT)
        assert (await home.agent("plain", variables={"word": "x"})).status == "completed"


async def test_closing_the_service_in_a_plain_process_cancels_its_runs(tmp_path):
    async with house(tmp_path) as home:
        agent = await home.service.start_agent(AgentRunRequest("writer", "hang"))
        flow = await home.service.start_workflow(WorkflowRunRequest("flow", {"text": "hang"}))
        await home.heard(agent, "tool.answered")
        await home.step_at_work(flow)
        await home.service.aclose()
        assert await home.sandboxes() == []
        rows = [await home.runs.get(row.id) for row in (agent, flow)]
        assert [row and row.status for row in rows] == ["cancelled", "cancelled"]
        with pytest.raises(Busy):
            await home.service.start_agent(AgentRunRequest("plain", variables={"word": "x"}))


async def test_a_stopping_daemon_leaves_workflow_runs_to_the_next_one(tmp_path):
    hanging = True

    def script(asked):
        told = played(asked)
        return told if hanging or told.fault is None else replace(told, text="written", fault=None)

    async with house(tmp_path, recovers=True, script=script) as home:
        agent = await home.service.start_agent(AgentRunRequest("writer", "hang"))
        flow = await home.service.start_workflow(WorkflowRunRequest("flow", {"text": "hang"}))
        await home.heard(agent, "tool.answered")
        await home.step_at_work(flow)
        await home.service.drain(0.01)
        await home.service.aclose()
        left = await home.runs.get(flow.id)
        assert left is not None
        assert left.status == "running"
        assert left.state["frame"]["at"] == "write"
        ended = await home.runs.get(agent.id)
        assert ended is not None
        assert ended.status == "cancelled"
        assert ended.error is not None
        assert "stopped" in ended.error["message"]
        # The sandboxes of the workflow are kept for the process that resumes it.
        assert await home.sandboxes() == [f"workflow:{flow.id}:default"]
        hanging = False
        files = TransientFileStore(home.settings)
        async with agent_service(home.settings, home.engine, files, recovers=True) as service:
            next_one = replace(home, service=service)
            done = await next_one.ended(left)
            assert done.status == "completed", done.error
            assert "run.resumed" in await home.types(flow)
            assert await home.sandboxes() == []


async def test_runs_of_a_dead_process_are_settled_and_their_sandboxes_destroyed(tmp_path):
    async with house(tmp_path) as home:
        ended = replace(
            RunRow("run_" + "a" * 16, "agent", "writer", 1.0),
            status="completed",
            ended_at=time.time(),
        )
        left = RunRow("run_" + "b" * 16, "agent", "writer", 1.0)
        held = RunRow("run_" + "c" * 16, "agent", "writer", 1.0)
        for row in (ended, left, held):
            await home.runs.begin(row)
        kept = ["agent:client-mine:default", "workflow:somebody-elses:x", f"agent:{held.id}:one"]
        gone = [
            f"agent:{ended.id}:default",
            f"agent:{left.id}:default",
            f"workflow:run_{'d' * 16}:default",
        ]
        for key in (*kept, *gone):
            await home.engine.create(CreateRequest(session_key=key))
        async with home.runs.claim(held.id):
            await home.service.recover()
        assert sorted(await home.sandboxes()) == sorted(kept)
        found = [await home.runs.get(row.id) for row in (ended, left, held)]
        assert [row and row.status for row in found] == ["completed", "lost", "running"]


@pytest.mark.promise("P69")
@pytest.mark.parametrize("how", ["resume", "cancel"])
async def test_resuming_a_dead_processs_workflow_settles_its_child_runs(home, how):
    flow = RunRow("run_" + "a" * 16, "workflow", "flow", 1.0, input={"text": "abc"}, source=FLOW)
    step = RunRow(
        "run_" + "b" * 16, "agent", "writer", 1.0, parent_id=flow.id, workflow_run_id=flow.id
    )
    other = RunRow("run_" + "c" * 16, "agent", "writer", 1.0)
    for row in (flow, step, other):
        await home.runs.begin(row)
        await home.engine.create(CreateRequest(session_key=f"agent:{row.id}:default"))
    await getattr(home.service, how)(flow.id, DEFAULT_TENANT)
    await home.ended(flow)
    found = await home.runs.get(step.id)
    assert found is not None
    assert found.status == "lost"
    assert f"agent:{step.id}:default" not in await home.sandboxes()
    # Another run, which may be in progress in another process.
    assert f"agent:{other.id}:default" in await home.sandboxes()


@pytest.mark.promise("P64")
async def test_sandboxes_of_a_plain_process_end_by_themselves_unless_renewed(home):
    row = await home.service.start_agent(AgentRunRequest("writer", "hang"))
    await home.heard(row, "tool.answered")
    [info] = await home.engine.list()
    # A running command alone does not extend the lifetime.
    assert (info.idle_timeout_s, info.lifetime_s) == (PLAIN_IDLE_S, PLAIN_IDLE_S)
    # Three renewals before it expires, all within the documented minute.
    assert TOUCH_EVERY_S * 3 <= PLAIN_IDLE_S <= 60 - TOUCH_EVERY_S
    await home.service._run_sandboxes.renew({row.id}, TOUCH_EVERY_S)
    [info] = await home.engine.list()
    assert info.lifetime_s == PLAIN_IDLE_S + TOUCH_EVERY_S
    await home.service.cancel(row.id, DEFAULT_TENANT)


async def test_continuing_a_run_takes_over_the_idle_time_of_its_sandboxes(tmp_path):
    async with house(tmp_path, recovers=True) as home:
        made_at = time.time()
        flow = RunRow("run_" + "e" * 16, "workflow", "flow", made_at, source=FLOW)
        flow = replace(flow, input={"text": "hang"})
        await home.runs.begin(flow)
        async with home.runs.claim(flow.id):
            made = await home.engine.create(
                CreateRequest(
                    SandboxOptions(
                        image="bash",
                        idle_timeout_seconds=PLAIN_IDLE_S,
                        lifetime_seconds=PLAIN_IDLE_S,
                    ),
                    session_key=f"workflow:{flow.id}:default",
                )
            )
        # The service may have settled it by itself already.
        with suppress(Conflict):
            await home.service.resume(flow.id, DEFAULT_TENANT)
        await home.step_at_work(flow)
        [info] = await home.engine.list()
        policy = home.engine.policy
        assert info.id == made.id
        assert (info.idle_timeout_s, info.lifetime_s) == (policy.idle_timeout_s, policy.lifetime_s)
        assert (await home.service.cancel(flow.id, DEFAULT_TENANT)).status == "cancelled"
        assert await home.sandboxes() == []


@pytest.mark.promise("P64")
async def test_tools_can_be_called_outside_of_runs_in_the_callers_sandbox(home):
    service = home.service
    names = [one["name"] for one in await service.tools("code")]
    assert "sandbox_exec" in names
    assert [one["name"] for one in await service.tools("compute")] == ["sandbox_run"]

    async def call(name, session, **arguments):
        return await service.call_tool(name, arguments, tenant=DEFAULT_TENANT, session=session)

    await call("sandbox_exec", "mine", command="echo x > f")
    assert (await call("sandbox_exec", "mine", command="cat f"))["stdout"] == "x\n"
    assert (await call("sandbox_exec", "other", command="cat f"))["exit_code"] != 0
    row = await service.start_agent(AgentRunRequest("writer", "hang"))
    await home.heard(row, "tool.answered")
    assert (await call("sandbox_exec", row.id, command="cat note.txt"))["exit_code"] != 0
    failed = await call("sandbox_nothing", "mine")
    assert (failed["ok"], failed["code"]) == (False, "INVALID_REQUEST")
    with pytest.raises(InvalidRequest):
        await call("sandbox_exec", "a:b", command="true")
    await service.cancel(row.id, DEFAULT_TENANT)


async def test_definitions_list_usable_files_and_the_errors_of_others(tmp_path):
    more = {"agents/bad.prompt": "---\nmodel: [\n---\n", "workflows/bad.yaml": "id: bad\n"}
    async with house(tmp_path, files=more) as home:
        agents = {one.name: one for one in await home.service.definitions("agent")}
        assert set(agents) == {"bad", "caller", "plain", "reader", "writer"}
        assert agents["bad"].error is not None
        assert agents["writer"].error is None
        flows = {one.name: one for one in await home.service.definitions("workflow")}
        assert flows["bad"].error is not None
        assert flows["flow"].fields["graph"]["edges"][0] == {
            "from": "write",
            "to": "read",
            "when": None,
        }
        assert "flowchart" in flows["flow"].fields["mermaid"]
        assert (await home.service.definition("workflow", "flow")).source == FLOW
        with pytest.raises(WorkflowNotFound):
            await home.service.definition("workflow", "flo")
        checked = await home.service.check("workflow", FLOW.replace("writer", "nobody"))
        assert checked.error is not None
        assert checked.error["code"] == "AGENT_NOT_FOUND"
        assert (await home.service.check("agent", WRITER)).error is None


async def test_events_can_be_read_again_from_any_position(home):
    row = await home.agent("plain", variables={"word": "x"})
    service = home.service

    async def items(**more):
        return [one async for one in service.events(row.id, DEFAULT_TENANT, **more)]

    everything = await items()
    assert everything[-1] == row
    assert [one.seq for one in everything[:-1]] == list(range(1, len(everything)))
    assert await items(since_seq=2) == everything[2:]
    assert await items(since_seq=2, follow=True) == everything[2:]


@pytest.mark.promise("P64")
async def test_a_run_ends_at_its_time_limit(tmp_path):
    slow = WRITER.replace("model: scripted", "model: scripted\ntimeout_seconds: 0.5")
    async with house(tmp_path) as home:
        async with asyncio.timeout(PATIENCE_S):
            row = await home.agent("slow", "hang", source=slow)
        assert row.error is not None
        assert (row.status, row.error["code"]) == ("failed", "RUN_LIMIT_REACHED")
        assert await home.sandboxes() == []


def _named(name: str, more: str = "") -> str:
    return f"---\nmodel: scripted\nmetadata: {{name: {name}}}\n{more}\n---\nYou are {name}.\n"


async def test_agents_that_reference_each_other_are_validated_once_each(tmp_path):
    names = [f"m{n}" for n in range(12)]
    mesh = {f"agents/{one}.prompt": _named(one, f"agents: [{', '.join(names)}]") for one in names}
    async with house(tmp_path, files=mesh, backend="unisolated") as home:
        assert (await home.agent("m0", "go")).status == "completed"


async def test_concurrent_run_requests_stay_within_the_operators_limit(tmp_path):
    def hang(asked: Asked) -> Answer:
        return Answer(fault="hang")

    async with house(
        tmp_path,
        script=hang,
        files={"agents/p.prompt": _named("p")},
        backend="unisolated",
        SANDKASTEN_AGENTS_MAX_CONCURRENT_RUNS="3",
    ) as home:
        asked = [home.service.start_agent(AgentRunRequest("p", "go")) for _ in range(12)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(one, RunRow) for one in found) == 3
        assert sum(isinstance(one, QuotaExceeded) for one in found) == 9
        await home.service.cancel(next(o.id for o in found if isinstance(o, RunRow)), "default")
        assert await home.service.start_agent(AgentRunRequest("p", "go"))


@pytest.mark.promise("P67")
async def test_recursive_agent_calls_are_bounded(tmp_path):
    def greedy(asked: Asked) -> Answer:
        if asked.turn < 2:
            return Answer(calls=[Call("agent_p", {"task": "more"}) for _ in range(20)])
        return Answer(str(asked.last))

    files = {"agents/p.prompt": _named("p", "agents: [p]")}
    async with house(tmp_path, script=greedy, files=files, backend="unisolated") as home:
        row = await home.agent("p", "go")
        assert row.status == "completed"
        assert len(await home.service.runs(DEFAULT_TENANT, limit=1000)) == 101
        assert "has already called 100 agents" in row.output


async def test_an_agents_json_output_is_valid_for_every_reader(tmp_path):
    said = {"deep": "[" * 400 + "]" * 400, "huge": '{"a": 1e999}'}

    def script(asked: Asked) -> Answer:
        return Answer("{}" if "does not match" in asked.user else said[asked.user])

    files = {"agents/p.prompt": _named("p", "output: {format: json}")}
    async with house(tmp_path, script=script, files=files, backend="unisolated") as home:
        for task in said:
            assert (await home.agent("p", task)).output == {}


@pytest.mark.promise("P68")
async def test_a_cancel_that_cannot_be_recorded_is_not_reported_as_done(tmp_path):
    async with house(tmp_path, script=_hang, backend="unisolated") as home:
        row = await home.service.start_workflow(WorkflowRunRequest("flow", {"text": "x"}))
        await home.heard(row, "agent.called")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(SandkastenError):
                await home.service.cancel(row.id, DEFAULT_TENANT)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        again = await home.service.cancel(row.id, DEFAULT_TENANT)
        assert again.status == "cancelled"


def _hang(asked: Asked) -> Answer:
    return Answer(fault="hang")


async def test_a_run_cancelled_before_its_start_ends_as_cancelled(tmp_path):
    async with house(tmp_path, script=_hang, backend="unisolated") as home:
        for _ in range(20):
            row = await home.service.start_agent(AgentRunRequest("writer", "x"))
            home.service._tasks._tasks[row.id].cancel()
            assert (await home.service.cancel(row.id, DEFAULT_TENANT)).status == "cancelled"


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        ("workflow", BackendUnavailable("away", store="postgres"), "running"),
        (
            "workflow",
            RunFailed("the step", cause="BACKEND_UNAVAILABLE", cause_store="postgres"),
            "running",
        ),
        ("workflow", BackendUnavailable("away", backend="docker"), "failed"),
        ("agent", BackendUnavailable("away", store="postgres"), "failed"),
    ],
)
async def test_a_workflow_stays_open_when_its_database_was_away(tmp_path, kind, error, status):
    runs = RunDirectory(tmp_path / "runs")
    row = RunRow("run_" + "a" * 16, kind, "flow", 1.0, input={})
    await runs.begin(row)

    async def clean(_):
        return {}

    async def work(_):
        raise error

    lifecycle = RunLifecycle(runs, clean, SystemClock())
    with suppress(SandkastenError):
        await lifecycle.execute(row, work)
    kept = await runs.get(row.id)
    assert kept is not None
    assert kept.status == status
    # Its claim is free.
    async with runs.claim(row.id) as ours:
        assert ours
