"""Frames survive any split of their bytes; invalid ones are refused before they cost memory."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandkasten.errors import ProtocolViolation
from sandkasten_runtime.wire.frame_codec import (
    BODY_LIMITS,
    FROM_CLIENT,
    FROM_RUNNER,
    MIB,
    Decoder,
    Frame,
    Kind,
    decode_chunk_head,
    decode_credit,
    encode,
    encode_chunk,
    encode_credit,
)

pytestmark = pytest.mark.promise("P09")

frames = st.builds(
    Frame,
    kind=st.sampled_from(sorted(FROM_RUNNER)),
    stream=st.integers(0, 2**32 - 1),
    body=st.binary(max_size=300),
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 10_000), max_size=40))
def test_frames_survive_any_split(sent: list[Frame], places: list[int]):
    data = b"".join(encode(frame.kind, frame.stream, bytes(frame.body)) for frame in sent)
    decoder = Decoder(FROM_RUNNER)
    got = [frame for piece in cut(data, places) for frame in decoder.feed(piece)]
    assert got == sent
    assert decoder.idle


@given(st.lists(frames, min_size=1, max_size=4))
def test_frames_survive_byte_by_byte(sent: list[Frame]):
    decoder = Decoder(FROM_RUNNER)
    data = b"".join(encode(frame.kind, frame.stream, bytes(frame.body)) for frame in sent)
    got = [frame for byte in data for frame in decoder.feed(bytes([byte]))]
    assert got == sent


@given(st.lists(frames, min_size=1, max_size=4), st.integers(1, 10_000))
def test_a_truncated_stream_yields_a_prefix_and_is_not_idle(sent: list[Frame], back: int):
    data = b"".join(encode(frame.kind, frame.stream, bytes(frame.body)) for frame in sent)
    short = data[: -min(back, len(data))]
    decoder = Decoder(FROM_RUNNER)
    got = decoder.feed(short)
    assert got == sent[: len(got)]
    assert len(got) < len(sent)
    whole = b"".join(encode(frame.kind, frame.stream, bytes(frame.body)) for frame in got)
    assert decoder.idle == (len(whole) == len(short))


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2000), max_size=20))
def test_random_bytes_decode_to_frames_or_a_violation(data: bytes, places: list[int]):
    decoder = Decoder(FROM_RUNNER)
    try:
        for piece in cut(data, places):
            for frame in decoder.feed(piece):
                assert len(frame.body) <= len(data)
    except ProtocolViolation:
        return


@pytest.mark.parametrize("kind", sorted(FROM_RUNNER))
def test_a_body_at_the_limit_passes_and_a_larger_one_is_refused(kind: Kind):
    limit = BODY_LIMITS[kind]
    body = bytes(limit)
    assert Decoder(FROM_RUNNER).feed(encode(kind, 1, body)) == [Frame(kind, 1, body)]
    with pytest.raises(ProtocolViolation):
        Decoder(FROM_RUNNER).feed(struct.pack(">IBI", 5 + limit + 1, kind, 1))
    with pytest.raises(ValueError, match="over"):
        encode(kind, 1, bytes(limit + 1))


def test_an_open_may_be_eight_mebibytes():
    body = bytes(8 * MIB)
    assert Decoder(FROM_CLIENT).feed(encode(Kind.OPEN, 1, body)) == [Frame(Kind.OPEN, 1, body)]


@pytest.mark.parametrize("length", [0, 1, 4, 2**32 - 1, 2**31])
def test_an_invalid_length_is_refused_by_the_header(length: int):
    with pytest.raises(ProtocolViolation):
        Decoder(FROM_RUNNER).feed(struct.pack(">IBI", length, Kind.DATA, 1))


@pytest.mark.parametrize("number", [0, 11, 255])
def test_an_unknown_kind_is_refused(number: int):
    with pytest.raises(ProtocolViolation):
        Decoder(FROM_RUNNER).feed(struct.pack(">IBI", 5, number, 1))


@pytest.mark.parametrize("kind", sorted(FROM_CLIENT - FROM_RUNNER))
def test_a_kind_of_the_other_direction_is_refused(kind: Kind):
    with pytest.raises(ProtocolViolation):
        Decoder(FROM_RUNNER).feed(encode(kind, 1))


def test_a_length_alone_allocates_no_more_than_the_limit_of_its_kind():
    decoder = Decoder(FROM_RUNNER)
    tracemalloc.start()
    try:
        decoder.feed(struct.pack(">IBI", 5 + MIB, Kind.DATA, 1))
        with pytest.raises(ProtocolViolation):
            Decoder(FROM_RUNNER).feed(struct.pack(">IBI", 2**32 - 1, Kind.DATA, 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB + 64 * 1024


@given(st.lists(st.integers(1, 80_000), max_size=30))
def test_a_body_received_in_place_is_identical(counts: list[int]):
    body = bytes(range(256)) * 2000
    data = encode(Kind.DATA, 3, body) + encode(Kind.RESULT, 3, b"{}")
    decoder = Decoder(FROM_RUNNER)
    got = decoder.feed(data[:100])
    at = 100
    for count in counts:
        room = decoder.room()
        if room is None:
            break
        taken = min(count, len(room))
        room[:taken] = data[at : at + taken]
        room.release()
        at += taken
        frame = decoder.filled(taken)
        got += [] if frame is None else [frame]
    got += decoder.feed(data[at:])
    assert got == [Frame(Kind.DATA, 3, body), Frame(Kind.RESULT, 3, b"{}")]
    assert decoder.idle


def test_a_body_in_tiny_pieces_costs_about_its_size():
    decoder = Decoder(FROM_RUNNER)
    size = MIB // 4
    decoder.feed(struct.pack(">IBI", 5 + size, Kind.DATA, 1))
    tracemalloc.start()
    try:
        for _ in range(size // 2 - 1):
            decoder.feed(b"ab")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * size


@settings(max_examples=20, deadline=None)
@given(st.integers(1_000, 200_000))
def test_large_frames_survive_reads_of_any_size(step: int):
    bodies = [bytes([number]) * (300_000 + number) for number in range(3)]
    data = b"".join(encode(Kind.DATA, 7, body) for body in bodies)
    decoder = Decoder(FROM_RUNNER)
    got: list[Frame] = []
    for start in range(0, len(data), step):
        got += decoder.feed(data[start : start + step])
    assert [frame.body for frame in got] == bodies


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_credit_survives_a_round_trip(stream: int, amount: int):
    (frame,) = Decoder(FROM_RUNNER).feed(encode_credit(stream, amount))
    assert (frame.stream, decode_credit(frame.body)) == (stream, amount)


@pytest.mark.parametrize("body", [b"", b"abc", b"abcde"])
def test_a_malformed_credit_is_refused(body: bytes):
    with pytest.raises(ProtocolViolation):
        decode_credit(body)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2))
def test_chunk_heads_survive_a_round_trip(seq: int, offset: int, source: int):
    assert decode_chunk_head(encode_chunk(seq, offset, source, b"x")) == (seq, offset, source)


@pytest.mark.parametrize("body", [b"", b"x" * 16, encode_chunk(1, 0, 3, b""), b"\xff" * 17])
def test_a_malformed_chunk_is_refused(body: bytes):
    with pytest.raises(ProtocolViolation):
        decode_chunk_head(body)
