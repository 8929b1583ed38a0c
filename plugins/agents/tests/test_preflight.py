"""What is known to be wrong before a model is asked: images, agents, settings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sandkasten.errors import PolicyDenied
from sandkasten.model.runs.run_values import AgentRunRequest
from tests.agents.agency import FLOW, WRITER, house

MISSING = "IMAGE_NOT_FOUND"


def agent(sandbox: str, more: str = "") -> str:
    return f"---\nmodel: scripted\nsandbox: {sandbox}\n{more}\n---\nYou are in vain.\n"


@pytest.fixture
async def home(tmp_path):
    async with house(tmp_path, backend="unisolated", SANDKASTEN_IMAGES_PULL="never") as one:
        yield one


@pytest.fixture
async def strict(tmp_path):
    """A service whose operator allows one image."""
    async with house(
        tmp_path,
        backend="unisolated",
        SANDKASTEN_ALLOWED_IMAGES="host",
        SANDKASTEN_IMAGES_PULL="never",
    ) as one:
        yield one


@pytest.mark.promise("P61")
@pytest.mark.parametrize("mode", ["compute", "code"])
@pytest.mark.parametrize("field", ["image", "runtime"])
async def test_a_missing_image_fails_a_run_before_the_model_is_asked(home, mode, field):
    row = await home.agent(
        "vain", "go", source=agent(f"{{mode: {mode}, {field}: 'nowhere/bash:1'}}")
    )
    assert (row.status, row.error["code"]) == ("failed", MISSING), row.error
    assert "nowhere/bash:1" in row.error["message"]
    assert home.model.requests == []
    assert await home.sandboxes() == []


@pytest.mark.promise("P61")
@pytest.mark.parametrize("mode", ["compute", "code"])
@pytest.mark.parametrize("fields", ["profile: dev", "profile: dev, image: host"])
async def test_a_profile_that_requires_an_image_is_found_by_validation(home, mode, fields):
    source = agent(f"{{mode: {mode}, {fields}}}")
    found = await home.service.check("agent", source, "vain")
    row = await home.agent("vain", "go", source=source)
    for error in (found.error, row.error):
        assert (error["code"], error["message"]) == (
            "UNSUPPORTED_BY_BACKEND",
            "profile dev requires an image: nothing can be installed into the host's own /usr",
        )
    assert home.model.requests == []


@pytest.mark.promise("P61")
@pytest.mark.parametrize("mode", ["compute", "code"])
async def test_a_forbidden_image_fails_a_run_before_the_model_is_asked(strict, mode):
    row = await strict.agent("vain", "go", source=agent(f"{{mode: {mode}, image: 'python:3.12'}}"))
    assert (row.status, row.error["code"]) == ("failed", "FORBIDDEN"), row.error
    assert "python:3.12" in row.error["message"]
    assert strict.model.requests == []
    fine = await strict.agent("fine", "go", source=agent(f"{{mode: {mode}, image: host}}"))
    assert fine.status == "completed", fine.error


@pytest.mark.promise("P61")
@pytest.mark.parametrize("mode", ["compute", "code"])
@pytest.mark.parametrize(
    ("allowed", "image", "code"),
    [("host,nowhere:1", "nowhere:1", MISSING), ("host", "python:3.12", "FORBIDDEN")],
)
async def test_validation_reports_a_missing_and_a_forbidden_image(
    tmp_path, allowed, image, code, mode
):
    operator = {"SANDKASTEN_ALLOWED_IMAGES": allowed, "SANDKASTEN_IMAGES_PULL": "never"}
    async with house(tmp_path, backend="unisolated", **operator) as home:
        text = agent(f"{{mode: {mode}, image: '{image}'}}")
        found = await home.service.check("agent", text, "vain")
        assert found.error is not None
        assert found.error["code"] == code
        assert image in found.error["message"]
        assert (await home.service.check("agent", agent("{image: host}"), "fine")).error is None
        assert home.model.requests == []


async def test_an_image_that_a_run_would_pull_is_a_warning(tmp_path):
    async with house(tmp_path, backend="unisolated", SANDKASTEN_IMAGES_PULL="missing") as home:
        found = await home.service.check("agent", agent("{image: 'nowhere.invalid/a:1'}"), "vain")
    assert (found.error, found.warnings) == (
        None,
        ("the image of agent vain is not here; a run fetches it first",),
    )


async def test_every_problem_of_a_workflow_is_named_and_no_model_is_needed(tmp_path):
    files = {
        "agents/greedy.prompt": agent("{timeout_seconds: 7200}"),
        "agents/lost.prompt": agent("{mode: code, session: isolated, image: 'nowhere:1'}"),
        "agents/wired.prompt": agent("{network: {enabled: true}}", "agents: [ghost]"),
    }
    flow = """id: flow
