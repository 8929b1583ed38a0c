"""Upload and download through a sandbox."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import threading

import pytest

import sandkasten


def test_a_tree_survives_upload_and_download(box, tmp_path):
    source = tmp_path / "in"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/data.bin").write_bytes(bytes(range(256)) * 500)
    (source / "empty").mkdir()
    (source / "run.sh").write_text("echo hi\n")
    (source / "run.sh").chmod(0o755)
    (source / "ref").symlink_to("run.sh")
    moved = box.upload(source, "project")
    assert (moved.files, moved.skipped) == (2, ())
    assert moved.path == "/workspace/project"
    box.download("project", tmp_path / "out")
    assert (tmp_path / "out/deep/er/data.bin").read_bytes() == bytes(range(256)) * 500
    assert (tmp_path / "out/empty").is_dir()
    assert (tmp_path / "out/ref").readlink().name == "run.sh"
    assert (tmp_path / "out/run.sh").stat().st_mode & 0o111


def test_a_file_is_copied_to_a_name_or_into_a_directory(box, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    seen: list[int] = []
    assert box.upload(tmp_path / "a.txt", "b.txt", progress=seen.append).path == "/workspace/b.txt"
    assert sum(seen) == 1
    assert box.download("b.txt", tmp_path / "named").path == str(tmp_path / "named")
    (tmp_path / "dir").mkdir()
    assert box.download("b.txt", tmp_path / "dir").path == str(tmp_path / "dir/b.txt")
    assert (tmp_path / "dir/b.txt").read_text() == "x"


def test_a_missing_local_file_is_named(box, tmp_path):
    with pytest.raises(sandkasten.FileTrouble, match="nothing-here"):
        box.upload(tmp_path / "nothing-here", "x")


def test_a_missing_remote_file_leaves_nothing_locally(box, tmp_path):
    with pytest.raises(sandkasten.FileNotFound):
        box.download("nothing", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_download_over_the_limit_is_refused_and_leaves_nothing(box, tmp_path):
    box.write("big", b"x" * 5000)
    with pytest.raises(sandkasten.PayloadTooLarge):
        box.download("big", tmp_path / "x", max_bytes=4999)
    assert list(tmp_path.iterdir()) == []
    assert box.download("big", tmp_path / "x", max_bytes=5000).bytes == 5000


def test_an_unwritable_destination_is_a_local_error(box, tmp_path):
    box.write("a", b"x")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(sandkasten.FileTrouble, match="writing"):
        box.download("a", tmp_path / "file" / "below")


def test_a_download_onto_a_link_or_a_fifo_keeps_it(box, tmp_path):
    box.write("a", b"new")
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    box.download("a", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()), daemon=True)
    reader.start()
    box.download("a", fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    reader.join()
    assert received == [b"new"]


@pytest.mark.slow_loop
def test_fifty_megabytes_are_transferred(box):
    data = bytearray(50_000_000)
    data[::4096] = b"x" * len(data[::4096])
    box.write("large", memoryview(data))
    assert box.stat("large").size == len(data)
    assert box.read("large") == data


def test_a_tar_is_sent_and_fetched_as_a_stream(box):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("a.txt", "deep/b.txt"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    for number, data in enumerate(
        (packed.getvalue(), io.BytesIO(packed.getvalue()), iter([packed.getvalue()]))
    ):
        assert box.upload_tar(data, f"in{number}").entries >= 2
        assert box.read(f"in{number}/deep/b.txt") == b"deep/b.txt"
    found = io.BytesIO()
    assert box.download_tar("in0", found) == len(found.getvalue())
    found.seek(0)
    with tarfile.open(fileobj=found) as tar:
        assert {one.name.strip("./") for one in tar if one.isreg()} == {"a.txt", "deep/b.txt"}
    with pytest.raises(sandkasten.PayloadTooLarge):
        box.download_tar("in0", io.BytesIO(), max_bytes=100)
    with pytest.raises(sandkasten.FileNotFound):
        box.download_tar("nothing", io.BytesIO())
    with pytest.raises(sandkasten.InvalidRequest, match="does not yield bytes"):
        box.upload_tar(iter(["text"]), "x")


def test_a_download_keeps_modification_times(box, tmp_path):
    box.exec("mkdir -p tree; echo x > tree/old; touch -d @1000000000 tree/old", check=True)
    box.download("tree/old", tmp_path / "alone")
    box.download("tree", tmp_path / "tree")
    for path in (tmp_path / "alone", tmp_path / "tree/old"):
        assert int(path.stat().st_mtime) == 1_000_000_000


def test_excluded_parts_of_a_tree_stay_in_the_sandbox(box, tmp_path):
    for name in (
        "a.py",
        "a.pyc",
        "cache/x",
        "src/cache/y",
        "src/build/z",
        "src/b[1].py",
        "x/src/b",
    ):
        box.write(f"tree/{name}", name)
    patterns = ["*.pyc", "cache", "/src/build/", "/x/s*/b"]
    moved = box.download("tree", tmp_path / "got", exclude=patterns)
    found = {
        one.relative_to(tmp_path / "got").as_posix()
        for one in (tmp_path / "got").rglob("*")
        if one.is_file()
    }
    assert (found, moved.files, moved.skipped) == ({"a.py", "src/b[1].py"}, 2, ())
    kept = io.BytesIO(b"before")
    kept.seek(6)
    size = box.download_tar("tree", kept, exclude=patterns)
    assert size == len(kept.getvalue()) - 6
    kept.seek(6)
    with tarfile.open(fileobj=kept) as tar:
        assert {one.name.removeprefix("./") for one in tar if one.isreg()} == found
        content = tar.extractfile("./a.py")
        assert content is not None
        assert content.read() == b"a.py"
    assert box.download("tree", tmp_path / "all").files == 7


@pytest.mark.parametrize("exclude", ["*.pyc", [""], ["/"], ["../x"]])
def test_an_invalid_exclusion_is_refused(box, tmp_path, exclude):
    box.write("tree/x", "x")
    with pytest.raises(sandkasten.InvalidRequest) as refused:
        box.download("tree", tmp_path / "got", exclude=exclude)
    assert refused.value.hint
