"""Each type of step: what it does and how it fails."""

# ruff: noqa: E501 - a workflow on a line of its own is easier to read than one in pieces

from __future__ import annotations

import asyncio

import pytest

from plugins.agents.tests.workflows.flow import Flow, PowerCut
from sandkasten.errors import (
    Cancelled,
    InvalidRequest,
    ModelUnavailable,
    PolicyDenied,
    QuotaExceeded,
    RunFailed,
    RunLimitReached,
)
from sandkasten_agents.workflows.workflow_runner import WorkflowLimits


def _flow(expressions, *lines: str, **options) -> Flow:
    return Flow(
        "id: x\nsteps:\n" + "".join(f"- {line}\n" for line in lines), expressions, **options
    )


async def test_set_and_transform_create_values_for_later_steps(expressions) -> None:
    flow = _flow(
        expressions,
        "{id: start, type: set, data: {n: 1, who: '${input.name}'}}",
        "{id: more, type: context, data: {deep: '${vars.n + 1}'}, resultPath: vars.box.inner}",
        "{id: sum, type: transform, data: {all: ['${n}', '${box.inner.deep}'], say: 'hi ${who}!'}}",
    )
    assert await flow.go({"name": "Eve"}) == {"all": [1, 2], "say": "hi Eve!"}
    assert flow.saved["frame"]["vars"] == {"n": 1, "who": "Eve", "box": {"inner": {"deep": 2}}}


async def test_steps_and_workflows_can_choose_their_output(expressions) -> None:
    flow = Flow(
        "id: x\noutput: {answer: '${result}', by: '${steps.a.output}'}\nsteps:\n"
        "- {id: a, type: agent, agent: a, output: '${result.response}'}\n"
        "- {id: b, type: agent, agent: b, outputPath: $.response}\n",
        expressions,
    )
    assert await flow.go() == {"answer": "b", "by": "a"}


async def test_a_result_that_does_not_fit_its_schema_is_a_failure(expressions) -> None:
    text = (
        "id: x\noutputSchema: {type: object, required: [answer]}\n"
        "steps: [{id: a, type: agent, agent: a}]"
    )
    with pytest.raises(RunFailed) as error:
        await Flow(text, expressions).go()
    assert error.value.details == {"problems": ["#: 'answer' is a required property"]}
    assert await Flow(text, expressions, lambda call: {"answer": 1}).go() == {"answer": 1}


@pytest.mark.promise("P62")
async def test_agent_output_is_never_read_as_a_template(expressions) -> None:
    flow = _flow(
        expressions,
        "{id: a, type: agent, agent: a}",
        "{id: b, type: agent, agent: b, task: 'It said: ${a.response}'}",
        agent=lambda call: {"response": "${input.secret}"},
    )
    await flow.go({"secret": "s3cret"})
    assert flow.calls[1].task == "It said: ${input.secret}"


async def test_an_end_inside_a_branch_ends_only_that_branch(expressions) -> None:
    flow = _flow(
        expressions,
        "{id: p, type: parallel, branches: [{name: l, steps: [{id: a, type: agent, agent: a}, "
        "{id: e, type: end, output: {stopped: true}}]}, {name: r, steps: [{id: b, type: agent, agent: b}]}]}",
        "{id: c, type: agent, agent: c, input: {seen: '${p}'}}",
    )  # fmt: skip
    await flow.go()
    assert sorted(flow.order) == ["a", "b", "c"]
    assert flow.calls[-1].variables["seen"] == {"l": {"stopped": True}, "r": {"response": "b"}}


async def test_branches_run_concurrently_and_a_failure_ends_the_others(expressions) -> None:
    ended = []
    both = asyncio.Barrier(2)

    async def agent(call):
        await both.wait()
        if call.agent == "a":
            raise ModelUnavailable("no answer")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(call.agent)

    lines = "{id: p, type: parallel, branches: {l: [{id: a, type: agent, agent: a}], r: [{id: b, type: agent, agent: b}]}}"
    flow = _flow(expressions, lines, agent=agent)
    with pytest.raises(RunFailed) as caught:
        await flow.go()
    assert caught.value.details == {"step": "a", "cause": "MODEL_UNAVAILABLE", "attempts": 1}
    assert ended == ["b"]
    assert flow.noted("step.failed") == [
        {
            "step": "a",
            "key": "p.l.a",
            "attempt": 1,
            "error": {"code": "MODEL_UNAVAILABLE", "message": "no answer"},
        }
    ]
    assert flow.saved["failed"]["step"] == "a"


