"""Agents of one workflow that cannot share a session: found before the run, or the run fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sandkasten.errors import Conflict
from sandkasten.model.runs.run_values import WorkflowRunRequest
from sandkasten_agents import run_preparation
from sandkasten_agents.workflows.step_order import StepOrder
from tests.agents.agency import house
from tests.models.server import Answer, Call

WIRED = "{mode: code, runtime: bash, allow_network: true}"
CLOSED = "{mode: code, runtime: bash, allow_network: false}"
LARGE = "{mode: code, runtime: bash, limits: {memory_mb: 1024}}"
PLAIN = "{mode: code, runtime: bash}"
FLOW = """id: flow
steps:
  - {id: one, type: agent, agent: first, task: go}
  - {id: two, type: agent, agent: second, task: go}
"""
BOTH = """id: flow
steps:
  - id: both
    type: parallel
    branches:
      - name: left
        steps: [{id: one, type: agent, agent: first, task: go}]
      - name: right
        steps: [{id: two, type: agent, agent: second, task: go}]
"""
EITHER = """id: flow
steps:
  - id: which
    type: switch
    expression: "input.kind"
    conditions: [{condition: "one", next: one}]
    defaultNext: two
  - {id: one, type: agent, agent: first, task: go, next: done}
  - {id: two, type: agent, agent: second, task: go, next: done}
  - {id: done, type: end}
