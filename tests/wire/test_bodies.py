"""Bounded JSON bodies, and lossless byte strings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.errors import InvalidRequest, ProtocolViolation
from sandkasten_runtime.wire.json_bodies import (
    MAX_DEPTH,
    decode_body,
    encode_body,
    from_bytes_json,
    to_bytes_json,
)


@given(st.binary().filter(lambda raw: b"\0" not in raw))
def test_any_bytes_survive_a_round_trip_as_bytes_and_as_text(raw: bytes):
    text = raw.decode("utf-8", "surrogateescape")
    for spelled in (to_bytes_json(raw), to_bytes_json(text)):
        assert from_bytes_json(json.loads(json.dumps(spelled)), "x") == text
    try:
        raw.decode()
    except UnicodeDecodeError:
        assert set(to_bytes_json(raw)) == {"b64"}
    else:
        assert to_bytes_json(raw) == text


@pytest.mark.parametrize("value", ["a\0b", b"a\0b", "\0", "\ud800"])
def test_a_value_that_cannot_be_encoded_is_an_invalid_request(value: str | bytes):
    with pytest.raises(InvalidRequest):
        to_bytes_json(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        True,
        [],
        {},
        {"b64": 1},
        {"b64": "not base64!"},
        {"b64": "AA"},
        {"b64": "YQA="},
        "a\0",
        "\udc80",
        "\ud800x",
        {"B64": "YQ=="},
    ],
    ids=repr,
)
def test_an_invalid_byte_string_is_a_violation(value: object):
    with pytest.raises(ProtocolViolation):
        from_bytes_json(value, "x")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"7",
        b"{} {}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"\xff{}",
        b'{"a": "\xff"}',
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"[" * 30 + b"]" * 30 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_a_bounded_json_object_is_a_violation(body: bytes):
    with pytest.raises(ProtocolViolation):
        decode_body(body, "x")


def test_depth_is_limited_and_brackets_in_strings_do_not_count():
    deep = b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH
    assert decode_body(deep, "x")
    with pytest.raises(ProtocolViolation):
        decode_body(b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "x")
    assert decode_body(json.dumps({"a": "[{" * 500}).encode(), "x") == {"a": "[{" * 500}
    wide: dict[str, object] = {"a": [{"b": []} for _ in range(500)]}
    assert decode_body(json.dumps(wide).encode(), "x") == wide


@given(st.binary(max_size=300))
def test_random_bytes_decode_to_an_object_or_a_violation(body: bytes):
    try:
        assert isinstance(decode_body(body, "x"), dict)
    except ProtocolViolation:
        return


def test_a_string_that_is_not_valid_unicode_is_refused_before_sending():
    with pytest.raises(InvalidRequest):
        encode_body({"verb": "\ud800"})


def test_bodies_are_compact_utf8():
    assert encode_body({"a": "é", "b": [1, None]}) == '{"a":"é","b":[1,null]}'.encode()