async def test_any_completes_with_the_first_successful_branch(expressions) -> None:
    ended = []

    async def agent(call):
        if call.agent == "fails":
            raise ModelUnavailable("no answer")
        if call.agent == "waits":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("waits")
        return {"response": call.agent}

    steps = ", ".join(
        f"{n}: [{{id: {n}, type: agent, agent: {n}}}]" for n in ("fails", "waits", "ends")
    )
    line = f"{{id: p, type: parallel, join: any, branches: {{{steps}}}}}"
    flow = _flow(expressions, line, agent=agent)
    assert await flow.go() == {"ends": {"response": "ends"}}
    assert ended == ["waits"]


async def test_any_fails_when_all_branches_fail(expressions) -> None:
    def agent(call):
        raise ModelUnavailable(call.agent)

    line = "{id: p, type: parallel, join: {mode: any}, branches: {l: [{id: a, type: agent, agent: a}], r: [{id: b, type: agent, agent: b}]}}"
    with pytest.raises(RunFailed) as error:
        await _flow(expressions, line, agent=agent).go()
    assert error.value.details == {"step": "a", "cause": "MODEL_UNAVAILABLE", "attempts": 1}


async def test_foreach_bounds_concurrency_and_keeps_results_in_order(
    expressions,
) -> None:
    busy = most = 0
    three = asyncio.Barrier(3)

    async def agent(call):
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await three.wait()
        for _ in range(9 - call.variables["n"]):
            await asyncio.sleep(0)
        busy -= 1
        return {"n": call.variables["n"]}

    line = "{id: e, type: foreach, itemsPath: $.input, maxConcurrency: 3, iterator: [{id: w, type: agent, agent: w, input: {n: '${item}'}}]}"
    flow = _flow(expressions, line, agent=agent)
    assert await flow.go(list(range(9))) == [{"n": n} for n in range(9)]
    assert most == 3
    assert await _flow(expressions, line, agent=agent).go([]) == []


async def test_agents_of_all_branches_together_are_bounded(expressions) -> None:
    busy = most = 0

    async def agent(call):
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0)
        busy -= 1
        return {}

    steps = ", ".join(f"b{n}: [{{id: s{n}, type: agent, agent: a}}]" for n in range(9))
    line = f"{{id: p, type: parallel, branches: {{{steps}}}}}"
    await _flow(expressions, line, agent=agent, limits=WorkflowLimits(max_agents=2)).go()
    assert most == 2


async def test_foreach_over_a_value_that_is_not_a_list_fails(expressions) -> None:
    line = "{id: e, type: foreach, items: input, iterator: [{id: w, type: agent, agent: w}]}"
    with pytest.raises(RunFailed, match='the step "e" failed: `input` is not a list'):
        await _flow(expressions, line).go("text")


async def test_while_repeats_as_long_as_its_condition_is_true(expressions) -> None:
    line = "{id: w, type: while, condition: '!has(steps.s) || s.n < 3', do: [{id: s, type: agent, agent: a, input: {at: '${index}'}}]}"
    flow = _flow(expressions, line, "{id: z, type: transform, expression: s.n * 10}")
    flow.agent = lambda call: {"n": len(flow.calls)}
    assert await flow.go() == 30
    assert [call.variables for call in flow.calls] == [{"at": 0}, {"at": 1}, {"at": 2}]


TRY = (
    "{id: t, type: try, try: [{id: a, type: agent, agent: a}], "
    "catch: [{id: c, type: transform, data: {why: '${error.code}', at: '${error.step}'}}], "
    "finally: [{id: f, type: agent, agent: f}]}"
)


async def test_a_failure_is_caught_and_finally_runs(expressions) -> None:
    flow = _flow(expressions, TRY)

    def agent(call):
        if call.agent == "a":
            raise ModelUnavailable("no answer")
        return {}

    flow.agent = agent
    assert await flow.go() == {"why": "MODEL_UNAVAILABLE", "at": "a"}
    assert flow.order == ["a", "f"]
    calm = _flow(expressions, TRY)
    assert await calm.go() == {"response": "a"}
    assert calm.order == ["a", "f"]


async def test_without_a_catch_the_failure_is_raised_after_finally(expressions) -> None:
    def agent(call):
        if call.agent == "a":
            raise ModelUnavailable("no answer", hint="wait")
        return {}

    line = "{id: t, type: try, try: [{id: a, type: agent, agent: a}], finally: [{id: f, type: agent, agent: f}]}"
    flow = _flow(expressions, line, agent=agent)
    with pytest.raises(RunFailed) as caught:
        await flow.go()
    assert caught.value.details == {"step": "a", "cause": "MODEL_UNAVAILABLE"}
    assert flow.order == ["a", "f"]


