"""A run survives the death of its process at any point: no saved step is repeated or skipped."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.agents.tests.workflows.flow import Flow, PowerCut
from sandkasten.errors import InvalidWorkflow, ModelUnavailable, RunFailed, RunLimitReached
from sandkasten_agents.workflows.expressions import Expressions
from sandkasten_agents.workflows.workflow_runner import WorkflowLimits

LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"

EVERYTHING = """\
id: everything
steps:
  - {id: begin, type: set, data: {round: 0}}
  - {id: work, type: agent, agent: a, input: {n: "${vars.round}"}}
  - {id: count, type: set, data: {round: "${work.n + 1}"}}
  - id: again
    type: switch
    expression: vars.round < 3
    transitions: [{condition: true, next: work}]
    next: both
  - id: both
    type: parallel
    branches:
      left:
        - {id: l1, type: agent, agent: a, input: {n: 10}}
        - {id: l2, type: agent, agent: a, input: {n: "${l1.n + 1}"}}
      right:
        - id: rows
          type: foreach
          items: [20, 30, 40]
          maxConcurrency: 2
          iterator:
            - {id: r1, type: agent, agent: a, input: {n: "${item}"}}
            - {id: r2, type: agent, agent: a, input: {n: "${r1.n + 1}"}}
      third:
        - {id: nap, type: sleep, duration: 5s}
        - {id: t1, type: agent, agent: a, input: {n: 50}}
  - id: turns
    type: while
    condition: index < 2
    do:
      - {id: turn, type: agent, agent: a, input: {n: "${60 + index}"}}
      - {id: twice, type: agent, agent: a, input: {n: "${70 + index}"}}
  - id: guarded
    type: try
    try:
      - {id: fine, type: agent, agent: a, input: {n: 80}}
      - id: broken
        type: agent
        agent: fails
        input: {n: 81}
        retry: {max_attempts: 2, backoff: 1}
    catch:
      - {id: mended, type: agent, agent: a, input: {n: 82, why: "${error.code}"}}
    finally:
      - {id: swept, type: agent, agent: a, input: {n: 83}}
  - {id: done, type: end, output: {both: "${both}", turns: "${turns}", guarded: "${guarded}"}}
