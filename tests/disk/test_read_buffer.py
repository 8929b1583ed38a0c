"""Buffers that become bytes without a copy are bytes in every respect."""

from __future__ import annotations

import gc
import os
import pickle
import sys

import pytest

from sandkasten.disk.read_buffer import LARGE, ReadBuffer
from sandkasten.model.files.file_entries import FileBytes


@pytest.mark.parametrize("kind", [bytes, FileBytes])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 100_000, LARGE + 3])
def test_filled_buffer_is_what_was_written(kind, size):
    content = os.urandom(size)
    buffer = ReadBuffer(size, kind)
    assert len(buffer.view) == size
    buffer.view[:] = content
    data = buffer.taken(size)
    assert isinstance(data, bytes)
    assert data == content
    # It can be looked up, split and joined as a copy of it can.
    assert {content: 1}[data] == 1
    assert b"".join([data, b"x"]) == content + b"x"
    assert data + b"" == content
    assert data[-3:] == content[-3:]


def test_part_of_a_buffer_is_plain_bytes():
    buffer = ReadBuffer(1000, FileBytes)
    buffer.view[:3] = b"abc"
    part = buffer.taken(3)
    assert type(part) is bytes
    assert part == b"abc"


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="copies elsewhere")
def test_content_becomes_the_answer_of_a_read_without_a_copy():
    buffer = ReadBuffer(100_000, FileBytes)
    buffer.view[:] = bytes(100_000)
    data = buffer.taken(100_000)
    read = FileBytes(data, "/workspace/f", 200_000, truncated=True)
    assert read is data
    assert (read.path, read.size, read.truncated) == ("/workspace/f", 200_000, True)
    other = FileBytes(read, "/workspace/other", 1, truncated=False)
    assert (read.path, other.path, other) == ("/workspace/f", "/workspace/other", read)
    again = pickle.loads(pickle.dumps(read))
    assert (again, again.path, type(again)) == (read, read.path, FileBytes)
    del buffer, data, read
    gc.collect()
    assert other == bytes(100_000)
