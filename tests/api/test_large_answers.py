"""Large JSON answers are encoded in pieces, and a tenant gets a few of them at a time."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from sandkasten_server.api.request.large_bodies import ANSWERS_AT_ONCE, LargeBodies
from sandkasten_server.api.response.json_response import (
    LARGE,
    as_base64,
    as_json,
    is_large,
    json_pieces,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P40")

VALUES = {
    "small": {"a": 1, "b": [None, True, 1.5, "é\u2028\x01"], "c": {}, "d": []},
    "control characters": {"text": "\x01" * 300_000},
    "wide characters": {"text": "é\U0001f600" * 200_000, "é" * 60_000: 1},
    "many": {"rows": [{"n": n, "text": "x" * (n % 100)} for n in range(20_000)]},
    "nested": {"a": [{"b": ("x" * 100_000, {"c": "y" * 100_000})}]},
    "a list": ["x" * 300_000, [], {}],
    "NaN": {"text": "x" * 300_000, "n": float("nan")},
}


@pytest.mark.parametrize("what", VALUES)
def test_pieces_are_the_same_json_as_the_whole(what):
    assert b"".join(json_pieces(VALUES[what])) == as_json(VALUES[what])


def test_bytes_are_encoded_when_they_are_sent():
    data = bytes(range(256)) * 1200
    [field] = json.loads(b"".join(json_pieces({"content": as_base64(data)}))).values()
    assert base64.b64decode(field, validate=True) == data
    assert as_base64(b"small") == "c21hbGw="


def test_surrogates_are_marked_in_every_piece():
    text = "x" * 300_000 + "\udcff"
    assert json.loads(b"".join(json_pieces({"text": text}))) == {"text": "x" * 300_000 + "\ufffd"}


def test_no_piece_is_much_longer_than_what_it_encodes():
    assert max(map(len, json_pieces({"text": "\x01" * 3_000_000}))) < LARGE * 2


def test_only_what_takes_long_is_large():
    assert not is_large({"text": "x" * 1000, "rows": [{"n": 1}] * 100})
    assert is_large({"text": "x" * LARGE})
    assert is_large({"rows": [{"n": 1}] * LARGE})


async def test_a_tenant_waits_for_its_own_large_answers_only():
    bodies, begun, go = LargeBodies(), [], asyncio.Event()

    async def hold(tenant):
        async with bodies.answering(tenant):
            begun.append(tenant)
            await go.wait()

    tasks = [asyncio.create_task(hold("a")) for _ in range(ANSWERS_AT_ONCE + 2)]
    tasks.append(asyncio.create_task(hold("b")))
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == ["a"] * ANSWERS_AT_ONCE + ["b"]
    go.set()
    await asyncio.gather(*tasks)
    assert len(begun) == ANSWERS_AT_ONCE + 3


async def test_a_client_that_reads_nothing_keeps_no_other_tenant_waiting(daemon):
    """The turn is held until the answer was read, or its client has left."""
    the_id = await daemon.session()
    box = f"/v1/sessions/{the_id}"
    await daemon.ask("POST", f"{box}/exec", {"cmd": "head -c 9000000 /dev/zero | tr '\\0' a > f"})
    stuck = []
    for _ in range(ANSWERS_AT_ONCE):
        _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(f"GET {box}/fs/read?path=f HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        stuck.append(writer)
    waiting = asyncio.create_task(daemon.ask("GET", f"{box}/fs/read?path=f"))
    small = await daemon.ask("GET", f"{box}/fs/read?path=f&max_bytes=100")
    assert small.json["content"] == "a" * 100
    for writer in stuck:
        writer.transport.abort()
    async with asyncio.timeout(PATIENCE_S):
        answer = await waiting
    assert len(answer.json["content"]) == 9_000_000