async def test_a_step_is_retried_with_a_growing_delay(expressions) -> None:
    line = "{id: a, type: agent, agent: a, retry: {max_attempts: 4, backoff: 2s, retry_on: [MODEL_UNAVAILABLE]}}"
    flow = _flow(expressions, line)

    def agent(call):
        if len(flow.calls) < 4:
            raise ModelUnavailable("no answer")
        return {"response": "at last"}

    flow.agent = agent
    assert await flow.go() == {"response": "at last"}
    assert [call.attempt for call in flow.calls] == [1, 2, 3, 4]
    assert flow.clock.slept == [2.0, 4.0, 8.0]
    assert [event["attempt"] for event in flow.noted("step.retried")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("retry", "failure", "calls"),
    [
        ("{max_attempts: 3}", ModelUnavailable("no answer"), 3),
        ("{max_attempts: 3, retry_on: [BUSY]}", ModelUnavailable("no answer"), 1),
        ("{max_attempts: 3}", PolicyDenied("not allowed"), 1),
        ("{max_attempts: 3}", Cancelled("somebody ended it"), 1),
        ("{max_attempts: 3, retry_on: [FORBIDDEN]}", PolicyDenied("not allowed"), 3),
    ],
)
async def test_retries_depend_on_the_failure(expressions, retry, failure, calls) -> None:
    def agent(call):
        raise failure

    flow = _flow(expressions, f"{{id: a, type: agent, agent: a, retry: {retry}}}", agent=agent)
    with pytest.raises(RunFailed) as caught:
        await flow.go()
    assert len(flow.calls) == caught.value.details["attempts"] == calls
    assert caught.value.details["cause"] == failure.code


async def test_a_step_that_times_out_fails_and_can_be_retried(expressions) -> None:
    line = "{id: a, type: agent, agent: a, timeout: 20ms, retry: {max_attempts: 2, retry_on: [timeout]}}"
    flow = _flow(expressions, line)

    async def agent(call):
        if call.attempt == 1:
            await asyncio.Event().wait()
        return {"response": "second"}

    flow.agent = agent
    assert await flow.go() == {"response": "second"}
    never = _flow(expressions, line, agent=lambda call: asyncio.Event().wait())
    with pytest.raises(RunFailed) as caught:
        await never.go()
    assert caught.value.details == {"step": "a", "cause": "COMMAND_TIMEOUT", "attempts": 2}


async def test_a_workflow_that_times_out_is_ended(expressions) -> None:
    text = "id: x\ntimeout: 50ms\nsteps: [{id: a, type: agent, agent: a}]"
    flow = Flow(text, expressions, lambda call: asyncio.Event().wait())
    with pytest.raises(RunLimitReached) as caught:
        await flow.go()
    assert caught.value.details == {"step": "a", "limit": "timeout", "timeout_s": 0.05}


async def test_time_before_a_crash_counts_for_the_timeout(expressions) -> None:
    text = "id: x\ntimeout: 60s\nsteps: [{id: s, type: sleep, duration: 10s}, {id: a, type: agent, agent: a}]"
    flow = Flow(text, expressions)
    flow.cut_at_save = 2
    with pytest.raises(PowerCut):
        await flow.go()
    flow.clock.at += 100
    with pytest.raises(RunLimitReached) as error:
        await flow.go()
    assert error.value.details == {"step": "s", "limit": "timeout", "timeout_s": 60}


async def test_sleep_ends_at_the_same_time_after_a_crash(expressions) -> None:
    flow = _flow(expressions, "{id: s, type: delay, duration: 30s}", cut_at_save=2)
    with pytest.raises(PowerCut):
        await flow.go()
    flow.saved["frame"]["begun"]["until"] = flow.clock.at + 12
    await flow.go()
    assert flow.clock.slept == [30.0, 12.0]


LOOP = (
    "{id: a, type: agent, agent: a}",
    "{id: s, type: switch, expression: a.again, transitions: [{condition: 'true', next: a}], next: z}",
    "{id: z, type: end}",
)


