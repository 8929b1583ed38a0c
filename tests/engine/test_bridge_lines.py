"""What the engine makes of the lines of a code context, which is a hostile program."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from sandkasten.errors import KernelFailed
from sandkasten.model.commands.code_values import CodeDisplay, CodeError, CodeText
from sandkasten_runtime.engine.code.bridge_lines import (
    MAX_LINE_BYTES,
    MAX_LONG_BYTES,
    MAX_RESULTS,
    MAX_VALUES,
    CallLines,
    Done,
    cleaned,
    display_of,
    plain,
)

pytestmark = pytest.mark.promise("P80")


def lines_of(*messages: object, most: int = 1000) -> tuple[CallLines, list[object]]:
    lines = CallLines("a", most, most)
    data = b"".join(json.dumps(one).encode() + b"\n" for one in messages)
    return lines, [lines.take(one) for one in lines.feed(data)]


def test_messages_become_values_and_those_of_other_calls_are_left_out():
    lines, taken = lines_of(
        {"call": "a", "type": "text", "stream": "stdout", "text": "x"},
        {"call": "b", "type": "text", "stream": "stdout", "text": "of another call"},
        {"call": "a", "type": "new kind"},
        {"call": "a", "type": "error", "name": "E", "value": "v", "traceback": "\x1b[31mE\x1b[0m"},
        {"call": "a", "type": "done", "status": "ok", "count": 3},
    )
    done = Done("ok", 3, truncated=False, restarted=False, detail="")
    assert taken == [CodeText("stdout", "x"), None, None, done]
    assert lines.error == CodeError("E", "v", "E")


def test_a_message_in_parts_is_joined_wherever_the_bytes_are_cut():
    whole = json.dumps({"call": "a", "type": "result", "data": {"text/plain": "é" * 50}})
    half = len(whole) // 2
    parts = ({"call": "a", "part": whole[:half]}, {"call": "a", "part": whole[half:], "last": True})
    data = b"".join(json.dumps(one).encode() + b"\n" for one in parts)
    lines = CallLines("a", 0, 0)
    found = [one for at in range(len(data)) for one in lines.feed(data[at : at + 1])]
    assert [lines.take(one) for one in found] == [CodeDisplay(text="é" * 50)]


def test_the_end_of_a_line_that_began_earlier_is_left_out():
    lines = CallLines("a", 0, 0)
    data = b'of another call"}\n{"call": "a", "type": "done", "status": "ok"}\n'
    assert len([*lines.feed(data)]) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b"[" * 100_000,
        b"[]",
        b"3",
        b"x" * (MAX_LINE_BYTES + 1),
        b'{"call": "a", "part": 3}',
        '{"call": "a"}'.encode("utf-16"),
        b'{"call": "a", "b": [' + b"[]," * 40_000 + b"[]]}",
    ],
)
def test_a_line_that_is_no_message_is_a_named_error(line):
    lines = CallLines("a", 0, 0)
    with pytest.raises(KernelFailed) as caught:
        [*lines.feed(b"{}\n" + line + b"\n")]
    assert caught.value.message.startswith("the code context sent invalid data")
    assert caught.value.hint


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory():
    lines = CallLines("a", 0, 0)
    with pytest.raises(KernelFailed, match="too long"):
        [*lines.feed(b"x" * (MAX_LINE_BYTES + 1))]


def test_parts_without_an_end_are_refused():
    lines = CallLines("a", 0, 0)
    piece = json.dumps({"call": "a", "part": "x" * 200_000}).encode() + b"\n"
    with pytest.raises(KernelFailed, match="too long"):
        [[*lines.feed(piece)] for _ in range(60)]


@pytest.mark.parametrize(
    "message",
    [
        {"type": "done", "status": "fine"},
        {"type": "done"},
        {"type": "done", "status": ["ok"]},
        {"type": "result", "data": []},
        {"type": "result"},
    ],
)
def test_a_message_with_a_false_field_is_a_named_error(message):
    with pytest.raises(KernelFailed):
        lines_of({"call": "a", **message})


def test_output_and_results_over_the_limits_are_cut_and_marked():
    text = {"call": "a", "type": "text", "stream": "stderr", "text": "äöü"}
    lines, _ = lines_of(text, text, most=8)
    assert ("".join(lines.stderr), lines.truncated) == ("äöüä", True)
    many = [{"call": "a", "type": "result", "data": {}}] * (MAX_RESULTS + 1)
    lines, _ = lines_of(*many)
    assert (len(lines.results), lines.truncated) == (MAX_RESULTS, True)
    lines, _ = lines_of(text, most=6)
    assert not lines.truncated


def test_a_message_with_too_many_values_is_not_parsed_and_marked():
    data = '{"call": "a", "type": "result", "data": {"application/json": [%s[]]}}'
    lines = CallLines("a", 0, 0)
    assert lines.take(data % ("[]," * MAX_VALUES)) is None
    assert (lines.results, lines.truncated) == ([], True)
    lines = CallLines("a", 0, 0)
    assert lines.take(data % ("[]," * 1000)) is not None
    assert not lines.truncated


def test_the_values_of_all_results_of_a_call_are_bounded_together():
    message = json.dumps(
        {"call": "a", "type": "result", "data": {"application/json": [1] * 90_000}}
    )
    lines = CallLines("a", 0, 0)
    for _ in range(4):
        lines.take(message)
    assert (lines.results[-1].json[-1], lines.truncated) == (1, False)
    lines.take(message)
    assert (lines.results[-1].json[-1], lines.truncated) == (None, True)


def test_a_mime_bundle_has_the_fields_of_the_contract():
    bundle = {
        "text/plain": ["a", "b"],
        "text/html": "<b>",
        "text/markdown": "*m*",
        "image/png": "iVBO\nRw0K\n",
        "image/svg+xml": "<svg/>",
        "image/jpeg": "/9j/",
        "application/pdf": "JVBE",
        "text/latex": "$x$",
        "application/json": {"a": [1]},
        "application/javascript": "1",
        "application/vnd.sandkasten.data+json": {"columns": ["a"]},
        "application/vnd.sandkasten.chart+json": {"type": "line"},
        "application/x-other": 3,
    }
    assert asdict(display_of(bundle, main=True)) == {
        "text": "ab",
        "html": "<b>",
        "markdown": "*m*",
        "png": "iVBORw0K",
        "svg": "<svg/>",
        "jpeg": "/9j/",
        "pdf": "JVBE",
        "latex": "$x$",
        "json": {"a": [1]},
        "javascript": "1",
        "data": {"columns": ["a"]},
        "chart": {"type": "line"},
        "extra": {"application/x-other": 3},
        "main": True,
    }


def test_values_that_json_cannot_carry_are_replaced():
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    found = cleaned({"\ud800": ["\ud800", float("nan"), 1 << 70, 1.5, True]}, [100])
    assert found == {"?": ["?", None, str(1 << 70), 1.5, True]}
    assert str(cleaned(deep, [1000])).count("[") < 50
    assert len([one for one in cleaned([1] * 100, [10]) if one is not None]) < 10


def test_escape_sequences_of_a_terminal_are_removed():
    assert plain("\x1b[0;31mred\x1b[0m \x1b]0;title\x07x\x1b[38;5;241my") == "red xy"
    assert plain("a [0m b") == "a [0m b"


def test_messages_without_content_take_no_memory_and_large_ones_end_the_call():
    empty = {"call": "a", "type": "text", "stream": "stdout", "text": ""}
    lines, taken = lines_of(*[empty] * 100)
    assert taken == [None] * 100
    assert lines.stdout == []
    part = json.dumps({"call": "a", "part": ""}).encode() + b"\n"
    lines._parts_bytes = 10_000_000 + 64 * 1024
    with pytest.raises(KernelFailed, match="a message is too long"):
        [*lines.feed(part)]
    # A text of control characters is six times as long as JSON.
    text = json.dumps({"type": "text", "stream": "stdout", "text": "\0" * 50_000})
    lines = CallLines("a", 50_000, 0)
    lines._long_left -= MAX_LONG_BYTES
    assert lines.take(text) is not None
    with pytest.raises(KernelFailed, match="more data than a call may display"):
        lines.take(json.dumps({"type": "result", "data": {"text/plain": "x" * 200_000}}))
