"""Kept output: exact head and tail, counted gaps, bounded memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sandkasten.model.commands.kept_output import KeptOutput, gap_marker


def _fed(cap: int, chunks: list[bytes]) -> KeptOutput:
    output, offset = KeptOutput(cap, cap), 0
    for seq, chunk in enumerate(chunks, 1):
        output.add(seq, "stdout", offset, chunk)
        offset += len(chunk)
    return output


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(0, 100))
def test_head_and_tail_are_exact_for_any_chunking(chunks, cap):
    whole = b"".join(chunks)
    output = _fed(cap, chunks)
    raw = output.kept("stdout", marked=False, totals={})
    marked = output.kept("stdout", totals={})
    if len(whole) <= cap:
        assert raw == marked == whole
        assert not output.incomplete
    else:
        head, tail = (cap + 1) // 2, cap // 2
        expected_tail = whole[len(whole) - tail :]
        assert raw == whole[:head] + expected_tail
        assert marked == whole[:head] + gap_marker(len(whole) - cap) + expected_tail
        assert output.incomplete


def test_a_gap_is_counted_for_the_chunk_after_it():
    output = KeptOutput(100, 100)
    assert output.add(1, "stdout", 0, b"abc") == 0
    assert output.add(9, "stdout", 1003, b"xyz") == 1000
    assert output.kept("stdout", totals={}) == b"abc" + gap_marker(1000) + b"xyz"
    assert output.incomplete


def test_both_streams_keep_their_order_of_arrival():
    output = KeptOutput(100, 100)
    output.add(1, "stdout", 0, b"one ")
    output.add(2, "stderr", 0, b"two ")
    output.add(3, "stdout", 4, b"three")
    assert output.kept("stdout", "stderr", totals={}) == b"one two three"
    assert output.kept("stdout", totals={}) == b"one three"
    assert output.kept("stderr", totals={}) == b"two "


def test_a_chunk_that_comes_twice_or_overlaps_is_kept_once():
    output = KeptOutput(100, 100)
    output.add(1, "stdout", 0, b"abcdef")
    output.add(1, "stdout", 0, b"abcdef")
    output.add(2, "stdout", 4, b"efgh")
    assert output.kept("stdout", totals={}) == b"abcdefgh"


def test_bytes_lost_at_the_end_are_not_hidden():
    output = KeptOutput(100, 100)
    output.add(1, "stdout", 0, b"abc")
    assert output.kept("stdout", totals={"stdout": 10}) == b"abc" + gap_marker(7)


def test_a_million_small_writes_cost_their_bytes_and_not_a_million_objects():
    output = KeptOutput(200_000, 200_000)
    for seq in range(1, 300_001):
        output.add(seq, "stdout", seq - 1, b"x")
    stream = output._streams["stdout"]
    assert len(stream.head) + len(stream.tail) < 50
    assert len(output.kept("stdout", marked=False, totals={})) == 200_000


def test_a_flood_leaves_no_more_than_the_caps():
    output, block, offset = KeptOutput(1000, 1000), b"y" * 65_536, 0
    for seq in range(1, 2000):
        output.add(seq, "stdout", offset, block)
        offset += len(block)
    stream = output._streams["stdout"]
    held = sum(len(p.data) for p in stream.head) + sum(len(p.data) for p in stream.tail)
    assert held == 1000
    assert output.end("stdout") == offset