steps:
  - {id: a, type: agent, agent: nobody}
  - {id: b, type: agent, agent: greedy}
  - {id: c, type: agent, agent: lost}
  - {id: d, type: agent, agent: wired}
  - {id: e, type: agent, agent: noone}
  - {id: f, type: agent, agent: noone}
"""
    none: dict[str, Any] = {"SANDKASTEN_MODELS_BASE_URL": "", "SANDKASTEN_IMAGES_PULL": "never"}
    async with house(tmp_path, backend="unisolated", files=files, **none) as home:
        found = await home.service.check("workflow", flow, "flow")
        assert found.error is not None
        issues = found.error["details"]["issues"]
        assert (found.error["code"], len(issues)) == ("AGENT_NOT_FOUND", 6)
        assert found.error["message"] == "agent 'nobody' not found (and 5 more)"
        for words in (
            "AGENT_NOT_FOUND step a: agent 'nobody' not found",
            "FORBIDDEN step b: sandbox.timeout_seconds requests 7200 s",
            "agent lost: image nowhere:1",
            "FORBIDDEN step d: sandbox.network.enabled requests full",
            "AGENT_NOT_FOUND agent wired: agent 'ghost' not found",
            "AGENT_NOT_FOUND steps e, f: agent 'noone' not found",
        ):
            assert any(words in one for one in issues), (words, issues)
        assert [one["code"] for one in found.fields["issues"]] == [one.split()[0] for one in issues]
        fine = await home.service.check("workflow", FLOW, "flow")
        assert fine.error is None
        assert [one for one in fine.warnings if "no model endpoint" in one] == [*fine.warnings]


async def test_an_agent_that_can_join_a_session_needs_no_image_of_its_own(tmp_path):
    files = {"agents/reader.prompt": agent("{mode: code, runtime: 'nowhere:1'}")}
    async with house(
        tmp_path, backend="unisolated", files=files, SANDKASTEN_IMAGES_PULL="never"
    ) as home:
        found = await home.service.check("workflow", FLOW, "flow")
        assert found.error is None
        assert [one.split(":")[0] for one in found.warnings] == [
            "agent reader can only join a session, not open one"
        ]
        alone = await home.service.check("agent", files["agents/reader.prompt"], "reader")
        assert alone.error is not None
        row = await home.flow("flow", {"text": "abc"})
        assert row.status == "completed", row.error


@pytest.mark.promise("P61")
@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{allow_network: true}", "sandbox.allow_network requests full"),
        ("{network: {enabled: true}}", "sandbox.network.enabled requests full"),
        ("{network: {allow: [a.org]}}", "sandbox.network.allow requests a.org"),
    ],
)
async def test_a_network_is_refused_under_the_name_that_the_file_uses(tmp_path, line, field):
    async with house(tmp_path, backend="unisolated") as home:
        found = await home.service.check("agent", agent(line), "wired")
        assert found.error is not None
        assert (
            found.error["message"]
            == f"{field}, but this network is not permitted here; policy.network allows none"
        )
    async with house(
        tmp_path, backend="unisolated", SANDKASTEN_POLICY_ALLOW_NETWORK="true"
    ) as home:
        found = await home.service.check("agent", agent(line), "wired")
        assert found.error is None
        # That setting is for the operator's runs; those of a key need policy.network.
        found = await home.service.check("agent", agent(line), "wired", key_id="key_1")
        assert found.error is not None
        assert found.error["message"].startswith(f"{field}, but ")
        with pytest.raises(PolicyDenied, match=re.escape(field)):
            await home.service.start_agent(
                AgentRunRequest("wired", "x", source=agent(line), key_id="key_1")
            )


async def test_an_agent_of_a_run_keeps_working_without_a_missing_image(home):
    row = await home.agent("fine", "hello", source=WRITER)
    assert row.status == "completed", row.error
