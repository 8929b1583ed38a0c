"""JSON bodies: the parser bounds the number of values and refuses duplicate keys."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten.model import json_structure
from sandkasten_server.api.request import request_body
from sandkasten_server.api.request.request_body import MAX_VALUES, parse_object

LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.text('a"\\:,[]{}\n\u2028', max_size=6)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab":,\\'), inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text('ab":,\\'), VALUES, max_size=6)


@settings(max_examples=60)
@given(OBJECTS, st.integers(1, 9), st.integers(1, 60))
def test_every_object_is_parsed_as_it_is(value, slice_bytes, most):
    raw = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        # Every string, escape and comma lies across the border of a slice once.
        patch.setattr(json_structure, "_SLICE", slice_bytes)
        patch.setattr(request_body, "MAX_VALUES", most)
        try:
            assert parse_object(raw) == value
        except PayloadTooLarge:
            assert _count(value) > most
        else:
            assert _count(value) <= most


def _count(value: object) -> int:
    """Count commas and opening brackets, and one."""
    if isinstance(value, dict | list):
        inner = list(value.values() if isinstance(value, dict) else value)
        return 1 + sum(_count(one) for one in inner) if inner else 2
    return 1


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"a":1,"a":2}', "a"),
        (b'{"a":{"b":1,"b":1}}', "b"),
        (b'{"a":[{"b":1},{"c":{"d":1,"d":2}}]}', "d"),
        (b'{"a\\u0062":1,"ab":2}', "ab"),
        (b'{"x":":","":1,"":2}', ""),
    ],
)
def test_a_duplicate_key_is_refused_and_named(raw, key):
    with pytest.raises(InvalidRequest, match="twice") as refused:
        parse_object(raw)
    assert refused.value.details == {"field": key}


@pytest.mark.parametrize(
    "raw",
    [b'{"a":{"k":1},"b":{"k":1}}', b'{"a":"\\"a\\":1","b":":::"}', b'{"a":"\\\\","b":"\\\\\\""}'],
)
def test_the_same_key_in_two_objects_is_accepted(raw):
    assert parse_object(raw) == json.loads(raw)


@pytest.mark.parametrize("element", [b"1", b"[]", b"{}", b'""', b'{"a":1}', b"null"])
def test_a_body_with_too_many_values_is_refused_in_little_memory(element):
    raw = b'{"a":[' + (element + b",") * (4_000_000 // (len(element) + 1)) + element + b"]}"
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge) as refused:
            parse_object(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.details == {"limit": MAX_VALUES}
    assert peak < len(raw)


def test_punctuation_in_a_large_string_is_not_counted():
    text = 'a,b:[c]{d}"\\\n' * 100_000
    assert parse_object(json.dumps({"contents": text}).encode()) == {"contents": text}
