"""Stored files in Python: in the data directory, and in a daemon."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sandkasten import (
    AsyncStoredFiles,
    Conflict,
    FileExists,
    FileNotFound,
    ImageNotFound,
    Images,
    InvalidRequest,
    Sandbox,
    StoredFiles,
)
from tests.client.http.served import served


@pytest.fixture(params=["here", "at a daemon"])
def place_options(request, tmp_path):
    with ExitStack() as stack:
        if request.param == "here":
            yield {"data_dir": tmp_path / "data"}
        else:
            yield stack.enter_context(served(tmp_path / "data")).where


def test_a_file_is_stored_listed_fetched_and_deleted(place_options, tmp_path):
    files = StoredFiles(**place_options)
    (tmp_path / "large").write_bytes(b"y" * 700_000)
    kept = files.put(tmp_path / "large", metadata={"by": "ü"}, ttl_seconds=60)
    assert (kept.size_bytes, kept.metadata, kept.expires_at is None) == (
        700_000,
        {"by": "ü"},
        False,
    )
    files.put(b"hi", key="runs/1/hi there.txt", content_type="text/plain")
    with pytest.raises(Conflict):
        files.put(b"other", key="runs/1/hi there.txt")
    assert files.get("runs/1/hi there.txt") == b"hi"
    assert files.get(kept.key) == b"y" * 700_000
    assert files.info("runs/1/hi there.txt").content_type == "text/plain"
    assert [one.key for one in files.list()] == [kept.key, "runs/1/hi there.txt"]
    files.delete(kept.key)
    for attempt in (files.get, files.info, files.delete):
        with pytest.raises(FileNotFound):
            attempt(kept.key)
    with pytest.raises(InvalidRequest):
        files.put("a text")  # type: ignore[arg-type]


@pytest.mark.promise("P19")
def test_a_file_is_staged_into_a_sandbox_and_published_out_of_it(place_options):
    files = StoredFiles(**place_options)
    files.put(b"a,b\n", key="in.csv")
    there = place_options if "url" in place_options else {**place_options, "backend": "unisolated"}
    with Sandbox(**there) as box:
        staged = box.stage("in.csv", "data/in.csv")
        assert (staged.path, staged.size_bytes) == ("/workspace/data/in.csv", 4)
        assert box.read("data/in.csv") == b"a,b\n"
        with pytest.raises(FileExists):
            box.stage("in.csv", "data/in.csv", overwrite=False)
        with pytest.raises(FileNotFound):
            box.stage("nope", "x")
        kept = box.publish("data/in.csv", "out.csv", ttl_seconds=60)
        assert (kept.key, kept.content_type) == ("out.csv", "text/csv")
        assert kept.checksum == staged.checksum
        unnamed = box.publish("data/in.csv")
        with pytest.raises(FileNotFound):
            box.publish("nope")
    assert files.get("out.csv") == files.get(unnamed.key) == b"a,b\n"


async def test_the_asynchronous_client_does_the_same(place_options):
    files = AsyncStoredFiles(**place_options)
    await files.put(b"", key="empty")
    assert await files.get("empty") == b""
    assert [one.key for one in await files.list("em")] == ["empty"]


@pytest.mark.promise("P35")
def test_the_sdk_uses_the_daemon_of_the_data_directory(tmp_path, monkeypatch):
    data = tmp_path / "data"
    monkeypatch.setenv("SANDKASTEN_BACKEND", "unisolated")
    with served(data):
        StoredFiles(data_dir=data).put(b"x", key="k")
        with Sandbox(data_dir=data) as box:
            box.stage("k", "k")
            assert box.read("k") == b"x"
            # An unisolated sandbox lives in the process that created it.
            assert [one.id for one in Sandbox.list(data_dir=data)] == [box.id]
            assert Sandbox.list(data_dir=data, url="embedded") == []
            monkeypatch.setenv("SANDKASTEN_URL", "embedded")
            assert Sandbox.list(data_dir=data) == []
            with pytest.raises(Conflict, match="another daemon"):
                StoredFiles(data_dir=data).list()
    # Without the daemon the same call works in this process.
    assert [one.key for one in StoredFiles(data_dir=data).list()] == ["k"]


def test_images_of_this_machine_are_built_and_exported_beside_a_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_BACKEND", "unisolated")
    with served(tmp_path / "data"):
        images = Images(data_dir=tmp_path / "data")
        assert images.list() == []
        with pytest.raises(ImageNotFound):
            images.export("nothing", tmp_path / "x.tar")
