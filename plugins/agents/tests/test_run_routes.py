"""Agents, runs, workflows and tools over HTTP, with a scripted model and real sandboxes."""

from __future__ import annotations

import asyncio
import json

import pytest

from sandkasten import SandboxClient, sync
from sandkasten.errors import AgentNotFound, RunNotFound, UnsupportedByBackend
from sandkasten.model.optional_extras import install_command
from sandkasten_agents.lazy_agents import LazyAgents
from sandkasten_runtime.store.audit_directory import AuditDirectory
from sandkasten_tools.lazy_tools import LazyTools
from tests.agents.agency import FLOW, WRITER, house
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.models.server import Answer, Asked, Call
from tests.store.memory_store import MemoryJournal

OTHER = {"X-Sandkasten-Tenant": "other"}


@pytest.fixture
async def home(tmp_path):
    async with house(tmp_path, recovers=True) as one:
        yield one


@pytest.fixture
async def daemon(home, tmp_path):
    journal, audit = MemoryJournal(), AuditDirectory(tmp_path / "audit")
    async with serving(home.engine, agents=home.service, journal=journal, audit=audit) as one:
        yield one
    await audit.aclose()
    await journal.aclose()


async def ended(daemon, run_id):
    """Follow the events of a run to its end."""
    headers = {"Accept": "text/event-stream"}
    async with daemon.http.get(f"{daemon.url}/runs/{run_id}/events", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        raw = (await answer.read()).decode()
    frames = [
        dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        for frame in raw.split("\n\n")
        if frame.strip() and not frame.startswith(":")
    ]
    assert frames[-1]["event"] == "done"
    seqs = [int(one["id"]) for one in frames[:-1]]
    assert seqs == list(range(1, len(seqs) + 1))
    return json.loads(frames[-1]["data"])


async def test_an_agent_is_executed_and_its_run_is_described_completely(daemon, home):
    body = {"agent_name": "writer", "task": "hello"}
    begun = await daemon.ask("POST", "/execute", body)
    assert begun.status == 202, begun.raw
    told = begun.json
    assert (told["status"], told["agent_id"], told["agent_name"]) == ("running", "writer", "writer")
    assert told["message"]
    run_id = told["run_id"]
    last = await ended(daemon, run_id)
    assert (last["status"], last["output"]) == ("completed", "written")
    shown = (await daemon.ask("GET", f"/runs/{run_id}")).json
    assert shown["run"] == {name: shown[name] for name in shown["run"]}
    assert {"task", "variables", "usage", "created_at", "completed_at", "duration_ms"} <= set(shown)
    assert shown["usage"]["total_tokens"] > 0
    listed = (await daemon.ask("GET", "/v1/runs?status=completed&limit=1")).json
    assert ([one["id"] for one in listed["runs"]], listed["next"]) == ([run_id], None)
    rest = (await daemon.ask("GET", f"/runs?before={run_id}")).json
    assert (rest["runs"], rest["next"]) == ([], None)
    page = (await daemon.ask("GET", f"/runs/{run_id}/events?limit=2")).json
    assert (page["count"], page["next_seq"], page["done"]) == (2, 2, False)
    page = (await daemon.ask("GET", f"/runs/{run_id}/events?since_seq=2")).json
    assert (page["done"], page["status"]) == (True, "completed")
    assert await home.sandboxes() == []


async def test_an_agent_can_be_named_by_either_field_or_sent_along(daemon):
    for body in ({"agent_id": "writer"}, {"agent_name": "writer", "agent_id": "writer"}):
        begun = await daemon.ask("POST", "/v1/execute", {**body, "task": "x"})
        assert begun.status == 202
        assert (await ended(daemon, begun.json["run_id"]))["name"] == "writer"
    sent = await daemon.ask("POST", "/execute", {"source": WRITER, "task": "x"})
    assert (await ended(daemon, sent.json["run_id"]))["status"] == "completed"
    assert (await daemon.ask("POST", "/execute", {"task": "x"})).status == 422
    two = {"agent_name": "writer", "agent_id": "reader"}
    assert (await daemon.ask("POST", "/execute", two)).status == 422
    unknown = await daemon.ask("POST", "/execute", {"agent_name": "nobody"})
    assert (unknown.status, unknown.json["code"]) == (404, "AGENT_NOT_FOUND")
    unfit = await daemon.ask("POST", "/execute", {"agent_name": "plain"})
    assert (unfit.status, unfit.json["code"]) == (400, "INVALID_REQUEST")


async def test_a_workflow_run_is_followed_and_inspected(daemon, home):
    begun = await daemon.ask(
        "POST", "/workflow-runs", {"workflow_id": "flow", "input": {"text": "abc"}}
    )
    assert begun.status == 202, begun.raw
    run_id = begun.json["run_id"]
    assert begun.json["workflow_id"] == "flow"
    assert (await ended(daemon, run_id))["output"]["said"] == "write abc"
    shown = (await daemon.ask("GET", f"/workflow-runs/{run_id}")).json
    assert shown["state"]["steps"] == 3
    listed = (await daemon.ask("GET", "/workflow-runs")).json["runs"]
    assert [one["id"] for one in listed] == [run_id]
    steps = [
        one
        for one in (await daemon.ask("GET", "/runs?kind=agent")).json["runs"]
        if one["parent_id"]
    ]
    assert {one["workflow_run_id"] for one in steps} == {run_id}
    # A run of an agent is no workflow run.
    assert (await daemon.ask("GET", f"/workflow-runs/{steps[0]['id']}")).status == 404
    resumed = await daemon.ask("POST", f"/workflow-runs/{run_id}/resume", {})
    assert (resumed.status, resumed.json["code"]) == (409, "CONFLICT")
    bad = await daemon.ask("POST", "/workflow-runs", {"source": "id: x\n"})
    assert (bad.status, bad.json["code"]) == (400, "INVALID_WORKFLOW")
    assert (await daemon.ask("POST", "/workflow-runs", {})).status == 422


async def test_a_retained_session_of_a_workflow_is_reopened_by_its_key(daemon, home):
    body = {"workflow_id": "flow", "input": {"text": "abc"}, "session": {"retain": "1h"}}
    begun = await daemon.ask("POST", "/workflow-runs", body)
    assert begun.status == 202, begun.raw
    last = await ended(daemon, begun.json["run_id"])
    [(key, the_id)] = last["retained"].items()
    assert key == f"workflow:{last['id']}:default"
    again = await daemon.ask("POST", "/v1/sessions", {"session_key": key})
    assert (again.status, again.json["id"], again.json["created"]) == (201, the_id, False)
    read = await daemon.ask("POST", f"/v1/sessions/{the_id}/exec", {"cmd": "cat note.txt"})
    assert read.json["stdout"] == "write abc\n"
    # Another tenant's key means another session.
    other = await daemon.ask("POST", "/v1/sessions", {"session_key": key}, headers=OTHER)
    assert other.json["id"] != the_id
    for retain, status in (("2h", 403), ("soon", 400), (-1, 400), ([], 422)):
        wrong = {"agent_name": "writer", "session": {"retain": retain}}
        assert (await daemon.ask("POST", "/execute", wrong)).status == status, retain


async def test_a_run_is_cancelled_and_gone_with_its_sandbox(daemon, home):
    begun = await daemon.ask("POST", "/execute", {"agent_name": "writer", "task": "hang"})
    run_id = begun.json["run_id"]
    await home.heard(await home.service.run(run_id, "default"), "tool.answered")
    done = await daemon.ask("POST", f"/runs/{run_id}/cancel", {})
    assert (done.status, done.json["status"]) == (200, "cancelled")
    assert await home.sandboxes() == []
    again = await daemon.ask("POST", f"/v1/runs/{run_id}/cancel", {})
    assert again.json["ended_at"] == done.json["ended_at"]


@pytest.mark.promise("P45")
@pytest.mark.usefixtures("patient_streams")
async def test_another_tenants_run_looks_like_an_unknown_one(daemon, home):
    begun = await daemon.ask("POST", "/execute", {"agent_name": "writer", "task": "x"})
    mine = begun.json["run_id"]
    await ended(daemon, mine)
    for method, path in (
        ("GET", "/runs/{}"),
        ("GET", "/runs/{}/events"),
        ("POST", "/runs/{}/cancel"),
        ("GET", "/workflow-runs/{}"),
        ("POST", "/workflow-runs/{}/cancel"),
        ("POST", "/workflow-runs/{}/resume"),
        ("GET", "/workflow-runs/{}/events"),
    ):
        answers = []
        for the_id in (mine, "run_" + "0" * 16, "a" * 80):
            answer = await daemon.ask(method, path.format(the_id), headers=OTHER)
            told = {name: value for name, value in answer.json.items() if name != "request_id"}
            answers.append((answer.status, told))
        assert answers[0] == answers[1] == answers[2]
        assert answers[0][0] == 404
    assert (await daemon.ask("GET", "/runs", headers=OTHER)).json["count"] == 0
    stream = {**OTHER, "Accept": "text/event-stream"}
    assert (await daemon.ask("GET", f"/runs/{mine}/events", headers=stream)).status == 404


async def test_agents_and_workflows_are_listed_shown_and_validated(daemon):
    listed = (await daemon.ask("GET", "/agents")).json["agents"]
    assert [one["name"] for one in listed] == ["caller", "plain", "reader", "writer"]
    shown = (await daemon.ask("GET", "/v1/agents/writer")).json
    assert (shown["source"], shown["mode"]) == (WRITER, "code")
    assert (await daemon.ask("GET", "/agents/nobody")).status == 404
    flow = (await daemon.ask("GET", "/workflows/flow")).json
    assert flow["graph"]["nodes"][0]["id"] == "write"
    assert flow["mermaid"].startswith("flowchart")
    assert (await daemon.ask("GET", "/workflows")).json["count"] == 1
    assert (await daemon.ask("GET", "/workflows/nothing")).status == 404
    good = await daemon.ask("POST", "/workflows/validate", {"source": FLOW})
    assert (good.status, good.json["error"]) == (200, None)
    bad = await daemon.ask("POST", "/agents/validate", {"source": "---\nmodel: [\n---\n"})
    assert (bad.status, bad.json["error"]["code"]) == (200, "INVALID_AGENT")


async def test_tools_are_listed_and_called_in_the_callers_own_sandbox(daemon, home):
    tools = (await daemon.ask("GET", "/v1/tools?mode=code")).json["tools"]
    assert "sandbox_exec" in {one["name"] for one in tools}
    body = {"arguments": {"command": "echo hi"}, "session": "mine"}
    done = await daemon.ask("POST", "/v1/tools/sandbox_exec", body)
    assert (done.status, done.json["stdout"]) == (200, "hi\n")
    assert await home.sandboxes() == ["agent:client-mine:default"]
    failed = await daemon.ask("POST", "/v1/tools/sandbox_exec", {"arguments": {"nothing": 1}})
    assert (failed.status, failed.json["ok"]) == (200, False)
    refused = await daemon.ask("POST", "/v1/tools/sandbox_exec", {"session": "a/b"})
    assert refused.status == 400


async def test_changes_are_audited_and_reads_are_not(daemon):
    begun = await daemon.ask("POST", "/execute", {"agent_name": "writer", "task": "x"})
    await ended(daemon, begun.json["run_id"])
    await daemon.ask("POST", "/workflows/validate", {"source": FLOW})
    await daemon.ask("POST", f"/v1/runs/{begun.json['run_id']}/cancel", {})
    rows = (await daemon.ask("GET", "/v1/audit?kind=change")).json["entries"]
    assert [(one["action"], one["target"]) for one in rows] == [
        ("run.create", begun.json["run_id"]),
        ("run.cancel", begun.json["run_id"]),
    ]


async def test_a_daemon_without_agents_reports_it_and_serves_everything_else(home):
    class Missing:
        async def open(self):
            hint = install_command("agents")
            raise UnsupportedByBackend("agents need the library cel", hint=hint)

    async with serving(
        home.engine, services={LazyAgents: Missing(), LazyTools: Missing()}
    ) as daemon:
        for method, path in (("GET", "/agents"), ("POST", "/execute"), ("GET", "/v1/tools")):
            body = {"agent_name": "x"} if method == "POST" else None
            answer = await daemon.ask(method, path, body)
            assert (answer.status, answer.json["code"]) == (422, "UNSUPPORTED_BY_BACKEND")
            assert "cel" in answer.json["message"]
            assert answer.json["hint"] == install_command("agents")
        assert (await daemon.ask("GET", "/v1/sessions")).status == 200


async def test_the_client_runs_follows_lists_and_cancels(daemon, home):
    async with SandboxClient(base_url=daemon.url) as client:
        run = await client.run_agent("writer", "hello")
        assert (run.status, run.output) == ("completed", "written")
        begun = await client.run_agent("writer", "hang", wait=False)
        async with client.run_events(begun.id) as events:
            async for event in events:
                if event.type == "tool.answered":
                    break
        assert (await client.cancel_run(begun.id)).status == "cancelled"
        assert (await client.run_events(begun.id).wait()).status == "cancelled"
        assert [one.id for one in await client.runs()] == [begun.id, run.id]
        first = (await daemon.ask("GET", "/runs?limit=1")).json
        assert (first["runs"][0]["id"], first["next"]) == (begun.id, begun.id)
        assert (await client.get_run(run.id)).output == "written"
        flow = await client.run_workflow("flow", {"text": "x"})
        assert flow.output["said"] == "write x"
        assert [one.name for one in await client.workflows()] == ["flow"]
        assert "sandbox_run" in {one["name"] for one in await client.tools("compute")}
        done = await client.call_tool("sandbox_exec", {"command": "echo hi"}, session="s")
        assert done["stdout"] == "hi\n"
        with pytest.raises(RunNotFound):
            await client.get_run("run_" + "0" * 16)
        with pytest.raises(AgentNotFound):
            await client.run_agent("nobody")


async def test_the_synchronous_client_does_the_same(daemon):
    def use() -> None:
        with sync.SandboxClient(base_url=daemon.url) as client:
            run = client.run_agent("writer", "hello", wait=False)
            with client.run_events(run.id) as events:
                types = [event.type for event in events]
            assert (types[0], types[-1]) == ("run.started", "run.ended")
            assert events.run.output == "written"
            assert [one.name for one in client.agents()][0] == "caller"

    await asyncio.to_thread(use)


async def test_a_key_runs_agents_of_its_tenant_within_its_quota_and_its_scopes(home, tmp_path):
    async with booked(home.engine, tmp_path / "books", agents=home.service) as daemon:
        bare = await new_key(daemon, tenant="acme", scopes=["sessions"])
        small = await new_key(daemon, tenant="acme", quota={"max_sessions": 0})
        stranger = await new_key(daemon, tenant="zeta")
        body = {"agent_name": "writer", "task": "x"}
        publish = {"arguments": {"source": "x"}}
        refused = await daemon.ask("POST", "/v1/tools/sandbox_publish_file", publish, headers=bare)
        assert (refused.status, refused.json["code"]) == (403, "FORBIDDEN")
        tool = {"arguments": {"command": "echo hi"}, "session": "mine"}
        done = await daemon.ask("POST", "/v1/tools/sandbox_exec", tool, headers=bare)
        assert done.json["stdout"] == "hi\n"
        # The same name leads each tenant to a sandbox of its own.
        other = await daemon.ask("POST", "/v1/tools/sandbox_exec", tool, headers=stranger)
        assert other.json["sandbox_id"] != done.json["sandbox_id"]
        begun = await daemon.ask("POST", "/execute", body, headers=small)
        assert begun.status == 202, begun.raw
        row = await home.ended(await home.service.run(begun.json["run_id"], "acme"))
        told = [one for one in await home.runs.events(row.id) if one.type == "tool.answered"]
        assert "QUOTA_EXCEEDED" in str(told[0].data)
        assert (await daemon.ask("GET", f"/runs/{row.id}", headers=stranger)).status == 404
        assert (await daemon.ask("GET", f"/runs/{row.id}", headers=bare)).status == 200
        assert (await daemon.ask("GET", "/runs")).status == 401


async def test_a_key_without_the_files_scope_has_no_file_store_tools(tmp_path):
    stage = {"file_key": "secret", "destination": "x"}

    def thief(asked: Asked) -> Answer:
        if asked.turn == 0:
            return Answer(calls=[Call("sandbox_stage_file", stage)])
        return Answer(str(asked.last))

    thieves = {"agents/thief.prompt": WRITER.replace("writer", "thief"), "workflows/t.yaml": THEFT}
    async with (
        house(tmp_path, script=thief, files=thieves, backend="unisolated") as home,
        booked(home.engine, tmp_path / "books", agents=home.service) as daemon,
    ):
        both = await new_key(daemon, tenant="a", scopes=["sessions", "files"])
        await daemon.ask("POST", "/v1/files?key=secret", data=b"s", headers=both)
        one = await new_key(daemon, tenant="a", scopes=["sessions"])
        direct = await daemon.ask(
            "POST", "/v1/tools/sandbox_stage_file", {"arguments": stage}, headers=one
        )
        assert (direct.status, direct.json["details"]) == (403, {"scope": "files"})
        ways: dict[str, dict[str, str]] = {
            "/execute": {"agent_name": "thief", "task": "go"},
            "/workflow-runs": {"workflow_id": "t"},
        }
        for path, body in ways.items():
            begun = await daemon.ask("POST", path, body, headers=one)
            assert begun.status == 202, begun.raw
            row = await home.ended(await home.service.run(begun.json["run_id"], "a"))
            assert "does not allow stored files" in json.dumps(row.output), path
            begun = await daemon.ask("POST", path, body, headers=both)
            row = await home.ended(await home.service.run(begun.json["run_id"], "a"))
            assert "does not allow stored files" not in json.dumps(row.output), path


THEFT = """id: t
steps:
  - {id: take, type: agent, agent: thief, task: go}
"""


async def test_paths_of_the_host_are_not_revealed_to_a_tenant(tmp_path):
    async with (
        house(tmp_path, backend="unisolated") as home,
        booked(home.engine, tmp_path / "books", agents=home.service) as daemon,
    ):
        tenant = await new_key(daemon, tenant="a", scopes=["sessions"])
        for path in ("/agents", "/agents/writer", "/workflows", "/workflows/flow"):
            theirs = await daemon.ask("GET", path, headers=tenant)
            assert str(tmp_path).encode() not in theirs.raw, path
            assert b'"path":"' in theirs.raw
            ours = await daemon.ask("GET", path, headers=AS_OPERATOR)
            assert str(tmp_path).encode() in ours.raw, path


async def test_a_list_of_large_runs_reports_that_there_is_more(tmp_path):
    async with (
        house(tmp_path, backend="unisolated") as home,
        serving(home.engine, agents=home.service) as daemon,
    ):
        for _ in range(9):
            await home.agent("plain", "x" * 1_000_000, variables={"word": "x"})
        first = (await daemon.ask("GET", "/runs")).json
        assert 0 < first["count"] < 9
        rest = (await daemon.ask("GET", f"/runs?before={first['next']}")).json
        assert (first["count"] + rest["count"], rest["next"]) == (9, None)