"""


@dataclass
class Watched(Flow):
    """Records which calls were saved as done, by their step and number."""

    returned: set[tuple[str, int, int]] = field(default_factory=set)
    durable: set[tuple[str, int, int]] = field(default_factory=set)
    repeated: list[tuple[str, int, int]] = field(default_factory=list)

    async def _agent(self, call) -> Any:
        one = (call.key, call.variables["n"], call.attempt)
        if one in self.durable:
            self.repeated.append(one)
        self.calls.append(call)
        await asyncio.sleep(0)
        # Nothing else is scheduled until the end of the step, so it is part of the next save.
        self.returned.add(one)
        if call.agent == "fails":
            raise ModelUnavailable("no answer")
        return {"n": call.variables["n"]}

    async def _save(self, state) -> None:
        finished = set(self.returned)
        await super()._save(state)
        self.durable = finished

    async def to_the_end(self, input: Any = None, *, cuts: int) -> Any:
        for _ in range(cuts + 1):
            try:
                return await self.go(input)
            except PowerCut:
                self.returned = set(self.durable)
        raise AssertionError(f"it was cut more than {cuts} times")


@pytest.mark.promise("P69")
async def test_a_run_interrupted_at_any_save_resumes_without_repeating_saved_steps(
    expressions,
) -> None:
    whole = Watched(EVERYTHING, expressions)
    result = await whole.go()
    assert result == {
        "both": {"left": {"n": 11}, "right": [{"n": 21}, {"n": 31}, {"n": 41}], "third": {"n": 50}},
        "turns": {"n": 71},
        "guarded": {"n": 82},
    }
    every = {(c.key, c.variables["n"], c.attempt) for c in whole.calls}
    assert len(every) == len(whole.calls) == 21
    assert whole.saves > 50
    for cut in range(1, whole.saves + 1):
        flow = Watched(EVERYTHING, expressions, cut_at_save=cut)
        assert await flow.to_the_end(cuts=1) == result, cut
        assert flow.repeated == [], cut
        assert {(c.key, c.variables["n"], c.attempt) for c in flow.calls} == every, cut
        assert len(flow.calls) - len(every) <= 4, cut  # At most the steps in progress are repeated.


async def test_a_repeatedly_interrupted_run_completes(expressions) -> None:
    class Frail(Watched):
        async def _save(self, state) -> None:
            self.cut_at_save = self.saves + 1 if self.saves % 3 == 2 else None
            await super()._save(state)

    flow = Frail(EVERYTHING, expressions)
    whole = Watched(EVERYTHING, expressions)
    assert await flow.to_the_end(cuts=60) == await whole.go()
    assert flow.repeated == []


async def test_starting_a_finished_run_again_has_no_effect(expressions) -> None:
    flow = Watched(EVERYTHING, expressions)
    result = await flow.go()
    calls = len(flow.calls)
    assert await flow.go() == result
    assert len(flow.calls) == calls


async def test_a_failed_run_resumes_at_the_failed_step(expressions) -> None:
    text = "id: x\nsteps: [{id: a, type: agent, agent: a}, {id: b, type: agent, agent: b}]"
    flow = Flow(text, expressions)
    weather = {"b": False}

    def agent(call):
        if not weather.get(call.agent, True):
            raise ModelUnavailable("no answer")
        return {"response": call.agent}

    flow.agent = agent
    with pytest.raises(RunFailed):
        await flow.go()
    weather["b"] = True
    assert await flow.go() == {"response": "b"}
    assert flow.order == ["a", "b", "b"]


async def test_the_state_of_another_workflow_file_is_refused(expressions) -> None:
    flow = Flow("id: x\nsteps: [{id: a, type: agent, agent: a}]", expressions, cut_at_save=2)
    with pytest.raises(PowerCut):
        await flow.go()
    flow.text = flow.text.replace("id: a", "id: b")
    with pytest.raises(InvalidWorkflow, match='the step "a", which the workflow does not have'):
        await flow.go()
    flow.saved["version"] = 99
    with pytest.raises(InvalidWorkflow, match="unsupported version"):
        await flow.go()


@st.composite
def _workflows(draw) -> str:
    """Workflows with arbitrary transitions, many of them circular."""
    count = draw(st.integers(2, 6))
    ids = [f"s{n}" for n in range(count)]
    lines = ["id: x", "steps:", "- {id: first, type: set, data: {last: {k: 0}}}"]
    for id in ids:
        kind = draw(st.sampled_from(["agent", "agent", "switch", "foreach"]))
        next = draw(st.sampled_from(["", *ids, "z"]))
        on = f", next: {next}" if next else ""
        if kind == "switch":
            ways = draw(st.lists(st.sampled_from([*ids, "z"]), min_size=2, max_size=2))
            chosen = ", ".join(f"{{condition: {n}, next: {way}}}" for n, way in enumerate(ways))
            otherwise = next or "z"
            lines.append(
                f"- {{id: {id}, type: switch, expression: vars.last.k % 3, "
                f"transitions: [{chosen}], next: {otherwise}}}"
            )
        elif kind == "foreach":
            step = f"{{id: in_{id}, type: agent, agent: a, input: {{k: '${{item}}'}}}}"
            lines.append(f"- {{id: {id}, type: foreach, items: [1, 2], do: [{step}]{on}}}")
        else:
            lines.append(
                f"- {{id: {id}, type: agent, agent: a, input: {{k: '${{vars.last.k}}'}}, "
                f"resultPath: last{on}}}"
            )
    return "\n".join([*lines, "- {id: z, type: end}"])


async def _outcome(flow: Flow) -> tuple[str, Any]:
    try:
        return "ended", await flow.go()
    except RunLimitReached as exc:
        return "limit", exc.details["step"]
    except InvalidWorkflow as exc:
        return "invalid", exc.details["issue"]


def test_any_workflow_is_deterministic_and_an_interruption_changes_nothing() -> None:
    seen = set()
    with asyncio.Runner() as loop:
        expressions = Expressions(processes=1)

        async def three(text: str, cut: int) -> None:
            def flow(**options) -> Flow:
                limits = WorkflowLimits(max_visits=4, max_steps=30)
                answer = lambda call: {"k": call.variables["k"] * 7 % 11 + 1}  # noqa: E731
                return Flow(text, expressions, answer, limits, **options)

            one, two, broken = flow(), flow(), flow(cut_at_save=cut)
            outcome = await _outcome(one)
            seen.add(outcome[0])
            assert outcome == await _outcome(two)
            assert one.events == two.events
            try:
                assert await _outcome(broken) == outcome
            except PowerCut:
                assert await _outcome(broken) == outcome
            assert len(broken.order) <= len(one.order) + 1

        async def close() -> None:
            await expressions.close()

        @settings(max_examples=2000 if LONG else 60, deadline=None, derandomize=True, database=None)
        @given(text=_workflows(), cut=st.integers(1, 40))
        def held(text: str, cut: int) -> None:
            loop.run(three(text, cut))

        try:
            held()
        finally:
            loop.run(close())
    assert seen == {"ended", "limit", "invalid"}
