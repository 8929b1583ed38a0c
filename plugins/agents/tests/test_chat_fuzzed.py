"""Random endpoint output: it becomes an answer or an error, and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sandkasten_agents.chat.chat_wire import EndpointError, EventParser, ReplyAssembly, Unreadable

pytestmark = pytest.mark.promise("P66")

ROUNDS, LONG_ROUNDS = 4000, 400_000
# Fields of an answer and their correct types.
_SHAPE = {
    "choices": ["choice"],
    "usage": {"prompt_tokens": 0, "completion_tokens": 0},
    "choice": {"index": 0, "delta": "said", "message": "said", "finish_reason": ""},
    "said": {"content": "", "refusal": "", "tool_calls": ["call"]},
    "call": {"index": 0, "id": "", "function": {"name": "", "arguments": ""}},
}
_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    7,
    63,
    64,
    2**70,
    1.5,
    1e999,
    "",
    "x",
    "\ud83d",
    "\udc4b",
    [],
    [[]],
    {},
    {"a": []},
)


def _made(dice: random.Random, shape: Any) -> Any:
    if dice.random() < 0.06:
        return dice.choice(_ODD)
    match shape:
        case str() if shape in _SHAPE:
            return _made(dice, _SHAPE[shape])
        case str():
            return dice.choice(("", "a", "{}", "ü👋", "\ud83d", "\udc4b"))
        case dict():
            return {name: _made(dice, one) for name, one in shape.items() if dice.random() < 0.8}
        case list():
            return [_made(dice, shape[0]) for _ in range(dice.randrange(3))]
    return dice.choice((0, 0, 0, 1, 2))


def test_pieces_of_any_shape_give_an_answer_or_an_error(full_size):
    dice = random.Random(6)
    came = {"answers": 0, "refused": 0}
    for _ in range(LONG_ROUNDS if full_size else ROUNDS):
        found = ReplyAssembly()
        add = found.add_whole if dice.random() < 0.3 else found.add_piece
        try:
            for _ in range(dice.randrange(4)):
                add(json.dumps(_made(dice, {**_SHAPE, "error": None})).encode())
        except (Unreadable, EndpointError):
            came["refused"] += 1
            continue
        reply = found.reply()
        came["answers"] += 1
        # The result can be stored and sent on.
        calls = [part for call in reply.tool_calls for part in (call.id, call.name, call.arguments)]
        assert "".join((reply.text, reply.refusal, *calls)).encode()[:0] == b""
        assert min(reply.prompt_tokens, reply.completion_tokens) >= 0
    assert min(came.values()) > 100, came


def test_bytes_split_anywhere_give_the_same_events():
    dice = random.Random(7)
    words = (b"data: ", b"data:", b"\n", b"\r\n", b"\n\n", b"{}", b":", b"\xc3", b"\xbc", b"id: 7")
    for _ in range(2000):
        text = b"".join(dice.choice(words) for _ in range(dice.randrange(20)))
        cuts = sorted(dice.randrange(len(text) + 1) for _ in range(4))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert _events(pieces) == _events([text]), text


def _events(pieces: list[bytes]) -> list[bytes]:
    reader = EventParser()
    return [*(data for piece in pieces for data in reader.feed(piece)), *reader.end()]
