"""The agent loop: tools, called agents, limits and mistakes of the model."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from plugins.agents.tests.loop_stage import agent, staged
from sandkasten.errors import (
    AgentNotFound,
    InvalidAgent,
    InvalidConfiguration,
    ModelUnavailable,
    PolicyDenied,
    QuotaExceeded,
    RunFailed,
    RunLimitReached,
)
from sandkasten.model.runs.run_values import RunUsage
from sandkasten_agents.loop.agent_loop import ChildAgent, LoopLimits, UsageMeter
from tests.agents.desk import opened
from tests.models.server import KEY, Answer, Asked, Call
from tests.patience import PATIENCE_S

CODE = "sandbox: {mode: code}"
PLAIN = agent()
CODER = agent(CODE)
SCHEMA = (
    "output:\n  schema:\n    type: object\n    properties: {n: {type: integer}}\n    required: [n]"
)
COUNTER = agent(SCHEMA)
FOREVER = Answer(calls=[Call("nowhere", {})])


@pytest.fixture
async def tools(tmp_path):
    async with opened(tmp_path / "d") as one:
        yield one


@pytest.fixture
async def unisolated_tools(tmp_path):
    async with opened(tmp_path / "d", "unisolated") as one:
        yield one


# ---- work in a sandbox


@pytest.mark.promise("P66")
async def test_an_agent_writes_runs_and_reads_back(tools):
    def script(asked: Asked) -> Answer:
        turns = [
            Answer(calls=[Call("sandbox_fs_write", {"path": "a.py", "contents": "print(6 * 7)"})]),
            Answer("I run it.", calls=[Call("sandbox_exec", {"command": "python3 a.py > out"})]),
            Answer(calls=[Call("sandbox_fs_read", {"path": "out"})]),
        ]
        if asked.turn < len(turns):
            return turns[asked.turn]
        return Answer(f"It printed {asked.last['contents'].strip()}.")

    async with staged(tools, script) as stage:
        result = await stage.run(CODER, "multiply")
    assert (result.output, result.text) == ("It printed 42.", "It printed 42.")
    assert result.usage == RunUsage(steps=4, tool_calls=3, prompt_tokens=40, completion_tokens=20)
    offered = [one["function"]["name"] for one in stage.model.requests[0].body["tools"]]
    assert offered == [spec.name for spec in tools.toolbox.specs(CODER.sandbox)]
    kinds = [kind for kind, _ in stage.notes]
    assert kinds == [
        *("agent.message", "agent.message"),
        *("model.called", "tool.called", "tool.answered"),
        *("model.called", "agent.message", "tool.called", "tool.answered"),
        *("model.called", "tool.called", "tool.answered"),
        *("model.called", "agent.message"),
    ]
    assert [one["text"] for one in stage.noted("agent.message")][1:] == [
        "multiply",
        "I run it.",
        "It printed 42.",
    ]
    assert all(one["ok"] for one in stage.noted("tool.answered"))
    assert KEY not in repr(stage.notes)


@pytest.mark.promise("P63")
async def test_calls_of_one_answer_run_concurrently_and_are_answered_in_order(tools):
    # Each waits for a file that the other writes: in sequence, neither would end.
    wait = "touch {mine}; until [ -e {other} ]; do sleep 0.01; done; echo {mine}"
    calls = [
        Call("sandbox_exec", {"cmd": ["sh", "-c", wait.format(mine=mine, other=other)]}, mine)
        for mine, other in (("a", "b"), ("b", "a"))
    ]
    async with staged(tools, [Answer(calls=calls), Answer("done")]) as stage:
        await stage.run(CODER)
    told = stage.model.requests[1].messages[-2:]
    assert [one["tool_call_id"] for one in told] == ["a", "b"]
    assert [json.loads(one["content"])["stdout"].strip() for one in told] == ["a", "b"]


async def test_a_long_tool_answer_is_shortened_and_marked_for_the_model(tools):
    command = "echo first; head -c 400000 /dev/zero | tr '\\0' x; echo; echo last"
    script = [Answer(calls=[Call("sandbox_exec", {"command": command})]), Answer("done")]
    async with staged(tools, script) as stage:
        await stage.run(CODER)
    content = stage.model.requests[1].messages[-1]["content"]
    assert len(content) <= LoopLimits().answer_chars
    told = json.loads(content)
    assert told["cut_for_model"] is True
    assert told["exit_code"] == 0
    assert told["stdout"].startswith("first\n")
    assert told["stdout"].endswith("last\n")
    assert "characters left out" in told["stdout"]
    assert len(stage.noted("tool.answered")[0]["answer"]) < 20_000


@pytest.mark.promise("P68")
async def test_cancelling_during_a_command_leaves_nothing(tools):
    script = [Answer(calls=[Call("sandbox_exec", {"command": "touch begun; sleep 1000"})])]
    async with staged(tools, script) as stage:
        task = asyncio.create_task(stage.run(CODER))
        await _until(lambda: _begun(tools))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _until(lambda: _nothing_runs(tools))
        await tools.toolbox.finish("agent", tools.context.agent_run_id)
    assert await tools.engine.list(all=True) == []


async def _begun(desk) -> bool:
    return (await desk.call("exec", cmd=["test", "-e", "begun"]))["exit_code"] == 0


async def _nothing_runs(desk) -> bool:
    # A list of arguments, to start a process beside the shell of the command.
    seen = await desk.call("exec", cmd=["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    return "sleep 1000" not in seen["stdout"]


async def _until(seen) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await seen():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.mark.promise("P67")
@pytest.mark.slow
async def test_the_deadline_ends_a_command_too(tools):
    slow = agent(f"{CODE}\ntimeout_seconds: 2.5")
    script = [Answer(calls=[Call("sandbox_exec", {"command": "sleep 1000"})])]
    await tools.call("open")
    async with staged(tools, script) as stage:
        with pytest.raises(RunLimitReached) as caught:
            await stage.run(slow)
        assert caught.value.details == {"limit": "timeout", "timeout_s": 2.5}
        await _until(lambda: _nothing_runs(tools))
    assert stage.noted("tool.called")[0]["name"] == "sandbox_exec"


# ---- agents that call agents


async def test_an_agent_calls_another_one_in_the_same_workflow(tools):
    writer = agent(
        f"{CODE}\nmetadata: {{description: Writes files.}}", says="You write.", name="the writer"
    )
    lead = agent(f"{CODE}\nagents: [the writer]", says="You lead.", name="lead")

    def script(asked: Asked) -> Answer:
        if "You write." in asked.system:
            if asked.turn:
                return Answer("written")
            return Answer(calls=[Call("sandbox_fs_write", {"path": "x", "contents": asked.user})])
        turns = [
            Answer(calls=[Call("agent_the_writer", {"task": "the words"})]),
            Answer(calls=[Call("sandbox_fs_read", {"path": "x"})]),
        ]
        if asked.turn < len(turns):
            return turns[asked.turn]
        return Answer(f"{asked.tool_answers[0]} {asked.last['contents']}")

    children: list[ChildAgent] = []

    async def recorded(child, note, work):
        children.append(child)
        return await work(child.context("run_child"), note)

    within = tools.within(workflow_run_id="run_flow")
    async with staged(within, script, writer, children=recorded) as stage:
        result = await stage.run(lead)
    answer = '{"ok": true, "agent": "the writer", "output": "written"}'
    assert result.text == f"{answer} the words"
    assert result.usage == RunUsage(5, 3, 50, 25)
    (child,) = children
    assert child.spent.usage == RunUsage(2, 1, 20, 10)
    context = child.context("run_child")
    assert (context.agent_run_id, context.workflow_run_id) == ("run_child", "run_flow")
    assert (context.depth, context.agent_name, context.sandbox) == (1, "the writer", writer.sandbox)
    offered = stage.model.requests[0].body["tools"][-1]["function"]
    assert offered["name"] == "agent_the_writer"
    assert "Writes files." in offered["description"]
    await tools.toolbox.finish("workflow", "run_flow")


async def test_a_called_agent_without_a_run_store_leaves_no_sandbox(tools):
    writer = agent(CODE, says="You write.", name="writer")
    lead = agent("agents: [writer]", says="You lead.", name="lead")

    def script(asked: Asked) -> Answer:
        if "You lead." in asked.system:
            return (
                Answer("end") if asked.turn else Answer(calls=[Call("agent_writer", {"task": "t"})])
            )
        return Answer("ok") if asked.turn else Answer(calls=[Call("sandbox_open", {})])

    async with staged(tools, script, writer) as stage:
        assert (await stage.run(lead)).text == "end"
    assert stage.noted("tool.answered")[0]["name"] == "sandbox_open"
    assert await tools.engine.list(all=True) == []


@pytest.mark.promise("P68")
async def test_cancelling_a_caller_ends_the_called_agent_and_its_sandbox(tools):
    worker = agent(CODE, says="You work.", name="worker")
    lead = agent("agents: [worker]", says="You lead.", name="lead")

    def script(asked: Asked) -> Answer:
        if "You lead." in asked.system:
            return Answer(calls=[Call("agent_worker", {"task": "t"})])
        if asked.turn == 0:
            return Answer(calls=[Call("sandbox_open", {})])
        return Answer(calls=[Call("sandbox_exec", {"command": "sleep 1000"})])

    async def running() -> bool:
        made = [info for info in await tools.engine.list() if info.status == "running"]
        execs = [await tools.engine.execs(info.id) for info in made]
        return any(one.status == "running" for some in execs for one in some)

    async with staged(tools, script, worker) as stage:
        task = asyncio.create_task(stage.run(lead))
        await _until(running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await tools.engine.list() == []


@pytest.mark.promise("P67")
async def test_agents_that_call_each_other_are_stopped(unisolated_tools):
    one = agent("agents: [two]", says="I am one.", name="one")
    two = agent("agents: [one]", says="I am two.", name="two")

    def script(asked: Asked) -> Answer:
        if asked.turn:
            return Answer("back")
        return Answer(
            calls=[Call("agent_two" if "one" in asked.system else "agent_one", {"task": "x"})]
        )

    async with staged(unisolated_tools, script, one, two) as stage:
        result = await stage.run(one)
    # Four levels: the agent below three others cannot call another, and gets an error.
    assert result.usage == RunUsage(8, 4, 80, 40)
    told = [json.loads(one["answer"]) for one in stage.noted("tool.answered")]
    assert told[0]["error"] == "unknown tool 'agent_two'" or told[0]["code"]
    assert [one["ok"] for one in told] == [False, True, True, True]


async def test_a_failure_of_a_called_agent_is_reported_to_its_caller(unisolated_tools):
    below = agent("max_steps: 1", says="below", name="below")
    lead = agent("agents: [below]", says="lead", name="lead")

    def script(asked: Asked) -> Answer:
        if "below" in asked.system:
            return FOREVER
        return (
            Answer(asked.last["code"])
            if asked.turn
            else Answer(calls=[Call("agent_below", {"task": "x"})])
        )

    async with staged(unisolated_tools, script, below) as stage:
        assert (await stage.run(lead)).text == "RUN_LIMIT_REACHED"


@pytest.mark.parametrize("arguments", [{"task": 7}, {"task": "x", "variables": []}])
async def test_a_task_of_the_wrong_type_is_reported_to_the_caller(unisolated_tools, arguments):
    lead = agent("agents: [tester]", name="lead")
    script = [Answer(calls=[Call("agent_tester", arguments)]), Answer("end")]
    async with staged(unisolated_tools, script, PLAIN) as stage:
        await stage.run(lead)
    assert json.loads(stage.model.requests[1].messages[-1]["content"])["code"] == "INVALID_REQUEST"


@pytest.mark.promise("P67")
async def test_tokens_of_a_called_agent_count_for_its_caller(unisolated_tools):
    below = agent(says="below", name="below")
    lead = agent("agents: [below]\nmax_tokens: 40", says="lead", name="lead")

    def script(asked: Asked) -> Answer:
        return (
            FOREVER
            if "below" in asked.system
            else Answer(calls=[Call("agent_below", {"task": "x"})])
        )

    spent = UsageMeter()
    async with staged(unisolated_tools, script, below) as stage:
        with pytest.raises(RunLimitReached) as error:
            await stage.run(lead, spent=spent)
        assert error.value.details == {"limit": "tokens", "used": 45, "most": 40}
    assert spent.usage == RunUsage(3, 3, 30, 15)


# ---- limits


@pytest.mark.promise("P67")
async def test_the_step_limit_ends_a_run_and_keeps_the_transcript(unisolated_tools):
    async with staged(unisolated_tools, lambda _: FOREVER) as stage:
        with pytest.raises(RunLimitReached) as caught:
            await stage.run(agent("max_steps: 3"))
    assert caught.value.details == {"limit": "steps", "steps": 3}
    assert len(stage.model.requests) == 3
    assert len(stage.noted("model.called")) == 3
    # The calls of the last answer are not run: no later answer would see their results.
    assert len(stage.noted("tool.called")) == 2


@pytest.mark.promise("P67")
async def test_the_token_limit_ends_a_run_that_would_go_on(unisolated_tools):
    async with staged(unisolated_tools, lambda _: FOREVER) as stage:
        with pytest.raises(RunLimitReached) as error:
            await stage.run(agent("max_tokens: 20"))
        assert error.value.details == {"limit": "tokens", "used": 30, "most": 20}
    async with staged(unisolated_tools, [Answer("done", usage=(100, 100))]) as stage:
        assert (await stage.run(agent("max_tokens: 20"))).text == "done"


async def test_an_endlessly_growing_conversation_is_ended(unisolated_tools):
    said = Answer("x" * 1000, calls=[Call("nowhere", {})])
    small = LoopLimits(conversation_chars=3000)
    async with staged(unisolated_tools, lambda _: said, limits=small) as stage:
        with pytest.raises(RunLimitReached) as error:
            await stage.run(PLAIN)
        assert error.value.details == {"limit": "conversation", "most_chars": 3000}
    assert len(stage.model.requests) == 3


@pytest.mark.promise("P27")
@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("max_steps: 301", "max_steps"),
        ("max_tokens: 6", "max_tokens"),
        ("timeout_seconds: 600000", "timeout_seconds"),
    ],
)
async def test_a_file_cannot_exceed_the_operators_limits(unisolated_tools, line, rule):
    async with staged(unisolated_tools, [], limits=LoopLimits(most_tokens=5)) as stage:
        with pytest.raises(PolicyDenied) as caught:
            await stage.run(agent(line))
        with pytest.raises(PolicyDenied):
            stage.loop.check(agent(line))
        stage.loop.check(PLAIN)
    assert caught.value.details["rule"] == rule
    assert stage.model.requests == []


async def test_an_answer_cut_off_is_a_limit_and_not_an_answer(unisolated_tools):
    async with staged(unisolated_tools, [Answer("half of it", finish_reason="length")]) as stage:
        with pytest.raises(RunLimitReached) as error:
            await stage.run(PLAIN)
        assert error.value.details == {"limit": "answer_length"}
    assert stage.noted("agent.message")[-1]["text"] == "half of it"


async def test_a_withheld_answer_is_a_failure(unisolated_tools):
    async with staged(unisolated_tools, [Answer("x", finish_reason="content_filter")]) as stage:
        with pytest.raises(RunFailed) as error:
            await stage.run(PLAIN)
        assert error.value.details == {"reason": "content_filter"}


async def test_a_conversation_too_long_for_the_model_is_a_failure_with_a_hint(unisolated_tools):
    told = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    long = Answer(status=400, raw=json.dumps(told).encode())
    async with staged(unisolated_tools, [FOREVER, long]) as stage:
        with pytest.raises(RunFailed) as caught:
            await stage.run(PLAIN)
        assert caught.value.details == {"reason": "context_length", "status": 400}
    assert "split the task" in caught.value.hint


# ---- mistakes of the model


@pytest.mark.promise("P63")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("sandbox_exe", {}), "did you mean sandbox_exec?"),
        (Call("no such / tool\n", {}), "unknown tool 'no_such_tool'"),
        (Call("", {}), "unknown tool 'unnamed'"),
        (Call("sandbox_exec", '{"command": "ls'), "not valid JSON"),
        (Call("sandbox_exec", "[1]"), "not a JSON object"),
        (Call("sandbox_exec", "[" * 5000), "not valid JSON"),
        (Call("sandbox_exec", '{"x": NaN}'), "not valid JSON"),
        (Call("sandbox_exec", {"cmd": 7}), "cmd"),
        (Call("sandbox_exec", ""), "cmd"),
    ],
)
async def test_an_invalid_call_is_explained_to_the_model(unisolated_tools, call, words):
    async with staged(unisolated_tools, [Answer(calls=[call]), Answer("sorry")]) as stage:
        assert (await stage.run(CODER)).text == "sorry"
    *_, assistant, told = stage.model.requests[1].messages
    assert words in told["content"]
    answer = json.loads(told["content"])
    assert (answer["ok"], answer["code"]) == (False, "INVALID_REQUEST")
    # The repeated call is valid for every endpoint.
    function = assistant["tool_calls"][0]["function"]
    assert isinstance(json.loads(function["arguments"]), dict)
    assert function["name"].replace("_", "").isalnum()


async def test_missing_and_duplicate_call_ids_are_made_unique(unisolated_tools):
    calls = [Call("a", {}, id) for id in ("", "x", "x", "call_1_0")]
    async with staged(unisolated_tools, [Answer(calls=calls), Answer("end")]) as stage:
        await stage.run(CODER)
    assistant, *told = stage.model.requests[1].messages[-5:]
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert ids == [one["tool_call_id"] for one in told]
    assert len(set(ids)) == 4


async def test_a_truncated_call_is_reported_to_the_model(unisolated_tools):
    cut = Answer(calls=[Call("sandbox_exec", '{"comm')], finish_reason="length")
    async with staged(unisolated_tools, [cut, Answer("end")]) as stage:
        await stage.run(CODER)
    assert "cut at its length limit" in stage.model.requests[1].messages[-1]["content"]


# ---- answers with a schema


@pytest.mark.parametrize(
    "text", ['{"n": 7}', '```json\n{"n": 7}\n```', 'Here:\n```\n{"n": 7}```\nDone.']
)
async def test_an_answer_that_fits_its_schema_is_a_value(unisolated_tools, text):
    async with staged(unisolated_tools, [Answer(text)]) as stage:
        result = await stage.run(COUNTER)
    assert (result.output, result.text) == ({"n": 7}, text)
    told = stage.model.requests[0].body["response_format"]
    assert told["type"] == "json_schema"
    assert told["json_schema"]["schema"]["required"] == ["n"]


async def test_json_without_a_schema_is_any_value(unisolated_tools):
    async with staged(unisolated_tools, [Answer("none"), Answer("[1]")]) as stage:
        assert (await stage.run(agent("output: {format: json}"))).output == [1]
    assert stage.model.requests[0].body["response_format"] == {"type": "json_object"}


@pytest.mark.promise("P63")
async def test_an_answer_that_violates_its_schema_is_corrected(unisolated_tools):
    script = [Answer('{"n": "seven"}'), Answer("seven"), Answer('{"n": 7}')]
    async with staged(unisolated_tools, script) as stage:
        assert (await stage.run(COUNTER)).output == {"n": 7}
    first, second = (one.messages[-2:] for one in stage.model.requests[1:])
    assert first[0] == {"role": "assistant", "content": '{"n": "seven"}'}
    assert "does not match" in first[1]["content"]
    assert "/n" in first[1]["content"]
    assert "not valid JSON" in second[1]["content"]


@pytest.mark.promise("P63")
async def test_an_answer_that_never_fits_its_schema_fails_with_the_reason(unisolated_tools):
    async with staged(unisolated_tools, lambda _: Answer('{"m": 1}')) as stage:
        with pytest.raises(RunFailed) as caught:
            await stage.run(COUNTER)
        assert caught.value.details == {
            "reason": "output_schema",
            "violations": ["#: 'n' is a required property"],
        }
    assert len(stage.model.requests) == 3


async def test_a_refusal_is_the_answer_unless_a_schema_is_required(unisolated_tools):
    async with staged(unisolated_tools, [Answer(refusal="I will not.")] * 2) as stage:
        assert (await stage.run(PLAIN)).text == "I will not."
        with pytest.raises(RunFailed, match="refused to answer: I will not"):
            await stage.run(COUNTER)


# ---- rejected before the first request


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("agents: [nobody]", AgentNotFound),
        ("tools: [sandbox_exec]", InvalidAgent),
        ("sandbox: {mode: code}\ntools: [sandbox_exex]", InvalidAgent),
    ],
)
async def test_an_agent_that_cannot_run_is_refused_at_once(unisolated_tools, text, kind):
    async with staged(unisolated_tools, []) as stage:
        with pytest.raises(kind):
            await stage.run(agent(text))
    assert (stage.model.requests, stage.notes) == ([], [])


async def test_an_agent_has_only_the_tools_of_its_list(unisolated_tools):
    few = agent(f"{CODE}\ntools: [sandbox_exec]")
    script = [Answer(calls=[Call("sandbox_open", {})]), Answer("end")]
    async with staged(unisolated_tools, script) as stage:
        await stage.run(few)
    (offered,) = stage.model.requests[0].body["tools"]
    assert offered["function"]["name"] == "sandbox_exec"
    assert "unknown tool" in stage.model.requests[1].messages[-1]["content"]


async def test_only_known_settings_of_the_file_are_sent_to_the_model(unisolated_tools):
    config = "config: {temperature: 0.5, maxOutputTokens: 9, topK: 3, stopSequences: [x]}"
    async with staged(unisolated_tools, [Answer("end")]) as stage:
        await stage.run(agent(config))
    body = stage.model.requests[0].body
    assert {name: body[name] for name in body if name not in ("messages", "stream_options")} == {
        "model": "scripted",
        "stream": True,
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ["x"],
    }


async def test_without_an_endpoint_no_run_starts(unisolated_tools):
    from sandkasten_agents.chat.model_settings import Models
    from sandkasten_agents.loop.agent_loop import AgentLoop

    loop = AgentLoop(Models(), unisolated_tools.toolbox, lambda name: PLAIN)
    with pytest.raises(InvalidConfiguration, match="no model endpoint"):
        loop.check_model(PLAIN)


# ---- failures of the endpoint


async def test_a_retried_model_call_is_recorded_and_the_run_continues(unisolated_tools):
    async with staged(unisolated_tools, [Answer(status=503, raw=b"busy"), Answer("end")]) as stage:
        assert (await stage.run(PLAIN)).text == "end"
    (told,) = stage.noted("model.retried")
    assert "busy" in told["reason"]


async def test_a_model_failure_fails_the_run_and_keeps_the_token_usage(unisolated_tools):
    spent = UsageMeter()
    async with staged(unisolated_tools, [FOREVER, Answer("x" * 99, fault="drop")]) as stage:
        with pytest.raises(ModelUnavailable):
            await stage.run(PLAIN, spent=spent)
    assert spent.usage == RunUsage(1, 1, 10, 5)
    assert len(stage.noted("tool.answered")) == 1


async def test_a_transcript_that_cannot_be_written_ends_the_run(unisolated_tools):
    async def full(type, data):
        if type == "tool.answered":
            raise QuotaExceeded("the disk is full")

    async with staged(unisolated_tools, [FOREVER]) as stage:
        with pytest.raises(QuotaExceeded):
            await stage.loop.run(PLAIN, "x", {}, unisolated_tools.context, full)


async def test_calling_a_tool_of_another_mode_explains_how_to_get_it(unisolated_tools):
    async with staged(unisolated_tools, []) as stage:
        with pytest.raises(InvalidAgent) as caught:
            await stage.run(agent("sandbox: python\ntools: [sandbox_exec]"))
    assert caught.value.hint == "sandbox_exec requires `sandbox: {mode: code}`"
