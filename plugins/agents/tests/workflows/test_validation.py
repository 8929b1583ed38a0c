"""Validation of workflow files: each error has a code, a place and a hint."""

# ruff: noqa: E501 - a workflow on a line of its own is easier to read than one in pieces

from __future__ import annotations

import pytest

from plugins.agents.tests.workflows.test_both_dialects import APPENDIX_B, STATES
from sandkasten.errors import InvalidWorkflow
from sandkasten_agents.workflows.workflow_file import MAX_BYTES, inspect, parse_workflow


def _codes(text, **options):
    found = inspect(text, **options)
    return [(i.code, i.path) for i in found.errors], [(i.code, i.path) for i in found.warnings]


def _steps(*lines: str) -> str:
    return "id: x\nsteps:\n" + "".join(f"- {line}\n" for line in lines)


A = "{id: a, type: agent, agent: a}"


@pytest.mark.parametrize("text", [APPENDIX_B, STATES, _steps(A)])
def test_a_valid_file_has_neither_errors_nor_warnings(text) -> None:
    assert _codes(text) == ([], [])


@pytest.mark.promise("P61")
@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ("steps: [" + A + "]", "MISSING_WORKFLOW_ID", "id"),
        ("id: x", "MISSING_STATES", "steps"),
        ("id: x\nstates: []", "MISSING_STATES", "states"),
        ("id: ../x\nsteps: [" + A + "]", "BAD_WORKFLOW_ID", "id"),
        ("id: x\nstart: b\nsteps: [" + A + "]", "INVALID_START", "start"),
        ("[]", "NOT_A_WORKFLOW", ""),
        ("", "NOT_A_WORKFLOW", ""),
        ("inputSchema: {type: nope}\n" + _steps(A), "BAD_SCHEMA", "inputSchema"),
        ("outputSchema: {$ref: 'http://x/y'}\n" + _steps(A), "BAD_SCHEMA", "outputSchema"),
        (_steps(A, A), "DUPLICATE_STEP_ID", "steps[1].id"),
        (_steps(A, "{id: a-b, type: end}", "{id: a_b, type: end}"), "DUPLICATE_STEP_ID", "steps[2].id"),
        (_steps("{type: end}"), "MISSING_STEP_ID", "steps[0]"),
        (_steps("{id: a b, type: end}"), "BAD_STEP_ID", "steps[0].id"),
        (_steps("{id: input, type: end}"), "BAD_STEP_ID", "steps[0].id"),
        (_steps("{id: a}"), "MISSING_TYPE", "steps[0]"),
        (_steps("{id: a, type: agnt}"), "UNKNOWN_STEP_TYPE", "steps[0].type"),
        (_steps("{id: a, type: human_approval}"), "UNKNOWN_STEP_TYPE", "steps[0].type"),
        (_steps("{id: a, type: agent}"), "MISSING_AGENT", "steps[0]"),
        (_steps("{id: a, type: agent, agent: a, next: nope}"), "UNKNOWN_TRANSITION_TARGET", "steps[0].next"),
        (_steps("{id: a, type: set, data: {n: 1}, next: a}"), "CYCLE_WITHOUT_EXIT", "steps[0]"),
        (_steps("{id: a, type: switch, expression: '1', transitions: [{condition: 1, next: b}]}", "{id: b, type: agent, agent: b, next: a}"), "CYCLE_WITHOUT_EXIT", "steps[0]"),
        (_steps("{id: a, type: switch, expression: '1 +', transitions: [{condition: 1, next: b}]}", "{id: b, type: end}"), "BAD_EXPRESSION", "steps[0].expression"),
        (_steps("{id: a, type: switch, transitions: [{if: 'x and y', next: b}]}", "{id: b, type: end}"), "BAD_EXPRESSION", "steps[0].transitions[0].condition"),
        (_steps("{id: a, type: switch, transitions: []}"), "MISSING_CONDITIONS", "steps[0]"),
        (_steps("{id: a, type: switch, transitions: [{condition: 'true'}]}"), "MISSING_NEXT", "steps[0].transitions[0]"),
        (_steps("{id: a, type: switch, transitions: [{next: b}]}", "{id: b, type: end}"), "MISSING_CONDITION", "steps[0].transitions[0]"),
        (_steps("{id: a, type: agent, agent: a, task: 'do ${steps.b.output'}"), "BAD_EXPRESSION", "steps[0].task"),
        (_steps("{id: a, type: agent, agent: a, task: '${steps.b.output}'}"), "UNKNOWN_STEP", "steps[0].task"),
        (_steps("{id: a, type: agent, agent: a, input: {x: [1, '${(}']}}"), "BAD_EXPRESSION", "steps[0].input.x[1]"),
        (_steps(f"{{id: a, type: agent, agent: a, task: '${{{'1+' * 3000}1}}'}}"), "BAD_EXPRESSION", "steps[0].task"),
        (_steps("{id: a, type: foreach, iterator: {steps: [" + A.replace("a", "b", 1) + "]}}"), "MISSING_ITEMS", "steps[0]"),
        (_steps("{id: a, type: foreach, itemsPath: input}"), "MISSING_STATES", "steps[0]"),
        (_steps("{id: a, type: foreach, itemsPath: input, itemName: steps, iterator: [" + A.replace("id: a", "id: b") + "]}"), "BAD_NAME", "steps[0]"),
        (_steps("{id: a, type: parallel}"), "MISSING_BRANCHES", "steps[0].branches"),
        (_steps("{id: a, type: sleep, duration: soon}"), "BAD_FIELD", "steps[0].duration"),
        (_steps("{id: a, type: sleep, duration: 800h}"), "BAD_FIELD", "steps[0].duration"),
        (_steps("{id: a, type: sleep}"), "MISSING_DURATION", "steps[0]"),
        (_steps("{id: a, type: set}"), "MISSING_DATA", "steps[0]"),
        (_steps("{id: a, type: transform}"), "MISSING_EXPRESSION", "steps[0]"),
        (_steps("{id: a, type: agent, agent: a, retry: {max_attempts: 1000}}"), "BAD_FIELD", "steps[0].retry.max_attempts"),
        (_steps("[1]"), "BAD_FIELD", "steps[0]"),
        ("id: x\nsteps: [" + ",".join(["{id: a, type: end}"] * 501) + "]", "TOO_MANY_STEPS", "steps"),
    ],
)  # fmt: skip
def test_an_error_is_found_and_its_place_is_named(text, code, path) -> None:
    errors, _ = _codes(text)
    assert (code, path) in errors
    with pytest.raises(InvalidWorkflow) as caught:
        parse_workflow(text)
    issues = caught.value.details["issues"]
    assert isinstance(issues, list)
    assert any(line.startswith(code) for line in issues)


