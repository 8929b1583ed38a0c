"""The codec: values as JSON and back, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.model.commands.exec_values import ExecResult, Why
from sandkasten.model.json_codec import (
    BASE64,
    OPEN,
    FileName,
    Public,
    ShapeError,
    Timestamp,
    from_json,
    to_json,
)
from sandkasten.model.sandbox.usage import ExecUsage


class Color(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    number: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    count: int
    ratio: float
    flag: bool
    color: Color
    choice: Literal["a", "b"]
    later: Annotated[Literal["x"], OPEN]
    at: Timestamp
    path: FileName
    data: bytes
    inner: Inner
    renamed: int = field(metadata={"json": "other_name"})
    anything: Any = None
    maybe: str | None = None
    until: Timestamp | None = None
    target: FileName | None = None
    several: tuple[Inner, ...] = ()
    words: tuple[str, ...] = ()
    kinds: frozenset[Literal["a", "b"]] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int | float] = field(default_factory=dict)
    exact: Annotated[bytes | None, BASE64] = None
    shouted: Annotated[str, Public(str.upper, str.lower)] = ""


VALUE = Outer(
    "n", 1, 0.5, True, Color.RED, "a", "x", 5.25, "p\udcff", b"\xff", Inner(2), 3,
    {"k": [1]}, "m", 6.0, "t", (Inner(4, "n"),), ("w",), frozenset({"b", "a"}), {"l": "1"},
    {"cpu": 0.5, "pids": 3}, b"\x00", "hi",
)  # fmt: skip
JSON = {
    "name": "n",
    "count": 1,
    "ratio": 0.5,
    "flag": True,
    "color": "red",
    "choice": "a",
    "later": "x",
    "at": "1970-01-01T00:00:05.250Z",
    "at_unix": 5.25,
    "path": "p\ufffd",
    "path_b64": "cP8=",
    "data": "\ufffd",
    "data_b64": "/w==",
    "inner": {"number": 2, "note": ""},
    "other_name": 3,
    "anything": {"k": [1]},
    "maybe": "m",
    "until": "1970-01-01T00:00:06.000Z",
    "until_unix": 6.0,
    "target": "t",
    "several": [{"number": 4, "note": "n"}],
    "words": ["w"],
    "kinds": ["a", "b"],
    "labels": {"l": "1"},
    "limits": {"cpu": 0.5, "pids": 3},
    "exact": "AA==",
    "shouted": "HI",
}


def test_a_value_is_an_object_of_its_public_names():
    assert to_json(VALUE) == JSON


def test_what_was_encoded_is_decoded_to_the_same_value():
    assert from_json(Outer, JSON) == VALUE
    empty = Outer("", 0, 0.0, False, Color.RED, "b", "x", 0.0, "", b"", Inner(0), 0)
    assert from_json(Outer, to_json(empty)) == empty


def test_an_unknown_key_is_ignored_and_a_missing_one_has_its_default():
    assert from_json(Inner, {"number": 1, "newer": {}}) == Inner(1, "")
    with pytest.raises(ShapeError, match="number must be given"):
        from_json(Inner, {})


def test_a_null_stands_for_an_empty_container_and_for_nothing_else():
    assert from_json(Outer, {**JSON, "words": None, "labels": None}).words == ()
    with pytest.raises(ShapeError, match="name must be a string"):
        from_json(Outer, {**JSON, "name": None})


def test_a_number_of_any_size_is_read():
    assert from_json(Inner, {"number": 10**400}).number == 10**400


def test_a_literal_that_may_grow_is_read_as_it_is():
    assert str(from_json(Outer, {**JSON, "later": "new"}).later) == "new"
    with pytest.raises(ShapeError, match="later must be a string"):
        from_json(Outer, {**JSON, "later": 5})


def test_a_date_counts_where_there_is_no_number():
    found = {name: value for name, value in JSON.items() if name != "at_unix"}
    assert from_json(Outer, found).at == 5.25
    assert from_json(Outer, {**found, "at": 7}).at == 7


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("name", 5, "a string"),
        ("count", 1.5, "a whole number"),
        ("count", True, "a number"),
        ("count", "1", "a number"),
        ("count", float("inf"), "a number"),
        ("name", 10**400, "a string"),
        ("ratio", float("nan"), "a number"),
        ("ratio", 10**400, "a number"),
        ("flag", 1, "true or false"),
        ("color", "green", "one of red"),
        ("color", [], "one of red"),
        ("choice", "c", "one of a, b"),
        ("at_unix", "x", "a date"),
        ("at_unix", [], "a number"),
        ("path_b64", "*", "base64"),
        ("data_b64", 5, "a string"),
        ("inner", [], "an object"),
        ("several", {}, "a list"),
        ("several", [5], "an object"),
        ("words", "w", "a list"),
        ("words", [5], "a string"),
        ("kinds", ["c"], "one of a, b"),
        ("labels", {"l": 1}, "a string"),
        ("limits", {"cpu": "1"}, "a number"),
        ("labels", [], "an object"),
        ("maybe", 5, "a string"),
    ],
)
def test_another_type_is_refused_with_the_name_of_the_field(key, value, expected):
    with pytest.raises(ShapeError) as refused:
        from_json(Outer, {**JSON, key: value})
    assert (refused.value.field, str(refused.value)) == (key, f"{key} must be {expected}")


@pytest.mark.parametrize("value", [None, [], "x", 5])
def test_what_is_not_an_object_is_refused(value):
    with pytest.raises(ShapeError, match="answer must be an object"):
        from_json(Inner, value, "answer")


@given(
    st.builds(
        ExecResult,
        exec_id=st.text(max_size=5),
        status=st.sampled_from(["completed", "lost"]),
        exit_code=st.none() | st.integers(0, 255),
        stdout=st.binary(max_size=20),
        stderr=st.binary(max_size=20),
        usage=st.builds(ExecUsage, cpu_ms=st.integers(0, 9)),
        why=st.none() | st.just(Why("OOM", "m", "h")),
        pid=st.integers(0, 9),
    )
)
def test_any_result_survives_the_way_there_and_back(result):
    assert from_json(ExecResult, to_json(result)) == result


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(JSON, json_values)) | json_values)
def test_hostile_json_is_a_value_or_a_named_error(found):
    with suppress(ShapeError):
        assert isinstance(from_json(Outer, found), Outer)
