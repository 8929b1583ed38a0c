"""Workflows of both dialects are parsed and executed."""

from __future__ import annotations

import pytest

from plugins.agents.tests.workflows.flow import Flow

# The published example of a workflow, kept verbatim.
APPENDIX_B = """\
id: code-review-and-fix
name: "Code Review and Fix"
description: "Reviews code, identifies issues, fixes them, and verifies"

steps:
  - id: analyze
    type: agent
    agent: code-analyzer
    # Uses sandbox session "workflow:{run_id}:default"
    
  - id: fix
    type: agent  
    agent: code-fixer
    # Same sandbox - sees analyzer's output files
    
  - id: test
    type: agent
    agent: test-runner
    # Same sandbox - runs tests on fixed code
    
  - id: check-results
    type: switch
    expression: "steps.test.output.all_passed"
    transitions:
      - condition: "true"
        next: done
      - condition: "false"  
        next: fix  # Loop back - sandbox state preserved!

  - id: done
    type: end
"""  # noqa: W291, W293

STATES = """\
id: review
start: plan
inputSchema: {type: object}
states:
  - name: plan
    type: agent
    agent: planner
    task: "Plan ${input.what}"
    resultPath: $.plan
    transition: decide
  - name: decide
    type: switch
    dataPath: $.plan.size
    conditions:
      - if: result > 2
        next: each
      - if: val == 0
        next: nothing
    defaultNext: single
  - name: each
    type: foreach
    itemsPath: $.plan.parts
    itemName: part
    maxConcurrency: 2
    iterator:
      start: work
      states:
        - name: work
          type: agent
          agent: worker
          input: {part: "${part}", number: "${index}", title: "Part ${index}: ${part.name}"}
          end: true
    next: gather
  - name: gather
    type: transform
    expression: "{'done': each.map(x, x.response), 'count': size(each)}"
    end: true
  - name: single
    type: inject
    data: {how: single}
    end: true
  - name: nothing
    type: end
    output: {how: nothing}
"""


@pytest.mark.promise("P61")
async def test_the_documented_example_loops_back_until_the_tests_pass(expressions) -> None:
    flow = Flow(APPENDIX_B, expressions)

    def agent(call):
        passed = flow.order.count("test") == 3
        return {"all_passed": passed} if call.step_id == "test" else {"response": "ok"}

    flow.agent = agent
    assert await flow.go("make it work") == {"all_passed": True}
    assert flow.order == ["analyze", *["fix", "test"] * 3]
    assert [call.agent for call in flow.calls[:3]] == [
        "code-analyzer",
        "code-fixer",
        "test-runner",
    ]
    assert {call.task for call in flow.calls} == {"make it work"}
    assert [(e["value"], e["next"]) for e in flow.noted("switch.taken")] == [
        ("false", "fix"),
        ("false", "fix"),
        ("true", "done"),
    ]


@pytest.mark.parametrize("value", [True, "true"])
async def test_a_condition_is_compared_with_the_string_of_the_value(expressions, value) -> None:
    flow = Flow(APPENDIX_B, expressions, lambda call: {"all_passed": value})
    assert await flow.go() == {"all_passed": value}
    assert flow.order == ["analyze", "fix", "test"]


@pytest.mark.parametrize(
    ("plan", "result", "order"),
    [
        (
            {"size": 3, "parts": [{"name": n} for n in "abc"]},
            {"done": ["a", "b", "c"], "count": 3},
            ["plan", "work", "work", "work"],
        ),
        ({"size": 1, "parts": []}, {"how": "single"}, ["plan"]),
        ({"size": 0, "parts": []}, {"how": "nothing"}, ["plan"]),
    ],
)
async def test_states_follow_their_conditions(expressions, plan, result, order) -> None:
    def agent(call):
        return plan if call.agent == "planner" else {"response": call.variables["part"]["name"]}

    flow = Flow(STATES, expressions, agent)
    assert await flow.go({"what": "a house"}) == result
    assert flow.order == order
    assert flow.calls[0].task == "Plan a house"
    if len(order) > 1:
        given = {call.key: call.variables for call in flow.calls[1:]}
        assert given == {
            f"each[{n}].work": {"part": {"name": name}, "number": n, "title": f"Part {n}: {name}"}
            for n, name in enumerate("abc")
        }


async def test_a_state_without_a_transition_ends_the_run(expressions) -> None:
    text = "id: x\nstates:\n- {id: a, type: agent, agent: a}\n- {id: b, type: agent, agent: b}\n"
    flow = Flow(text, expressions)
    await flow.go()
    assert flow.order == ["a"]
    falls = Flow(text.replace("states", "steps"), expressions)
    await falls.go()
    assert falls.order == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "task", "variables"),
    [
        ("", "hello", {}),
        (", task: 'Say ${input}'", "Say hello", {}),
        (", input: {task: go, n: 2}", "go", {"task": "go", "n": 2}),
        (", input: 'Say $${x} and ${input}'", "Say ${x} and hello", {}),
        (", task: '${size(input)}'", "5", {}),
    ],
)
async def test_an_agent_step_gets_its_task_and_variables(
    expressions, given, task, variables
) -> None:
    flow = Flow(f"id: x\nsteps: [{{id: a, type: agent, agent: a{given}}}]", expressions)
    await flow.go("hello")
    assert (flow.calls[0].task, flow.calls[0].variables) == (task, variables)


async def test_an_agent_step_without_input_gets_the_workflows_input(expressions) -> None:
    flow = Flow("id: x\nsteps: [{id: a, type: agent, agent: a}]", expressions)
    await flow.go({"task": "go", "n": 2})
    assert (flow.calls[0].task, flow.calls[0].variables) == ("go", {"task": "go", "n": 2})
