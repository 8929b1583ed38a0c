"""Trees in and out as tar: complete, and never unpacked outside."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import (
    FileNotFound,
    InvalidRequest,
    PayloadTooLarge,
    PolicyDenied,
    SandkastenError,
)
from sandkasten_contract.shared_sandbox_cases import each
from sandkasten_runtime.wire.call import Data

if TYPE_CHECKING:
    from sandkasten_contract.box import Box


def packed(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    made.mtime = 1_700_000_000
    for field, value in fields.items():
        setattr(made, field, value)
    return made


async def unpacked(box: Box, path: str) -> dict[str, tuple[bytes, int, bytes, str]]:
    """Return the content of `fs.tar_out`: name → type, mode, content, link."""
    data = b""
    async with box.channel.stream("fs.tar_out", {"path": path}) as call:
        async for item in call:
            if isinstance(item, Data):
                data += item.data
        result = await call.result()
    found: dict[str, tuple[bytes, int, bytes, str]] = {}
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        for one in archive:
            body = archive.extractfile(one)
            content = body.read() if body is not None else b""
            found[one.name] = (one.type, one.mode, content, one.linkname)
    assert result["entries"] == len(found)
    return found


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
async def test_a_tree_survives_the_round_trip(box: Box, form: int):
    archive = packed(
        (member("dir", tarfile.DIRTYPE, mode=0o750), b""),
        (member("dir/file", mode=0o640), b"content"),
        (member("dir/script", mode=0o755), b"#!/bin/sh\n"),
        (member("dir/link", tarfile.SYMTYPE, linkname="file"), b""),
        (member("empty"), b""),
        form=form,
    )
    answer = await box.ask("fs.tar_in", path="in", data=archive)
    assert answer == {"entries": 5, "bytes": 17}
    assert (await box.stat("in/dir")).mode == 0o750
    assert (await box.stat("in/dir/file")).mtime_unix == 1_700_000_000
    assert (await box.run("cat in/dir/link")).stdout == b"content"
    found = {name.removeprefix("./"): what for name, what in (await unpacked(box, "in")).items()}
    assert found["dir/file"] == (tarfile.REGTYPE, 0o640, b"content", "")
    assert found["dir/script"][1] == 0o755
    assert found["dir/link"][0] == tarfile.SYMTYPE
    assert found["dir/link"][3] == "file"
    assert found["dir"][:2] == (tarfile.DIRTYPE, 0o750)
    assert found["empty"][2] == b""


async def test_names_of_any_length_and_bytes_survive(box: Box):
    names = [
        "d/" + "long" * 60,
        "/".join(["deep"] * 60) + "/file",
        "ünïcödé",
        "new\nline",
        b"raw\xff".decode("utf-8", "surrogateescape"),
    ]
    archive = packed(*((member(name), b"x") for name in names))
    await box.ask("fs.tar_in", path="in", data=archive)
    for name in names:
        assert await box.read(f"in/{name}") == b"x"
    found = {name.removeprefix("./") for name in await unpacked(box, "in")}
    assert set(names) <= found


async def test_gnu_long_names_are_understood(box: Box):
    name = "g" * 120 + "/" + "h" * 120
    archive = packed((member(name), b"x"), form=tarfile.GNU_FORMAT)
    await box.ask("fs.tar_in", path=".", data=archive)
    assert await box.read(name) == b"x"


async def test_one_file_is_packed_under_its_own_name(box: Box):
    await box.write("d/one", b"alone")
    found = await unpacked(box, "d/one")
    assert list(found) == ["one"]
    assert found["one"][2] == b"alone"


async def test_a_large_tree_streams_both_ways(box: Box):
    data = bytes(range(256)) * 12_000
    archive = packed(*((member(f"f{number}"), data) for number in range(3)))
    answer = await box.ask("fs.tar_in", path="in", data=archive)
    assert answer == {"entries": 3, "bytes": 3 * len(data)}
    found = {name.removeprefix("./"): what[2] for name, what in (await unpacked(box, "in")).items()}
    assert all(found[f"f{number}"] == data for number in range(3))


@each(
    "bad",
    [
        member("/absolute"),
        member("../outside"),
        member("a/../../outside"),
        member("link", tarfile.SYMTYPE, linkname="/etc"),
        member("link", tarfile.SYMTYPE, linkname="../../outside"),
        member("hard", tarfile.LNKTYPE, linkname="../outside"),
        member("device", tarfile.CHRTYPE),
        member("block", tarfile.BLKTYPE),
    ],
    ids=lambda one: f"{one.name}-{one.type!r}-{one.linkname}",
)
async def test_archive_members_that_lead_outside_are_refused(box: Box, bad: tarfile.TarInfo):
    archive = packed((member("before"), b"x"), (bad, b""), (member("after"), b"x"))
    with pytest.raises(PolicyDenied):
        await box.ask("fs.tar_in", path="in/here", data=archive)
    names = {entry.name for entry in (await box.list(recursive=True)).entries}
    assert names <= {"in", "here", "before"}


async def test_an_existing_link_does_not_lead_outside(box: Box):
    await box.run("mkdir in out; ln -s ../out in/door")
    archive = packed((member("door/f"), b"x"))
    with pytest.raises(SandkastenError):
        await box.ask("fs.tar_in", path="in", data=archive)
    assert (await box.list("out")).entries == ()


async def test_set_id_bits_are_dropped(box: Box):
    archive = packed((member("suid", mode=0o6755), b"x"))
    await box.ask("fs.tar_in", path=".", data=archive)
    assert (await box.stat("suid")).mode == 0o755


async def test_archive_bombs_are_refused_by_count_and_by_size(box: Box):
    archive = packed(*((member(f"f{number}"), b"12345") for number in range(10)))
    with pytest.raises(PayloadTooLarge):
        await box.ask("fs.tar_in", path="a", max_entries=9, data=archive)
    with pytest.raises(PayloadTooLarge):
        await box.ask("fs.tar_in", path="b", max_bytes=49, data=archive)
    answer = await box.ask("fs.tar_in", path="c", max_entries=10, max_bytes=50, data=archive)
    assert answer == {"entries": 10, "bytes": 50}


@each("data", [b"not a tar archive" * 100, b"x" * 512])
async def test_input_that_is_not_an_archive_is_invalid(box: Box, data: bytes):
    with pytest.raises(InvalidRequest):
        await box.ask("fs.tar_in", path="in", data=data)


async def test_an_archive_cut_short_is_invalid(box: Box):
    archive = packed((member("f"), b"x" * 5000))
    with pytest.raises(InvalidRequest):
        await box.ask("fs.tar_in", path="in", data=archive[:2000])


async def test_packing_a_missing_path_is_file_not_found(box: Box):
    with pytest.raises(FileNotFound):
        await box.ask("fs.tar_out", path="nope")


async def test_an_archive_with_nothing_in_it_unpacks_to_nothing(box: Box):
    assert await box.ask("fs.tar_in", path="in", data=packed()) == {"entries": 0, "bytes": 0}


async def test_the_callers_path_rules_apply_to_archives(box: Box):
    await box.mkdir("in")
    archive = packed((member("f"), b"x"))
    with pytest.raises(PolicyDenied):
        await box.ask("fs.tar_in", path="out", within=[box.path("in")], data=archive)
    with pytest.raises(PolicyDenied):
        await box.ask("fs.tar_out", path="in", deny=[box.path("in")])
    assert (await box.ask("fs.tar_in", path="in", within=[box.path("in")], data=archive))[
        "entries"
    ] == 1
