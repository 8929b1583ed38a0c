"""Small files: bounded, and None for what is not a JSON object."""

from __future__ import annotations

import pytest

from sandkasten.disk import small_file
from sandkasten.disk.small_file import read_json_object, read_small_file


def test_file_is_read_up_to_one_byte_beyond_its_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_small_file(path) == b"0123456789"
    assert read_small_file(path, max_bytes=3) == b"0123"


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_content_that_is_not_an_object_is_none(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    assert read_json_object(path) is None


def test_missing_or_too_large_file_is_none(tmp_path, monkeypatch):
    path = tmp_path / "file"
    assert read_small_file(path) is None
    assert read_json_object(path) is None
    path.write_bytes(b'{"a": 1}')
    assert read_json_object(path) == {"a": 1}
    assert read_json_object(path / "below") is None
    monkeypatch.setattr(small_file, "MAX_SMALL_BYTES", 3)
    assert read_json_object(path) is None
