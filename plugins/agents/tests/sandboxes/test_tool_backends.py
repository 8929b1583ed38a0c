"""The backend of an agent's sandbox: by its file, by the rules of the operator, by the caller."""

from __future__ import annotations

import json

import pytest

from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_agents.definitions.library import Library
from sandkasten_agents.definitions.prompt_file import parse_agent
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.tool_access import open_tools
from tests.agents.agency import WRITER
from tests.agents.desk import opened

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.promise("P118")]

RULES = [{"agent": "reviewer", "use": "oci"}, {"label": {"sandkasten.agent": "*"}, "use": "local"}]


@pytest.fixture(scope="module")
async def desk(tmp_path_factory, anyio_backend):
    async with opened(tmp_path_factory.mktemp("d"), policy_backends=json.dumps(RULES)) as one:
        yield one


async def backend_of(desk, run: str, **context) -> str:
    desk = desk.within(agent_run_id=run, **context)
    opened = await desk.call("open")
    assert opened.get("error") is None, opened
    return (await desk.engine.get(opened["sandbox_id"])).backend


async def test_rule_about_an_agent_is_for_the_operators_agents_alone(desk):
    assert await backend_of(desk, "run_1", agent_name="reviewer", installed=True) == "oci"
    # A client can send a file with any name, and set any label.
    assert await backend_of(desk, "run_2", agent_name="reviewer") == "local"
    ours = desk.within(agent_name="reviewer", installed=True, sandbox=AgentSandbox())
    assert (await ours.call("run", code="print(1)"))["stdout"] == "1\n"
    theirs = desk.within(agent_name="reviewer", sandbox=AgentSandbox())
    assert (await theirs.call("run", code="print(1)"))["stdout"] == "1\n"


async def test_agents_file_names_the_backend(desk):
    sandbox = AgentSandbox(mode="code", options=SandboxOptions(backend="oci"))
    assert await backend_of(desk, "run_3", sandbox=sandbox) == "oci"
    other = AgentSandbox(mode="code", options=SandboxOptions(backend="local"))
    refused = await desk.within(agent_run_id="run_3", sandbox=other).call("open")
    assert refused["error_code"] == "CONFLICT"
    unknown = AgentSandbox(mode="code", options=SandboxOptions(backend="bubblewrap"))
    refused = await desk.within(agent_run_id="run_4", sandbox=unknown).call("open")
    assert refused["error_code"] == "BACKEND_UNAVAILABLE"


async def test_tools_of_a_program_have_the_backend_that_it_names(tmp_path):
    place = ServerAddress(str(tmp_path / "d"), "local")
    with pytest.raises(BackendUnavailable, match="backend bubblewrap is not installed here"):
        async with open_tools(place, backend="bubblewrap"):
            pass


def test_only_files_of_the_library_are_the_operators(tmp_path):
    (tmp_path / "writer.prompt").write_text(WRITER)
    assert Library((tmp_path,)).agent("writer").installed
    assert not parse_agent(WRITER).installed
