"""Agents that share a session: each keeps the rules of its own file, or cannot join."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plugins.agents.tests.sandboxes.test_frontmatter import asks
from sandkasten.model.audit_records import AuditFilter
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, UpdateRequest
from sandkasten_agents.definitions.sandbox_field import (
    LIMIT_FIELDS,
    NETWORK_FIELDS,
    SANDBOX_FIELDS,
    SESSION_FIELDS,
)
from tests.agents.desk import cleared, fresh, opened

SHARING = {
    **SANDBOX_FIELDS,
    **{f"session.{name}": rule for name, rule in SESSION_FIELDS.items()},
    **{f"network.{name}": rule for name, rule in NETWORK_FIELDS.items()},
    **{f"limits.{name}": rule for name, rule in LIMIT_FIELDS.items()},
}
# A value of each field that is not the default, as YAML below `sandbox:`.
OTHER = {
    "mode": "mode: compute",
    "runtime": "runtime: python",
    "image": "image: 'other:1'",
    "backend": "backend: other",
    "timeout_seconds": "timeout_seconds: 7",
    "max_stdout_bytes": "max_stdout_bytes: 7",
    "max_stderr_bytes": "max_stderr_bytes: 7",
    "allow_network": "allow_network: true",
    "pip_packages": "pip_packages: [pandas]",
    "npm_packages": "npm_packages: [lodash]",
    "profile": "profile: dev",
    "hostname": "hostname: other",
    "gpus": "gpus: 1",
    "session.name": "session: {name: workflow}",
    "session.retain": "session: {retain: 60}",
    "network.enabled": "network: {enabled: true}",
    "network.allow": "network: {allow: [a.org]}",
    "network.limits": "network: {allow: [a.org], limits: {connections: 3}}",
    "network.secrets": "network: {allow: [a.org], secrets: [A]}",
    "network.inspect": "network: {allow: [a.org], inspect: true}",
    "limits.cpu_limit": "limits: {cpu_limit: 0.5}",
    "limits.cpu_millicores": "limits: {cpu_millicores: 500}",
    "limits.mem_limit_mb": "limits: {mem_limit_mb: 64}",
    "limits.memory_mb": "limits: {memory_mb: 64}",
    "limits.pids_limit": "limits: {pids_limit: 64}",
    "limits.workspace_mb": "limits: {workspace_mb: 64}",
    "limits.tmp_mb": "limits: {tmp_mb: 32}",
    "limits.max_open_files": "limits: {max_open_files: 256}",
    "limits.exec_timeout_seconds": "limits: {exec_timeout_seconds: 7}",
    "limits.max_exec_timeout_seconds": "limits: {max_exec_timeout_seconds: 7}",
    "limits.max_stdout_bytes": "limits: {max_stdout_bytes: 7}",
    "limits.max_stderr_bytes": "limits: {max_stderr_bytes: 7}",
    "limits.max_artifact_bytes": "limits: {max_artifact_bytes: 7}",
    "limits.max_artifacts_count": "limits: {max_artifacts_count: 7}",
    "limits.max_file_size_bytes": "limits: {max_file_size_bytes: 7}",
    "limits.max_files": "limits: {max_files: 7}",
    "limits.gpus": "limits: {gpus: 1}",
    "limits.timeout_seconds": "limits: {timeout_seconds: 90}",
    "limits.idle_timeout_seconds": "limits: {idle_timeout_seconds: 90}",
}
# Refused on this machine before a session is looked at.
ELSEWHERE = {
    "image",
    "backend",
    "profile",
    "gpus",
    "limits.gpus",
    "network.secrets",
}
PACKAGES = ("pip_packages", "npm_packages")


@pytest.fixture(scope="module")
async def engine_with_network(tmp_path_factory, anyio_backend):
    """An engine whose operator permits every network."""
    async with opened(tmp_path_factory.mktemp("n"), policy_network="full") as one:
        yield one


@pytest.fixture
async def desk(engine_with_network):
    yield fresh(engine_with_network.engine, engine_with_network.store)
    await cleared(engine_with_network.engine)


def agent(desk, text: str = "", name: str = "one", **more: Any):
    """Return the tools of an agent of a workflow run."""
    fields = text if text.startswith("mode") else ", ".join(filter(None, ["mode: code", text]))
    context = {"workflow_run_id": "flow", "agent_run_id": f"run_{name}", "agent_name": name}
    return asks(desk, f"{{{fields}}}", **{**context, **more})


def check_refused(answer: dict[str, Any], field: str) -> None:
    assert (answer["code"], answer["details"].get("reason")) == ("CONFLICT", "session_options")
    assert answer["details"]["fields"] == [field], answer


def test_every_field_has_an_example():
    assert set(OTHER) == {name for name, rule in SHARING.items() if rule != "see below"}


@pytest.mark.promise("P124")
@pytest.mark.parametrize("name", [name for name in OTHER if SHARING[name] == "same"])
async def test_a_field_of_the_session_must_agree_in_both_orders(desk, name):
    joiner = agent(desk, OTHER[name], "other")
    if name in ELSEWHERE:
        await agent(desk).call("open")
        assert (await joiner.call("open"))["code"] not in ("CONFLICT", "INTERNAL_ERROR")
        return
    field = "network" if "network" in name else name
    await agent(desk).call("open")
    for call in ("open", "fs_list"):
        check_refused(await joiner.call(call), field)
    check_refused(await joiner.call("exec", cmd="true"), field)
    if name in PACKAGES:
        said = (await joiner.call("open"))["message"]
        assert (
            f"sandbox.{name} must be {OTHER[name].split('[')[1][:-1]}, and the session has" in said
        )
        return
    # The agent that wrote it opens, and the one that wrote the default joins.
    first = await joiner.call("open", session_key="second")
    assert first["created"] is True, first
    joined = await agent(desk).call("open", session_key="second")
    said = joined["details"]["fields"] if joined.get("ok") is False else ["nothing"]
    expected = ["nothing"] if name == "hostname" else [LEAST.get(field, field)]
    assert said == expected, (name, joined)


LEAST = {
    "limits.cpu_millicores": "limits.cpu_limit",
    "limits.memory_mb": "limits.mem_limit_mb",
}


@pytest.mark.promise("P124")
@pytest.mark.parametrize(
    "name", [one for one in OTHER if SHARING[one] not in ("same", "see below")]
)
async def test_a_field_of_the_agents_own_never_refuses(desk, name):
    own = agent(desk, OTHER[name], "other")
    if name == "mode":
        assert (await own.call("fs_list"))["code"] == "INVALID_REQUEST"
        return
    await agent(desk).call("open", session_key="second")
    await own.call("open")
    for one, key in ((agent(desk), "default"), (own, "second")):
        answer = await one.call("open", session_key=key)
        assert answer.get("created") is False, answer


@pytest.mark.promise("P124")
async def test_an_agent_without_a_network_never_runs_in_a_session_with_one(desk):
    wired = agent(desk, "allow_network: true", "wired")
    box = (await wired.call("open"))["sandbox_id"]
    for text in ("allow_network: false", "network: {enabled: false}", "network: none", ""):
        for session in ("workflow", "isolated", "other"):
            closed = agent(desk, f"session: {session}, {text}".rstrip(", "), "closed")
            for call, given in {
                "exec": {"cmd": "true"},
                "exec_read": {"exec_id": "exe_1"},
                "exec_wait": {"exec_id": "exe_1"},
                "code": {"code": "1"},
                "fs_write": {"path": "x", "text": ""},
                "fs_read": {"path": "x"},
                "fs_list": {},
                "fs_delete": {"path": "x"},
                "stage_file": {"file_key": "k", "destination": "x"},
                "publish_file": {"source": "x"},
                "close": {},
            }.items():
                check_refused(await closed.call(call, sandbox_id=box, **given), "network")
    message = (await closed.call("fs_list", sandbox_id=box))["message"]
    assert message == (
        "agent 'closed' cannot join the session that agent 'wired' opens: sandbox.network must be "
        "none, and the session has full"
    )


@pytest.mark.promise("P124")
async def test_a_network_that_is_opened_later_keeps_a_closed_agent_out(desk):
    wired = agent(desk, "network: {allow: [a.org]}", "wired")
    closed = agent(desk, "session: closed", "closed")
    one, other = (await wired.call("open"))["sandbox_id"], (await closed.call("open"))["sandbox_id"]
    wide = UpdateRequest(network={"allow": ["a.org", "b.org"]})
    await desk.engine.update(one, wide)
    # Its owner may change the rules of a session that has a network.
    assert (await wired.call("exec", cmd="true"))["exit_code"] == 0
    info = await desk.engine.get(other)
    assert info.network == "none"
    check = await closed.call("exec", cmd="true")
    assert check["exit_code"] == 0


async def test_a_key_in_the_older_spelling_leads_to_no_other_rules(desk):
    """Such a key names another session, which a client of the tenant can create."""
    closed = agent(desk, "allow_network: false", "closed")
    await closed.call("open")
    options = SandboxOptions(network="full")
    wide = await desk.engine.create(CreateRequest(options, session_key="workflow_flow_sandbox"))
    check_refused(await closed.call("exec", cmd="true", sandbox_id=wide.id), "network")
    assert (await closed.call("exec", cmd="true"))["exit_code"] == 0


async def test_two_agents_at_once_share_one_session_or_one_is_refused(desk):
    for names in (("wired", "closed"), ("closed", "wired")):
        key = f"{names[0]}-first"
        files = {"wired": "allow_network: true", "closed": "allow_network: false"}
        both = [agent(desk, f"session: {key}, {files[name]}", name) for name in names]
        answers = await asyncio.gather(*(one.call("exec", cmd="echo here") for one in both * 10))
        worked = [one for one in answers if "exit_code" in one]
        assert len(worked) == 10
        assert len({one["sandbox_id"] for one in worked}) == 1
        for one in answers:
            if one not in worked:
                check_refused(one, "network")


async def test_another_process_keeps_the_rules(desk):
    await agent(desk, "limits: {memory_mb: 64}").call("open")
    again = fresh(desk.engine, desk.store)
    check_refused(await agent(again, "", "other").call("fs_list"), "limits.mem_limit_mb")
    same = await agent(again, "limits: {mem_limit_mb: 64}", "same").call("fs_list")
    assert same["entries"] == []


async def test_a_paused_session_refuses_too_and_wakes_for_no_one(desk):
    box = (await agent(desk, "allow_network: true").call("open"))["sandbox_id"]
    await desk.engine.pause(box)
    check_refused(await agent(desk, "", "other").call("fs_list"), "network")
    assert (await desk.engine.get(box)).status == "paused"
    await desk.engine.resume(box)
    check_refused(await agent(desk, "", "other").call("fs_list"), "network")


async def test_each_agent_has_its_own_timeouts_and_output(desk):
    short = agent(
        desk,
        "limits: {exec_timeout_seconds: 0.3, max_exec_timeout_seconds: 5, max_stdout_bytes: 999}",
        "short",
    )
    await short.call("open")
    plain = agent(desk, "", "plain")
    long = await plain.call("exec", cmd="echo 0123456789; sleep 0.6", timeout_seconds=30)
    assert (long["stdout"], long["timed_out"]) == ("0123456789\n", False)
    default = await plain.call("exec", cmd="sleep 0.6")
    assert default["timed_out"] is False
    cut = await short.call("exec", cmd="seq 2000")
    assert (cut["truncated"], "\n1000\n" in cut["stdout"]) == (True, False)
    begun = await short.call("exec", cmd="seq 2000", stream=True)
    waited = await short.call("exec_wait", exec_id=begun["exec_id"], timeout_seconds=30)
    for answer in (cut, waited):
        assert ("\n1000\n" in answer["output"], len(answer["output"]) < 1100) == (False, True)
    both = await short.call("exec", cmd="echo out; echo err >&2")
    assert sorted(both["output"].split()) == ["err", "out"]
    assert (await short.call("exec", cmd="sleep 60"))["timed_out"] is True
    late = await short.call("exec", cmd="true", timeout_seconds=6)
    assert late["message"] == "a timeout of 6 s is over max_exec_timeout_seconds (5)"
    wide = agent(desk, "max_stdout_bytes: 300000", "wide")
    much = await wide.call("exec", cmd="head -c 250000 /dev/zero | tr '\\0' x")
    assert (len(much["stdout"]), much["truncated"]) == (250_000, False)


async def test_a_session_that_another_agent_closed_is_new_with_a_notice(desk):
    opens, closes = agent(desk, "", "opens"), agent(desk, "", "closes", agent_run_id="run_two")
    old = (await opens.call("fs_write", path="a", text="b"))["sandbox_id"]
    assert (await closes.call("close"))["closed"] is True
    answer = await opens.call("fs_list")
    assert (answer["entries"], answer["sandbox_id"] != old) == ([], True)
    assert "its files are lost" in answer["notice"]
    # The agent that closed it knows.
    assert (await opens.call("close"))["closed"] is True
    assert "notice" not in await opens.call("fs_list")


@pytest.mark.promise("P86")
async def test_records_name_the_agent_and_its_run(desk):
    first = agent(desk, "", "first", agent_run_id="run_one")
    second = agent(desk, "", "second", agent_run_id="run_two")
    client = agent(desk, "", "client", client=True)
    for one in (first, second, client):
        await one.call("exec", cmd=f"echo {one.context.agent_name}")
        await one.call("exec", cmd="true", stream=True)
        answer = await one.call("fs_write", path=one.context.agent_name, text="x")
    box = answer["sandbox_id"]
    history = await desk.engine.execs(box)
    ran = [(row.command, row.agent, row.run_id) for row in history if "echo" in row.command]
    assert ran == [
        ("echo first", "first", "run_one"),
        ("echo second", "second", "run_two"),
        ("echo client", None, None),
    ]
    log = desk.engine.trail.log
    rows = await log.read(AuditFilter(session_id=box))
    agents = {
        (row.action, row.detail.get("agent"), row.detail.get("run_id"))
        for row in rows
        if row.kind in ("exec", "file")
    }
    ends = {("first", "run_one"), ("second", "run_two"), (None, None)}
    assert {one for one in agents if one[0] != "exec.start"} == {
        (action, *one) for action in ("exec.end", "file.write") for one in ends
    }


async def test_a_session_lives_as_long_as_the_agent_that_asks_for_most(desk):
    box = (await agent(desk, "limits: {idle_timeout_seconds: 60}").call("open"))["sandbox_id"]
    assert (await desk.engine.get(box)).idle_timeout_s == 60
    await agent(desk, "limits: {idle_timeout_seconds: 90}", "longer").call("open")
    assert (await desk.engine.get(box)).idle_timeout_s == 90
    await agent(desk, "limits: {idle_timeout_seconds: 30}", "shorter").call("open")
    assert (await desk.engine.get(box)).idle_timeout_s == 90


async def test_a_client_of_the_tools_names_what_it_requires(desk):
    request = CreateRequest(SandboxOptions(network="full"), session_key="agent:run_one:default")
    box = await desk.engine.create(request)
    client = agent(desk, "", workflow_run_id=None, client=True)
    assert (await client.call("open"))["sandbox_id"] == box.id
    named = agent(desk, "allow_network: false", workflow_run_id=None, client=True)
    check_refused(await named.call("open"), "network")
