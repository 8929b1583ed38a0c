"""Unpacking downloaded trees: a hostile archive cannot write outside."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
from typing import TYPE_CHECKING

import pytest

from sandkasten.client.transfer.tar_archive import Tally, pack, stays_inside, unpack
from sandkasten.disk.tree_removal import remove_tree
from sandkasten.errors import FileTrouble, PayloadTooLarge, ProtocolViolation
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

LARGE = 1 << 30


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return member


def _archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _unpack(data: bytes, destination: Path, max_bytes: int = LARGE) -> Tally:
    async def chunks():
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    tally = Tally()
    asyncio.run(unpack(chunks(), destination, tally, max_bytes=max_bytes))
    return tally


def _names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_an_ordinary_tree_is_unpacked(tmp_path):
    data = _archive(
        (_member("./", tarfile.DIRTYPE, mode=0o755), b""),
        (_member("./d", tarfile.DIRTYPE, mode=0o755), b""),
        (_member("./d/run", mode=0o755), b"#!/bin/sh\n"),
        (_member("./link", tarfile.SYMTYPE, "d/run"), b""),
        (_member("./d/up", tarfile.SYMTYPE, "../link"), b""),
    )
    tally = _unpack(data, tmp_path / "out")
    assert _names(tmp_path / "out") == ["d", "d/run", "d/up", "link"]
    assert (tmp_path / "out/d/up").read_bytes() == b"#!/bin/sh\n"
    assert os.access(tmp_path / "out/d/run", os.X_OK)
    assert (tally.files, tally.skipped) == (1, [])


@pytest.mark.parametrize("name", ["/etc/owned", "../owned", "a/../../owned", "a/.."])
def test_names_that_lead_outside_are_left_out(tmp_path, name):
    tally = _unpack(_archive((_member(name), b"x")), tmp_path / "out")
    assert tally.skipped == [f"{name}: a name that leads outside"]
    assert _names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "link", ["/etc/passwd", "..", "../../etc", "d/../../..", "x/..", ""], ids=repr
)
def test_links_that_lead_outside_are_left_out(tmp_path, link):
    tally = _unpack(_archive((_member("evil", tarfile.SYMTYPE, link), b"")), tmp_path / "out")
    assert tally.skipped == ["evil: a link that leads outside"]
    assert _names(tmp_path) == ["out"]


def test_nothing_is_written_through_a_link_of_the_archive(tmp_path):
    data = _archive(
        (_member("real", tarfile.DIRTYPE, mode=0o755), b""),
        (_member("door", tarfile.SYMTYPE, "real"), b""),
        (_member("door/planted"), b"x"),
    )
    with pytest.raises(FileTrouble):
        _unpack(data, tmp_path / "out")
    assert not (tmp_path / "out/real/planted").exists()


def test_nothing_is_written_through_an_existing_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    destination = tmp_path / "out"
    destination.mkdir()
    (destination / "door").symlink_to(outside)
    (destination / "file").symlink_to(outside / "planted")
    with pytest.raises(FileTrouble):
        _unpack(_archive((_member("door/planted"), b"x")), destination)
    _unpack(_archive((_member("file"), b"x")), destination)
    assert list(outside.iterdir()) == []
    assert not (destination / "file").is_symlink()


@pytest.mark.parametrize(
    "kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE]
)
def test_devices_pipes_and_hard_links_are_left_out(tmp_path, kind):
    tally = _unpack(_archive((_member("odd", kind, "/etc/passwd"), b"")), tmp_path / "out")
    assert tally.skipped == ["odd: neither a file, a directory nor a link"]
    assert _names(tmp_path) == ["out"]


def test_set_id_bits_are_not_unpacked(tmp_path):
    _unpack(_archive((_member("su", mode=0o6755), b"x")), tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out/su").stat().st_mode) == 0o755


def test_an_archive_bomb_stops_at_the_limit(tmp_path):
    data = _archive((_member("a"), b"x" * 600), (_member("b"), b"x" * 600))
    with pytest.raises(PayloadTooLarge):
        _unpack(data, tmp_path / "out", max_bytes=1000)


def test_a_header_that_claims_a_terabyte_is_refused_before_a_byte_is_written(tmp_path):
    huge = _member("sparse")
    huge.size = 1 << 40
    with pytest.raises(PayloadTooLarge):
        _unpack(huge.tobuf(tarfile.PAX_FORMAT), tmp_path / "out")
    assert _names(tmp_path / "out") == []


@pytest.mark.parametrize("data", [b"not a tar at all" * 100, b"\xff" * 2048])
def test_an_invalid_archive_is_distinguished_from_local_errors(tmp_path, data):
    with pytest.raises(ProtocolViolation):
        _unpack(data, tmp_path / "out")


def test_a_truncated_archive_is_an_error(tmp_path):
    whole = _archive((_member("a"), b"x" * 100_000))
    with pytest.raises((ProtocolViolation, FileTrouble)):
        _unpack(whole[:50_000], tmp_path / "out")


def test_a_read_only_directory_can_still_be_filled(tmp_path):
    data = _archive((_member("d", tarfile.DIRTYPE, mode=0o555), b""), (_member("d/f"), b"x"))
    _unpack(data, tmp_path / "out")
    assert (tmp_path / "out/d/f").read_bytes() == b"x"


def _deep(levels: int) -> bytes:
    """An archive as the runner writes it: each directory before its contents, then the way back."""
    down = ["/".join(["d"] * depth) for depth in range(1, levels + 1)]
    return _archive(
        *((_member(f"./{name}/", tarfile.DIRTYPE, mode=0o750), b"") for name in down),
        *((_member(f"./{name}/file"), b"x") for name in reversed(down)),
        (_member(f"./{down[-1]}/link", tarfile.SYMTYPE, "file"), b""),
    )


@pytest.mark.slow
def test_a_deep_tree_is_unpacked_with_a_few_calls_for_each_member(tmp_path, monkeypatch):
    levels = 1000
    opened: list[object] = []
    open_at = os.open

    def counted(path, flags, mode=0o777, *, dir_fd=None):
        if dir_fd is not None:
            opened.append(path)
        return open_at(path, flags, mode, dir_fd=dir_fd)

    data = _deep(levels)
    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "open", counted)
    monkeypatch.setattr(os, "supports_dir_fd", {*os.supports_dir_fd, counted})
    tally = _unpack(data, tmp_path / "out")
    monkeypatch.undo()
    assert (tally.files, tally.skipped) == (levels, [])
    # Down, up, and down again for the link: one call a level each, and one for each file.
    assert len(opened) <= 4 * levels + 10
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # a collector may have closed others
    at = os.open(tmp_path / "out", os.O_RDONLY)
    for _ in range(levels):
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    mode = stat.S_IMODE(os.fstat(at).st_mode)
    assert (sorted(os.listdir(at)), mode) == (["file", "link"], 0o750)
    os.close(at)
    remove_tree(tmp_path / "out")


def test_a_directory_that_was_moved_away_meanwhile_is_not_left_upwards(tmp_path):
    """The way up is checked: `..` of a moved directory leads to another place."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()

    data = _archive((_member("a/b/one"), b"1" * 50_000), (_member("a/two"), b"2"))

    async def chunks():
        yield data[:20_480]
        async with asyncio.timeout(PATIENCE_S):
            while not (out / "a/b/one").exists():  # noqa: ASYNC110  (another thread creates it)
                await asyncio.sleep(0.01)
        (out / "a/b").rename(elsewhere / "b")
        yield data[20_480:]

    asyncio.run(unpack(chunks(), out, Tally(), max_bytes=LARGE))
    assert _names(elsewhere) == ["b", "b/one"]
    assert (out / "a/two").read_bytes() == b"2"


