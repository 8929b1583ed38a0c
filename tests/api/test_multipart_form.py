"""Forms that are hostile: how many parts one may have, and that it leaves turns to others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import InvalidRequest
from sandkasten_server.api.files import multipart_form
from sandkasten_server.api.files.multipart_form import Form

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PART = b'--edge\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n'


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield PART * 10
    yield b"--edge--\r\n"


async def parts_of(count: int) -> int:
    return len([part async for part in Form("multipart/form-data; boundary=edge", pieces(count))])


async def test_a_form_with_too_many_parts_is_refused(monkeypatch):
    monkeypatch.setattr(multipart_form, "MAX_PARTS", 100)
    assert await parts_of(10) == 100
    with pytest.raises(InvalidRequest, match="more than 100 parts"):
        await parts_of(11)


async def test_a_form_that_is_here_already_leaves_turns_to_others():
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await parts_of(50) == 500
    counting.cancel()
    assert turns >= 50
