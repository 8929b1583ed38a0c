"""Fitting the text between a model and its tools, and marking what was cut."""

from __future__ import annotations

import json

import pytest

from sandkasten.errors import InvalidAgent
from sandkasten_agents.chat.chat_wire import wire_config
from sandkasten_agents.loop.shortened_answers import shortened, truncated_json
from sandkasten_agents.loop.tool_messages import (
    function_name,
    parse_json_answer,
)


def test_a_short_answer_is_not_changed():
    answer = {"ok": True, "stdout": "ü" * 50}
    assert json.loads(truncated_json(answer, 100)) == answer


@pytest.mark.parametrize(
    "answer",
    [
        {"ok": True, "stdout": "x" * 100_000, "stderr": "y" * 100_000, "exit_code": 3},
        {"ok": True, "entries": [{"path": f"/workspace/{n}" * 9} for n in range(2000)]},
        {"ok": False, "deep": [[["z" * 50_000]]], "text": '"\\' * 50_000},
        {str(n): n for n in range(9000)},
    ],
)
def test_a_long_answer_is_cut_to_valid_json_that_says_so(answer):
    found = truncated_json(answer, 5000)
    # Quotes and backslashes of a string inside a string take twice the space.
    assert len(found) <= 5000 * 2
    told = json.loads(found)
    assert told["cut_for_model"] is True
    assert told.get("ok") == answer.get("ok")
    assert "left out" in found


def test_a_gap_keeps_the_beginning_and_more_of_the_end():
    assert shortened("a" * 50 + "b" * 50, 30) == (
        "a" * 10 + "\n[… 70 characters left out …]\n" + "b" * 20
    )
    assert shortened("abc", 3) == "abc"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        (' {"a": [1]}\n', {"a": [1]}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Words.\r\n```\r\n{"a": 1}\r\n```\r\nMore.', {"a": 1}),
        ('```python\nx = 1\n```\nthen\n```json\n"b"\n```', "b"),
        ('{"a": "```"}', {"a": "```"}),
    ],
)
def test_json_is_found_in_the_places_models_use(text, value):
    assert parse_json_answer(text) == value


@pytest.mark.parametrize("text", ["", "  ", "no", '{"a": NaN}', "```json\n```", "[" * 100_000])
def test_a_missing_json_value_is_reported_with_the_reason(text):
    with pytest.raises(ValueError, match="the answer is not valid JSON: ."):
        parse_json_answer(text)


def test_parsing_a_hostile_answer_is_fast():
    with pytest.raises(ValueError, match="not valid JSON"):
        parse_json_answer("```\n" + " " * (4 << 20))


@pytest.mark.parametrize(
    ("name", "short"), [("code-fixer", "code-fixer"), ("a b/c", "a_b_c"), ("ä", "unnamed")]
)
def test_names_are_made_valid_for_endpoints(name, short):
    assert function_name(name) == short
    assert len(function_name("x" * 999)) == 64


@pytest.mark.parametrize(
    "config",
    [
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": float("nan")},
        {"maxOutputTokens": 1.5},
        {"stopSequences": [7]},
        {"stop": {"a": 1}},
        {"reasoningEffort": 3},
    ],
)
def test_a_setting_of_the_wrong_type_is_refused_by_name(config):
    (name,) = config
    with pytest.raises(InvalidAgent) as error:
        wire_config(config)
    assert error.value.details == {"field": f"config.{name}"}


def test_unknown_completion_settings_are_not_sent():
    assert wire_config({"apiKey": "x", "topK": 3, "version": "1", "stop": "a", "seed": None}) == {
        "stop": ["a"]
    }