def test_a_step_inside_a_step_is_checked_in_its_own_body() -> None:
    inner = "{id: b, type: agent, agent: b, next: a}"
    text = _steps("{id: a, type: foreach, itemsPath: input, iterator: {states: [" + inner + "]}}")
    errors, _ = _codes(text)
    assert errors == [("UNKNOWN_TRANSITION_TARGET", "steps[0].iterator.states[0].next")]


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        (_steps("{id: a, type: end}", "{id: b, type: end}"), "UNREACHABLE_STEP", "steps[1]"),
        (_steps("{id: a, type: agent, agent: a, tsk: hello}"), "UNKNOWN_FIELD", "steps[0].tsk"),
        (_steps("{id: a, type: agent, agent: a, task: '${inptu.x}'}"), "UNKNOWN_NAME", "steps[0].task"),
        ("id: x\nstates: [" + A + "]", "MISSING_TRANSITION", "states[0]"),
    ],
)  # fmt: skip
def test_a_doubtful_file_is_accepted_with_a_warning(text, code, path) -> None:
    assert _codes(text) == ([], [(code, path)])
    assert parse_workflow(text).id == "x"


def test_a_name_that_a_macro_binds_is_known() -> None:
    text = _steps("{id: a, type: transform, expression: 'input.l.map(x, x + 1).filter(y, y > 2)'}")
    assert _codes(text) == ([], [])


