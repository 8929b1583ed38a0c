"""Envelopes and errors of the Connect protocol."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest

from sandkasten import errors
from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten_e2b.connect_codec import (
    Envelopes,
    end_of_stream,
    envelope,
    error_code,
    error_fields,
    error_status,
    only_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_an_envelope_has_flags_a_length_and_json():
    assert envelope({"a": 1}) == b'\0\0\0\0\x07{"a":1}'
    assert end_of_stream() == b"\x02\0\0\0\x02{}"
    told = end_of_stream({"code": "internal", "message": "x"})
    assert json.loads(told[5:]) == {"error": {"code": "internal", "message": "x"}}


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_are_found_in_pieces_of_any_size(size):
    data = envelope({"a": "b" * 50}) + envelope({}) + end_of_stream()
    reader = Envelopes(100)
    found = [one for at in range(0, len(data), size) for one in reader.feed(data[at : at + size])]
    reader.finish()
    assert [json.loads(one) for one in found] == [{"a": "b" * 50}, {}]


def test_a_length_is_refused_before_the_bytes_arrive():
    with pytest.raises(PayloadTooLarge) as caught:
        list(Envelopes(10).feed(struct.pack(">BI", 0, 2**32 - 1)))
    assert caught.value.details["limit"] == 10


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the request must have one message, got 0"),
        (envelope({}) * 2, "the request must have one message, got more"),
        (envelope({}) + end_of_stream() * 2, "the request continues after its end"),
        (envelope({})[:-1], "the request ended within a message"),
        (b"\0\0", "the request ended within a message"),
        (envelope({}, flags=1), "compressed messages are not supported"),
    ],
)
def test_a_request_that_is_not_one_message_is_refused(data, message):
    with pytest.raises(InvalidRequest) as caught:
        only_message(data, 1000)
    assert caught.value.message == message


def test_reading_ends_at_the_second_of_many_messages(monkeypatch):
    read: list[bytes] = []
    feed = Envelopes.feed

    def counted(reader: Envelopes, piece: bytes) -> Iterator[bytes]:
        for one in feed(reader, piece):
            read.append(one)
            yield one

    monkeypatch.setattr(Envelopes, "feed", counted)
    with pytest.raises(InvalidRequest):
        only_message(b"\0" * 5000, 1000)
    assert len(read) == 2


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (errors.FileNotFound, "not_found", 404),
        (errors.ExecNotFound, "not_found", 404),
        (errors.FileExists, "already_exists", 409),
        (errors.FilePermission, "permission_denied", 403),
        (errors.PolicyDenied, "permission_denied", 403),
        (errors.NotADirectory, "invalid_argument", 400),
        (errors.InvalidRequest, "invalid_argument", 400),
        (errors.PayloadTooLarge, "resource_exhausted", 429),
        (errors.Unauthorized, "unauthenticated", 401),
        (errors.CommandTimeout, "deadline_exceeded", 504),
        (errors.SandboxLost, "unavailable", 503),
        (errors.InternalError, "internal", 500),
    ],
)
def test_an_error_has_the_code_that_the_sdks_know(error, code, status):
    one = error("it failed", hint="try this")
    assert (error_code(one), error_status(one)) == (code, status)
    assert error_fields(one) == {"code": code, "message": "it failed (try this)"}
