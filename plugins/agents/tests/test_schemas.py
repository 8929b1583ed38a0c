"""JSON Schema validation: the reported problems, and bounds against hostile schemas and values."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sandkasten.errors import InvalidAgent, InvalidRequest
from sandkasten_agents.definitions.json_schemas import check, checked_schema
from tests.shared_sandbox_cases import few

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def refusal(schema: object) -> str:
    with pytest.raises(InvalidAgent) as caught:
        checked_schema(schema, what="output.schema", error=InvalidAgent)
    assert caught.value.hint
    return caught.value.message


def test_a_value_that_fits_has_no_problems():
    assert check({"name": "x", "tags": ["a"]}, PERSON) == []


def test_each_problem_is_reported_with_its_place():
    assert check({"name": 3, "tags": ["a", "c"], "z/~": 1}, PERSON) == [
        "#: has the unknown property 'z/~'",
        "#/name: must be of type string",
        '#/tags/1: must be one of ["a", "b"]',
    ]
    assert check({"name": ""}, PERSON) == ["#/name: violates minLength: 1"]
    assert check({}, PERSON) == ["#: 'name' is a required property"]


def test_at_most_ten_problems_are_reported_and_none_repeats_the_value():
    found = check(["x" * 10_000] * 100, {"items": {"type": "integer"}})
    assert len(found) == 10
    assert found[0] == "#/0: must be of type integer"


def test_a_pointer_escapes_its_separators():
    assert check({"a/b~": 1}, {"additionalProperties": {"type": "string"}}) == [
        "#/a~1b~0: must be of type string"
    ]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (["x"], "output.schema must be a mapping"),
        ({"type": 5}, "output.schema is not a JSON Schema"),
        ({"type": "strng"}, "output.schema is not a JSON Schema"),
        ({"$ref": "http://127.0.0.1:1/x"}, "points outside the schema"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "points outside the schema"),
        ({"$ref": "other.json#/a"}, "points outside the schema"),
        ({"$ref": "#/nowhere"}, "does not resolve"),
        ({"pattern": "(?=a)"}, "the pattern '(?=a)' cannot be used"),
        ({"patternProperties": {"[": {}}}, "the pattern '[' cannot be used"),
        ({"pattern": "(a{1000}){1000}"}, "cannot be used"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties is not supported"),
        ({"description": "x" * 70_000}, "is larger than 65536 bytes"),
        ({"default": float("nan")}, "is not valid JSON"),
    ],
)
def test_an_invalid_schema_is_refused(schema, problem):
    assert problem in refusal(schema)


def test_a_schema_that_is_nested_too_deep_is_refused():
    schema: dict[str, object] = {}
    for _ in range(100):
        schema = {"items": schema}
    assert "nested more than 64 levels deep" in refusal(schema)


@pytest.mark.promise("P62")
def test_nothing_is_ever_fetched(monkeypatch):
    def opened(*_: object, **__: object) -> None:
        pytest.fail("a connection was opened")

    monkeypatch.setattr(socket, "getaddrinfo", opened)
    monkeypatch.setattr(socket.socket, "connect", opened)
    # An $id changes the base of a local reference; its URL must not be opened.
    schema = {"$id": "http://127.0.0.1:1/a", "properties": {"x": {"$ref": "#/$defs/none"}}}
    [problem] = check({"x": 1}, schema)
    assert problem.startswith("#: cannot be compared with its schema")
    with pytest.raises(InvalidRequest):
        check(1, {"$ref": "http://127.0.0.1:1/a"})


def test_references_inside_work():
    schema = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}},
            }
        },
    }
    assert check({"v": 1, "next": {"v": 2, "next": {"v": "x"}}}, schema) == [
        "#/next/next/v: must be of type integer"
    ]


def test_a_self_referencing_schema_terminates():
    assert check(1, {"$ref": "#"}) == ["#: requires more than 200000 comparisons with its schema"]


@pytest.mark.promise("P62")
def test_a_schema_that_doubles_at_each_step_is_stopped():
    layers = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**layers, "a60": {}}}
    assert check(1, schema) == ["#: requires more than 200000 comparisons with its schema"]


@pytest.mark.promise("P62")
def test_a_pattern_takes_linear_time():
    assert check("a" * 100_000 + "b", {"pattern": "(a+)+$"}) == ["#: does not match the pattern"]
    assert check("a" * 100_000, {"pattern": "^(a|a)+$"}) == []
    assert check({"a" * 50_000 + "b": 1}, {"patternProperties": {"^(a+)+$": False}}) == []


def test_unique_items_are_compared_quickly():
    many = [{"a": n} for n in range(20_000)]
    assert check(many, {"uniqueItems": True}) == []
    assert check([*many, {"a": 7.0}], {"uniqueItems": True}) == ["#: has duplicate entries"]
    assert check([1, True], {"uniqueItems": True}) == []


def test_a_value_that_is_not_json_or_too_large_is_a_problem():
    assert check(float("inf"), {}) == ["#: is not valid JSON data"]
    assert check({1, 2}, {}) == ["#: is not valid JSON data"]
    assert check("x" * 5_000_000, {}) == ["#: is larger than 4194304 characters or 64 levels"]


def test_pattern_properties_leave_other_properties_to_additional_properties():
    schema = {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}
    assert check({"xa": 1, "xb": "q", "z": 1}, schema) == [
        "#: has the unknown property 'z'",
        "#/xb: must be of type integer",
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", "x1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abx"), inner, max_size=3)
    ),
    max_leaves=6,
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", "string", "integer", "null"]),
        "enum": st.lists(values, min_size=1, max_size=3),
        "required": st.lists(st.sampled_from("abx"), max_size=2, unique=True),
        "pattern": st.sampled_from(["^a", "b$", "[0-9]"]),
        "uniqueItems": st.booleans(),
        "minItems": st.integers(0, 2),
        "patternProperties": st.just({"^a": {"type": "string"}}),
        "properties": st.just({"b": {"type": "integer"}}),
        "additionalProperties": st.sampled_from([True, False, {"type": "null"}]),
    },
)


@given(values, rules)
def test_validation_agrees_with_the_reference_library(value, schema):
    assert (check(value, schema) == []) == Draft202012Validator(schema).is_valid(value)


TOO_MUCH = ["#: requires more than 200000 comparisons with its schema"]


@pytest.mark.promise("P62")
@pytest.mark.parametrize(
    ("value", "schema"),
    few(
        [
            ([{"a": 1}] * 20_000, {"items": {"properties": {f"b{n}": True for n in range(500)}}}),
            (
                [{"a": 1}] * 20_000,
                {"items": {"dependentRequired": {f"b{n}": [] for n in range(500)}}},
            ),
            ([[0] * 1000] * 900, {"items": {"enum": [[0] * 1001, [0] * 1000]}}),
            ([[[0] * 300_000]], {"allOf": [{"items": {"uniqueItems": True}}] * 9}),
            (["a" * 4000] * 1000, {"items": {"pattern": r"\w{60}"}}),
        ],
        2,
    ),
    ids=["properties", "dependentRequired", "enum", "uniqueItems", "pattern"],
)
def test_a_schema_rule_is_counted_by_all_it_visits(value, schema):
    assert check(value, schema) == TOO_MUCH


def test_a_pattern_is_compiled_once():
    assert check(["ab"] * 2000, {"items": {"pattern": r"^\w{1,60}$"}}) == []


def test_a_large_enum_is_checked_quickly_against_many_values():
    words = [f"w{n}" for n in range(200)]
    assert check(words * 10, {"items": {"enum": words}}) == []


def test_many_expensive_patterns_are_refused_together():
    one = r"[\w\d\s]{0,80}"
    assert checked_schema({"pattern": one}, what="it") == {"pattern": one}
    many = [{"pattern": rf"[\w\d\s]{{0,{80 + n}}}"} for n in range(60)]
    assert "its patterns are too complex" in refusal({"anyOf": many})
