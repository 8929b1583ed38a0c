"""Which steps may run before which, or at the same time."""

from __future__ import annotations

import pytest

from sandkasten_agents.workflows.step_order import StepOrder
from sandkasten_agents.workflows.workflow_file import parse_workflow

LINE = """id: flow
steps:
  - {id: a, type: agent, agent: x, task: t}
  - {id: b, type: agent, agent: y, task: t}
  - {id: done, type: end}
"""
LOOP = """id: flow
steps:
  - {id: a, type: agent, agent: x, task: t}
  - {id: b, type: agent, agent: y, task: t}
  - id: again
    type: switch
    expression: "input.kind"
    conditions: [{condition: "more", next: a}]
    defaultNext: done
  - {id: done, type: end}
"""
SWITCH = """id: flow
steps:
  - id: which
    type: switch
    expression: "input.kind"
    conditions: [{condition: "one", next: a}]
    defaultNext: b
  - {id: a, type: agent, agent: x, task: t, next: done}
  - {id: b, type: agent, agent: y, task: t, next: done}
  - {id: done, type: end}
"""
PARALLEL = """id: flow
steps:
  - id: both
    type: parallel
    branches:
      - name: one
        steps: [{id: a, type: agent, agent: x, task: t}]
      - name: two
        steps: [{id: b, type: agent, agent: y, task: t}]
  - {id: c, type: agent, agent: z, task: t}
"""
TRY = """id: flow
steps:
  - id: careful
    type: try
    try: [{id: a, type: agent, agent: x, task: t}]
    catch: [{id: b, type: agent, agent: y, task: t}]
    finally: [{id: c, type: agent, agent: z, task: t}]
"""
EACH = """id: flow
steps:
  - id: items
    type: foreach
    itemsPath: input.items
    maxConcurrency: MANY
    iterator:
      - {id: a, type: agent, agent: x, task: t}
      - {id: b, type: agent, agent: y, task: t}
"""


@pytest.mark.parametrize(
    ("text", "first", "later", "expected"),
    [
        (LINE, "a", "b", True),
        (LINE, "b", "a", False),
        (LOOP, "a", "b", True),
        # The loop leads back to a, but a came first.
        (LOOP, "b", "a", False),
        (SWITCH, "a", "b", False),
        (SWITCH, "b", "a", False),
        (PARALLEL, "a", "b", True),
        (PARALLEL, "b", "a", True),
        (PARALLEL, "a", "c", True),
        (PARALLEL, "c", "a", False),
        (TRY, "a", "b", True),
        (TRY, "b", "c", True),
        (TRY, "a", "c", True),
        (TRY, "c", "a", False),
        (TRY, "b", "a", False),
        (EACH.replace("MANY", "1"), "a", "b", True),
        (EACH.replace("MANY", "1"), "b", "a", False),
        (EACH.replace("MANY", "2"), "b", "a", True),
        (LINE, "a", "a", True),
    ],
)
def test_one_step_may_run_before_another(text, first, later, expected):
    assert StepOrder(parse_workflow(text)).may_precede([first], [later]) is expected