@pytest.mark.parametrize(
    ("link", "target", "inside"),
    [
        ("a", "b", True),
        ("d/a", "../b", True),
        ("d/a", "./../b", True),
        ("a", "../b", False),
        ("d/a", "../../b", False),
        ("a", "b/../../c", False),
        ("a", "/b", False),
    ],
)
def test_the_target_of_a_link_is_judged_by_its_text(link, target, inside):
    assert stays_inside(link, target) is inside


def test_packing_includes_files_directories_and_inner_links_and_names_the_rest(tmp_path):
    source = tmp_path / "in"
    (source / "d").mkdir(parents=True)
    (source / "d/f").write_bytes(b"1" * 300_000)
    (source / "same").hardlink_to(source / "d/f")
    (source / "inner").symlink_to("d/f")
    (source / "outer").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    tally = Tally()

    async def packed() -> bytes:
        return b"".join([chunk async for chunk in pack(source, tally)])

    with tarfile.open(fileobj=io.BytesIO(asyncio.run(packed()))) as tar:
        kinds = {member.name: member.type for member in tar}
    assert kinds == {
        "d": tarfile.DIRTYPE,
        "d/f": tarfile.REGTYPE,
        "same": tarfile.REGTYPE,
        "inner": tarfile.SYMTYPE,
    }
    assert sorted(tally.skipped) == [
        "outer: a link that leads outside",
        "pipe: neither a file, a directory nor a link",
    ]
    assert (tally.files, tally.bytes) == (2, 600_000)


def test_cancelled_packing_ends_its_thread(tmp_path):
    (tmp_path / "f").write_bytes(b"1" * 5_000_000)

    async def begin_and_leave() -> None:
        stream = pack(tmp_path, Tally())
        await anext(stream)
        await stream.aclose()

    asyncio.run(asyncio.wait_for(begin_and_leave(), PATIENCE_S))