def test_misspellings_are_reported_with_the_nearest_word() -> None:
    text = _steps("{id: a, type: agnt}", "{id: check, type: agent, agent: fixr, next: chck}")
    hints = {i.code: i.hint for i in inspect(text, agents=["fixer", "tester"]).errors}
    assert hints == {
        "UNKNOWN_STEP_TYPE": 'did you mean "agent"?',
        "UNKNOWN_TRANSITION_TARGET": 'did you mean "check"?',
        "UNKNOWN_AGENT": 'did you mean "fixer"?',
    }


def test_a_step_of_an_unknown_type_is_reported_once() -> None:
    text = _steps("{id: a, type: agnt}", "{id: b, type: agent, agent: b}")
    assert _codes(text) == ([("UNKNOWN_STEP_TYPE", "steps[0].type")], [])


def test_agents_are_looked_up_only_where_they_are_given() -> None:
    assert inspect(APPENDIX_B).ok
    assert [i.code for i in inspect(APPENDIX_B, agents=[]).errors] == ["UNKNOWN_AGENT"] * 3
    known = ["code-analyzer", "code-fixer", "test-runner"]
    assert inspect(APPENDIX_B, agents=known).ok


BOMB = "a: &a [x,x]\n" + "".join(
    f"b{n}: &b{n} [{','.join(['*a' if n == 0 else f'*b{n - 1}'] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "id: !!python/object/apply:os.system ['true']\n",
        "id: x\nid: y\nsteps: []\n",
        "id: x\nsteps: [" + "[" * 5000 + "]" * 5000 + "]",
        "id: x\n---\nid: y\n",
        "id: x\ndescription: " + "a" * MAX_BYTES,
        "id: [",
        "\x00",
    ],
    ids=["bomb", "tag", "twice", "deep", "two", "long", "broken", "nul"],
)
def test_hostile_yaml_is_one_error(text) -> None:
    assert [issue.code for issue in inspect(text).errors] == ["BAD_YAML"]


def test_the_nesting_of_steps_is_bounded() -> None:
    text = "[{id: z, type: end}]"
    for n in range(9):
        text = f"[{{id: t{n}, type: try, try: {text}}}]"
    assert [i.code for i in inspect(f"id: x\nsteps: {text}").errors] == ["TOO_DEEP"]


def test_a_nested_list_uses_the_dialect_of_its_own_key() -> None:
    two = "[{id: b, type: agent, agent: b}, {id: c, type: agent, agent: c}]"
    loop = "{id: a, type: foreach, items: [1], iterator: {%s: " + two + "}%s}"
    falls = parse_workflow("id: x\nstates: [" + loop % ("steps", ", end: true") + "]")
    assert falls.body.steps[0].body is not None
    assert [s.next for s in falls.body.steps[0].body.steps] == ["c", None]
    ends = inspect("id: x\nsteps: [" + loop % ("states", "") + "]")
    assert {w.code for w in ends.warnings} == {"MISSING_TRANSITION", "UNREACHABLE_STEP"}


@pytest.mark.parametrize(
    "text",
    [
        "id: x\nsteps:\n"
        + "".join(f"- {{id: {'s' * 50}{n}, type: agent, agent: a, next: {'z' * 60}}}\n" for n in range(500)),
        "id: x\nsteps: [{id: a, type: switch, transitions: ["
        + ",".join("{if: x, next: nope}" for _ in range(9000)) + "]}]",
        "id: x\n" + "".join(f"unknown{n}: 1\n" for n in range(15_000)) + "steps: [" + A + "]",
        "id: x\nsteps: [{id: a, type: agent, agent: a, task: '" + "${1}" * 60_000 + "'}]",
        "id: x\nsteps: [{id: a, type: agent, agent: a, task: '" + "$${" * 80_000 + "'}]",
    ],
    ids=["targets", "choices", "fields", "expressions", "escapes"],
)  # fmt: skip
def test_a_file_designed_to_be_slow_is_validated_quickly(text) -> None:
    assert len(text) < MAX_BYTES
    found = inspect(text)
    # The search for the nearest word takes milliseconds, so only some issues get a hint.
    assert sum("did you mean" in i.hint for i in (*found.errors, *found.warnings)) <= 20


def test_a_file_with_a_thousand_errors_gives_a_short_answer() -> None:
    text = "id: x\nsteps: [" + ",".join(["{id: a, type: nope}"] * 400) + "]"
    assert len(inspect(text).errors) == 100