"""
NETWORK: dict[str, Any] = {"SANDKASTEN_POLICY_NETWORK": "full"}


def agent(name: str, sandbox: str, more: str = "") -> str:
    text = f"---\nmodel: scripted\nmetadata: {{name: {name}}}\nsandbox: {sandbox}\n{more}\n---\n"
    return f"{text}You are {name}.\n"


def files(first: str, second: str, flow: str = FLOW, **more: str) -> dict[str, str]:
    return {
        "agents/first.prompt": agent("first", first),
        "agents/second.prompt": agent("second", second),
        "workflows/flow.yaml": flow,
        **more,
    }


def tries_once(asked):
    if asked.turn == 0:
        return Answer(calls=[Call("sandbox_exec", {"command": "echo here"})])
    return Answer("done, I believe")


@pytest.mark.promise("P124")
@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (WIRED, CLOSED, "network must be none, and the session has full"),
        (CLOSED, WIRED, "network must be full, and the session has none"),
        (WIRED, PLAIN, "network must be none, and the session has full"),
        (
            PLAIN,
            "{mode: code, limits: {memory_mb: 64}}",
            "limits.memory_mb must be 64, and the session has",
        ),
        (
            "{mode: code, limits: {memory_mb: 64}}",
            PLAIN,
            "limits.mem_limit_mb must be at least 512",
        ),
        (PLAIN, LARGE, "limits.memory_mb must be 1024, and the session has 512"),
        (
            PLAIN,
            "{mode: code, pip_packages: [pandas]}",
            "pip_packages must be pandas, and the session has",
        ),
        (
            PLAIN,
            "{mode: code, hostname: other}",
            "hostname must be other, and the session has sandbox",
        ),
    ],
)
async def test_a_conflict_is_found_before_anything_runs(tmp_path, first, second, field):
    async with house(tmp_path, backend="local", files=files(first, second), **NETWORK) as home:
        found = await home.service.check("workflow", FLOW, "flow")
        assert found.error is not None
        assert (found.error["code"], found.error["details"]["reason"]) == (
            "CONFLICT",
            "session_options",
        )
        said = found.error["message"]
        begin = (
            "agent 'second' (step two) cannot join the session that agent 'first' (step one) opens"
        )
        assert said.startswith(begin), said
        assert field in said
        assert "session: isolated" in found.error["hint"]
        [issue] = found.fields["issues"]
        assert (issue["code"], issue["path"]) == ("CONFLICT", "step two")
        with pytest.raises(Conflict) as caught:
            await home.service.start_workflow(WorkflowRunRequest("flow", {}))
        assert caught.value.message == said
        assert home.model.requests == []


async def test_pairs_of_agents_are_compared_in_a_thread(tmp_path, monkeypatch):
    threads = set()

    def noted(workflow):
        threads.add(threading.get_ident())
        return StepOrder(workflow)

    monkeypatch.setattr(run_preparation, "StepOrder", noted)
    async with house(tmp_path, backend="local", files=files(WIRED, CLOSED), **NETWORK) as home:
        assert (await home.service.check("workflow", FLOW, "flow")).error is not None
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


@pytest.mark.parametrize(
    ("first", "second", "flow"),
    [
        # The larger one opens it, and the default is small enough.
        (LARGE, PLAIN, FLOW),
        (WIRED, "{mode: code, runtime: bash, session: isolated}", FLOW),
        (WIRED, "{mode: code, runtime: bash, session: other}", FLOW),
        (WIRED, "{mode: compute, runtime: bash}", FLOW),
        # Only one of them runs.
        (WIRED, CLOSED, EITHER),
        (PLAIN, "{mode: code, timeout_seconds: 5, max_stdout_bytes: 9}", BOTH),
        (WIRED, "{mode: code, network: {enabled: true}}", FLOW),
    ],
)
async def test_agents_that_can_share_a_session_do(tmp_path, first, second, flow):
    every = files(first, second, flow)
    async with house(tmp_path, backend="local", files=every, script=tries_once, **NETWORK) as home:
        found = await home.service.check("workflow", flow, "flow")
        assert found.error is None, found.error
        if "compute" in second:
            return
        row = await home.flow("flow", {"kind": "two"})
        assert row.status == "completed", row.error


async def test_steps_at_the_same_time_conflict_in_either_order(tmp_path):
    every = files(LARGE, PLAIN, BOTH)
    async with house(tmp_path, backend="unisolated", files=every) as home:
        found = await home.service.check("workflow", BOTH, "flow")
        assert found.error is not None
        assert "agent 'first' (step one) cannot join" in found.error["message"]


async def test_an_agent_that_a_step_calls_is_checked_too(tmp_path):
    every = files(PLAIN, "{mode: code, runtime: bash}") | {
        "agents/second.prompt": agent("second", PLAIN, "agents: [third]"),
        "agents/third.prompt": agent("third", "{mode: code, limits: {pids_limit: 32}}"),
    }
    async with house(tmp_path, backend="unisolated", files=every) as home:
        found = await home.service.check("workflow", FLOW, "flow")
        assert found.error is not None
        assert "agent 'third' (step two) cannot join" in found.error["message"]
        # Without a workflow each of them has its own session.
        alone = await home.service.check("agent", every["agents/second.prompt"], "second")
        assert alone.error is None, alone.error


@pytest.mark.promise("P64")
@pytest.mark.parametrize("flow", [FLOW, BOTH])
async def test_a_step_whose_calls_were_all_refused_fails_with_that_error(tmp_path, flow):
    """The files change after the start, so no check finds it."""
    every = files(WIRED, WIRED, flow)
    changed = tmp_path / "agents" / "second.prompt"

    def script(asked):
        changed.write_text(agent("second", CLOSED))
        return tries_once(asked)

    started = flow.replace("- {id: one", "- {id: zero, type: agent, agent: plain}\n  - {id: one")
    if flow is BOTH:
        started = BOTH.replace(
            "steps:\n  - id: both",
            "steps:\n  - {id: zero, type: agent, agent: plain}\n  - id: both",
        )
    every["workflows/flow.yaml"] = started
    every["agents/plain.prompt"] = agent("plain", "{mode: compute, runtime: bash}")
    async with house(tmp_path, backend="local", files=every, script=script, **NETWORK) as home:
        row = await home.flow("flow", {})
        assert row.status == "failed", row
        runs = await home.service.runs(kind="agent")
        refused = [one for one in runs if one.status == "failed"]
        assert len(refused) == 1, runs
        assert refused[0].error is not None
        assert refused[0].error["code"] == "CONFLICT", refused[0].error
        assert refused[0].error["details"]["fields"] == ["network"]
        assert "cannot join the session that agent" in refused[0].error["message"]
        assert await home.sandboxes() == []
