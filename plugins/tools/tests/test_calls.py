"""Every tool call gets an answer, whatever a model sends; only cancellation propagates."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.tool_answers import failed
from sandkasten_tools.calls.tool_schemas import TOOLS
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

BODY = {"ok", "error_code", "error", "code", "message", "hint", "retryable", "details"}

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=30)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


def calls(name: str) -> st.SearchStrategy[dict[str, object]]:
    """Return objects with some arguments of a tool, of any type, and sometimes others."""
    names = st.sampled_from(sorted(TOOLS[name].parameters["properties"]))
    return st.dictionaries(names | st.text(max_size=12), anything, max_size=5)


@pytest.mark.promise("P63")
@pytest.mark.parametrize("name", few(TOOLS, 4))
async def test_arguments_that_violate_the_schema_get_an_error_answer(unisolated_tools, name):
    schema = Draft202012Validator(TOOLS[name].parameters)
    # The session never exists, so a valid call has no effect either.
    loop = asyncio.get_running_loop()
    answers: list[tuple[object, dict[str, object]]] = []

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(calls(name) | anything)
    def attempt(arguments: object) -> None:
        if isinstance(arguments, dict) and schema.is_valid(arguments):
            return
        call = unisolated_tools.toolbox.call(name, arguments, unisolated_tools.context)
        answers.append((arguments, asyncio.run_coroutine_threadsafe(call, loop).result(PATIENCE_S)))

    await asyncio.to_thread(attempt)
    assert len(answers) > 10
    for arguments, answer in answers:
        assert set(answer) == BODY, arguments
        assert (answer["ok"], answer["code"]) == (False, "INVALID_REQUEST"), arguments
        json.dumps(answer, allow_nan=False).encode()
        assert len(json.dumps(answer)) < 20_000


@pytest.mark.promise("P63")
@pytest.mark.parametrize("name", few(sorted(set(TOOLS) - {"sandbox_run", "sandbox_open"}), 4))
async def test_arguments_that_fit_the_schema_always_get_an_answer(unisolated_tools, name):
    """Unusual values of the right type raise nothing, and the answer is JSON."""
    odd = ["\ud800", "\0", "a\nb", "../..", "/", "é" * 100, "-", " "]
    tool = TOOLS[name].parameters
    for text in odd:
        arguments: dict[str, object] = {
            key: text
            for key in tool["required"] or ["path"]
            if tool["properties"].get(key, {}).get("type") == "string"
        }
        if name == "sandbox_exec":
            arguments = {"cmd": [text]}
        if name == "sandbox_fs_write":
            arguments["text"] = text
        answer = await unisolated_tools.toolbox.call(name, arguments, unisolated_tools.context)
        json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()


async def test_arguments_with_millions_of_parts_or_levels_are_refused_at_once(unisolated_tools):
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for command in (deep, [1] * 1_000_000, [[1] * 1000] * 1000):
        answer = await unisolated_tools.call("exec", cmd=command)
        assert answer["details"]["problems"] == ["the arguments have too many parts"]
    answer = await unisolated_tools.call("exec", cmd=["true", *["x"] * 9_000])
    assert answer["exit_code"] == 0


async def test_an_error_has_the_standard_body_and_names_the_nearest_argument(unisolated_tools):
    answer = await unisolated_tools.call("fs_read", pth="x")
    assert answer == {
        "ok": False,
        "error_code": "INVALID_REQUEST",
        "error": answer["message"],
        "code": "INVALID_REQUEST",
        "message": "sandbox_fs_read rejected its arguments: "
        "unknown argument 'pth' (did you mean path?)",
        "hint": "fix the arguments and call it again",
        "retryable": False,
        "details": {
            "tool": "sandbox_fs_read",
            "problems": ["unknown argument 'pth' (did you mean path?)"],
        },
    }
    assert failed(answer)


async def test_an_unknown_tool_is_an_answer_that_names_the_nearest(unisolated_tools):
    answer = await unisolated_tools.toolbox.call("sandbox_exce", {}, unisolated_tools.context)
    assert (answer["code"], answer["hint"]) == ("INVALID_REQUEST", "did you mean sandbox_exec?")
    assert failed(await unisolated_tools.toolbox.call(None, {}, unisolated_tools.context))


async def test_compute_mode_has_one_tool_and_code_mode_twelve(unisolated_tools):
    box = unisolated_tools.toolbox
    assert [spec.name for spec in box.specs(AgentSandbox())] == ["sandbox_run"]
    assert len(box.specs(AgentSandbox(mode="code"))) == 12
    assert box.specs(None) == ()
    refused = await unisolated_tools.asking(AgentSandbox()).call("exec", cmd="ls")
    assert refused["message"] == "unknown tool 'sandbox_exec'"


async def test_an_unexpected_failure_reveals_no_internal_values(unisolated_tools, monkeypatch):
    async def broken(*_: object, **__: object) -> None:
        raise ValueError("sk-secret-of-the-daemon")

    monkeypatch.setattr(unisolated_tools.engine.files, "read", broken)
    answer = await unisolated_tools.call("fs_read", path="x")
    assert answer["code"] == "INTERNAL_ERROR"
    assert "secret" not in json.dumps(answer)


async def test_cancelling_a_call_propagates_and_the_command_continues(tools):
    started = await tools.call("exec", cmd=["sh", "-c", "echo 1 > begun; sleep 60"], stream=True)
    waiting = asyncio.create_task(tools.call("exec_wait", exec_id=started["exec_id"]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    still = await tools.call("exec_wait", exec_id=started["exec_id"], timeout_seconds=0)
    assert (still["done"], still["status"]) == (False, "running")


async def test_nothing_of_the_daemons_environment_leaks(tools, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_API_KEY", "sk-of-the-daemon")
    answers = [
        await tools.call("exec", cmd="env; cat /proc/self/environ | tr '\\0' '\\n'"),
        await tools.call("run", runtime="bash", code="env"),
    ]
    assert "sk-of-the-daemon" not in json.dumps(answers)