@pytest.mark.promise("P67")
async def test_an_endless_loop_is_stopped_and_the_step_named(expressions) -> None:
    flow = _flow(expressions, *LOOP)
    flow.agent = lambda call: {"again": len(flow.calls) < 10_000}
    with pytest.raises(RunLimitReached) as caught:
        await flow.go()
    assert caught.value.details == {"step": "a", "limit": "max_visits", "most": 100}
    assert len(flow.calls) == 100
    assert flow.noted("loop.stopped") == [{"step": "a", "limit": "max_visits", "most": 100}]
    # A hundred is allowed.
    fits = _flow(expressions, *LOOP)
    fits.agent = lambda call: {"again": len(fits.calls) < 100}
    assert await fits.go() == {"again": False}


async def test_the_total_number_of_steps_is_bounded(expressions) -> None:
    line = "{id: e, type: foreach, items: input, iterator: [{id: w, type: set, data: {n: 1}}]}"
    await _flow(expressions, line, limits=WorkflowLimits(max_steps=11)).go(list(range(10)))
    with pytest.raises(RunLimitReached) as caught:
        await _flow(expressions, line, limits=WorkflowLimits(max_steps=11)).go(list(range(11)))
    assert caught.value.details == {"step": "w", "limit": "max_steps", "most": 11}
    with pytest.raises(RunLimitReached) as error:
        await _flow(expressions, line).go(list(range(1001)))
    assert error.value.details == {"step": "e", "limit": "max_items", "most": 1000}


async def test_catch_and_retry_cannot_prolong_an_endless_loop(expressions) -> None:
    loop = "{id: w, type: while, condition: 'true', do: [{id: n, type: set, data: {x: 1}}]}"
    line = f"{{id: t, type: try, try: [{loop}], catch: [{{id: c, type: agent, agent: c}}], retry: {{max_attempts: 5}}}}"
    flow = _flow(expressions, line, limits=WorkflowLimits(max_visits=10))
    with pytest.raises(RunLimitReached, match='the step "w" would repeat 11 times'):
        await flow.go()
    assert flow.calls == []


async def test_an_output_is_json_and_bounded(expressions) -> None:
    one = "{id: a, type: agent, agent: a}"
    with pytest.raises(RunFailed, match="its output is not valid JSON"):
        await _flow(expressions, one, agent=lambda call: {"x": object()}).go()
    limits = WorkflowLimits(output_bytes=100)
    deep: dict = {}
    for _ in range(2000):
        deep = {"x": deep}
    with pytest.raises(RunFailed, match="nested more than 64 levels deep"):
        await _flow(expressions, one, agent=lambda call: deep).go()
    with pytest.raises(InvalidRequest, match="nested more than 64 levels deep"):
        await _flow(expressions, one).go(deep)
    with pytest.raises(RunFailed, match="its output has 113 bytes"):
        await _flow(expressions, one, agent=lambda c: {"x": "y" * 104}, limits=limits).go()
    flow = _flow(
        expressions, one, "{id: b, type: agent, agent: b}", limits=WorkflowLimits(state_bytes=600)
    )
    flow.agent = lambda call: {"x": "y" * 300}
    with pytest.raises(RunLimitReached) as error:
        await flow.go()
    assert error.value.details == {"step": "b", "limit": "state_bytes", "most": 600}


async def test_a_switch_without_a_matching_case_fails_with_the_value(expressions) -> None:
    lines = (
        "{id: s, type: switch, expression: input.n, transitions: [{condition: 1, next: z}]}",
        "{id: z, type: end}",
    )
    with pytest.raises(RunFailed, match='the step "s" failed: no condition of 2 is true'):
        await _flow(expressions, *lines).go({"n": 2})
    await _flow(expressions, *lines).go({"n": 1})


@pytest.mark.promise("P68")
async def test_cancelling_the_run_cancels_its_steps(expressions) -> None:
    began, ended = asyncio.Barrier(3), []

    async def agent(call):
        await began.wait()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(call.agent)

    line = "{id: p, type: parallel, branches: {l: [{id: a, type: agent, agent: a}], r: [{id: b, type: agent, agent: b}]}}"
    run = asyncio.create_task(_flow(expressions, line, agent=agent).go())
    await began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sorted(ended) == ["a", "b"]


async def test_a_failed_save_is_not_a_failure_of_a_step(expressions) -> None:
    flow = _flow(expressions, "{id: a, type: agent, agent: a, retry: {max_attempts: 5}}")

    async def save(state):
        raise QuotaExceeded("the disk is full")

    flow._save = save  # type: ignore[method-assign]
    with pytest.raises(QuotaExceeded, match="the disk is full"):
        await flow.go()
    assert flow.calls == []
