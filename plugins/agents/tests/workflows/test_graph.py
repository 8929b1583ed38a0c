"""Drawing a workflow with the state of its steps; names cannot inject markup."""

from __future__ import annotations

import asyncio

import pytest

from plugins.agents.tests.workflows.flow import Flow, PowerCut
from plugins.agents.tests.workflows.test_both_dialects import APPENDIX_B, STATES
from sandkasten_agents.workflows.workflow_file import parse_workflow
from sandkasten_agents.workflows.workflow_graph import mermaid, tree
from sandkasten_agents.workflows.workflow_state import statuses


def test_the_documented_example_is_drawn_as_a_tree() -> None:
    drawn = tree(parse_workflow(APPENDIX_B), {"analyze": "done", "fix": "running"})
    assert drawn == (
        "code-review-and-fix: Code Review and Fix\n"
        "├─ [x] analyze (agent: code-analyzer)\n"
        "├─ [>] fix (agent: code-fixer)\n"
        "├─ [ ] test (agent: test-runner)\n"
        "├─ [ ] check-results (switch: steps.test.output.all_passed)  true → done, false → fix\n"
        "└─ [ ] done (end)\n"
    )


def test_nested_steps_are_drawn_inside_their_parents() -> None:
    assert tree(parse_workflow(STATES)) == (
        "review\n"
        "├─ [ ] plan (agent: planner)\n"
        "├─ [ ] decide (switch: plan.size)  result > 2 → each, val == 0 → nothing, "
        "otherwise → single\n"
        "├─ [ ] each (foreach: plan.parts)  → gather\n"
        "│  each\n"
        "│    └─ [ ] work (agent: worker)\n"
        "├─ [ ] gather (transform)  → end\n"
        "├─ [ ] single (set)  → end\n"
        "└─ [ ] nothing (end)\n"
    ).replace("each (foreach: plan.parts)  → gather", "each (foreach: plan.parts)")


def test_the_documented_example_is_drawn_as_mermaid() -> None:
    drawn = mermaid(parse_workflow(APPENDIX_B), {"analyze": "done", "fix": "failed"})
    assert drawn == (
        "flowchart TD\n"
        '  s0["analyze (agent: code-analyzer)"]\n'
        "  s0 --> s1\n"
        '  s1["fix (agent: code-fixer)"]\n'
        "  s1 --> s2\n"
        '  s2["test (agent: test-runner)"]\n'
        "  s2 --> s3\n"
        '  s3{"check-results (switch: steps.test.output.all_passed)"}\n'
        '  s3 -->|"true"| s4\n'
        '  s3 -->|"false"| s1\n'
        '  s4(["done (end)"])\n'
        "  classDef done fill:#d3f9d8,stroke:#2f9e44\n"
        "  class s0 done\n"
        "  classDef failed fill:#ffe3e3,stroke:#e03131\n"
        "  class s1 failed\n"
    )


def test_step_names_are_escaped_in_mermaid() -> None:
    hostile = '"]\\n  click s0 \\"javascript:alert(1)\\"<b>\\e]52;c;x\\a%%{init'
    text = f'id: x\nname: "{hostile}"\nsteps: [{{id: a, type: agent, agent: "{hostile}"}}]'
    workflow = parse_workflow(text.replace('"]', '\\"]'))
    drawn = mermaid(workflow)
    assert len(drawn.splitlines()) == 2
    assert not set(drawn.splitlines()[1][len('  s0["') : -2]) & set('"<>%{}[]\\')
    assert "\x1b" not in tree(workflow)
    assert len(tree(workflow).splitlines()) == 2


async def test_the_graph_of_a_run_shows_the_state_of_each_step(expressions) -> None:
    text = (
        "id: x\nsteps: [{id: a, type: agent, agent: a}, {id: p, type: parallel, branches: "
        "{l: [{id: b, type: agent, agent: b}], r: [{id: c, type: agent, agent: c}]}}, "
        "{id: d, type: end}]"
    )

    async def agent(call):
        if call.agent == "c":
            raise PowerCut
        if call.agent == "b":
            await asyncio.Event().wait()
        return {}

    flow = Flow(text, expressions, agent)
    with pytest.raises(PowerCut):
        await flow.go()
    assert statuses(flow.saved) == {"a": "done", "p": "running", "b": "running", "c": "running"}
    flow.agent = lambda call: {}
    await flow.go()
    assert statuses(flow.saved) == dict.fromkeys("apbcd", "done")
