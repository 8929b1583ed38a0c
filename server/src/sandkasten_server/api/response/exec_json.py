"""Commands and their output as JSON; on the path of every exec.

Bytes that are not UTF-8 are sent twice: as text with replacement characters, and as base64.
"""

from __future__ import annotations

import asyncio
import codecs
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from sandkasten.model.json_codec import to_json
from sandkasten_server.api.response.json_response import LARGE

if TYPE_CHECKING:
    from sandkasten.model.commands.exec_values import Chunk, ExecResult
    from sandkasten.ports import Clock

_decoder = codecs.getincrementaldecoder("utf-8")


async def result_fields(result: ExecResult) -> dict[str, Any]:
    """Return a result as JSON; one with much output is decoded in a thread, in short steps."""
    if len(result.stdout) + len(result.stderr) <= LARGE:
        return to_json(result)
    return await asyncio.to_thread(to_json, result)


def chunk_fields(chunk: Chunk) -> dict[str, Any]:
    fields: dict[str, Any] = {"seq": chunk.seq, "stream": chunk.source}
    try:
        fields["text"] = chunk.data.decode()
    except UnicodeDecodeError:
        fields["data_b64"] = b64encode(chunk.data).decode()
    if chunk.gap_bytes:
        fields["gap_bytes"] = chunk.gap_bytes
    return fields


class ChunkPrinter:
    """Formats the chunks of one command. `chunk` is text in which no character is split."""

    def __init__(self, clock: Clock, exec_id: str | None) -> None:
        self._clock = clock
        self._exec_id = exec_id
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def fields(self, chunk: Chunk) -> dict[str, Any]:
        fields = chunk_fields(chunk)
        decoder = self._decoders.get(chunk.source)
        if decoder is None:
            decoder = self._decoders[chunk.source] = _decoder("replace")
        fields["chunk"] = decoder.decode(chunk.data)
        fields["timestamp"] = int(self._clock.now() * 1000)
        fields["exec_id"] = chunk.exec_id or self._exec_id
        return fields
