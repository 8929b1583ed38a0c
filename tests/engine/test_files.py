"""File operations: path rules, the operator's rules, ranges, streams, archives, watches."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import tarfile
from contextlib import suppress

import pytest

from sandkasten.errors import (
    ConnectionRefused,
    DirectoryNotEmpty,
    FileExists,
    FileNotFound,
    InvalidRequest,
    IsADirectory,
    NotRegular,
    PayloadTooLarge,
    PolicyDenied,
    QuotaExceeded,
    WorkspaceDamaged,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.files.file_entries import FileContent
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.sandbox.workspace import DiskRules
from sandkasten_tools.calls.file_tools import check_tool_write
from tests.engine.injections import World
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_three_spellings_of_a_path_are_one_file(engine, box):
    entry = await engine.files.write(box, "a/x.txt", b"hello")
    assert (entry.path, entry.size, entry.type) == ("/workspace/a/x.txt", 5, "file")
    for path in ("a/x.txt", "/work/a/x.txt", "/workspace/a/x.txt"):
        assert await engine.files.read(box, path) == FileContent(
            "/workspace/a/x.txt", b"hello", 5, truncated=False
        )
    assert (await engine.exec(box, ExecRequest("cat a/x.txt"))).stdout == b"hello"


@pytest.mark.parametrize("path", ["", "..", "a/../b", "a\0b", "x" * 5000])
async def test_an_invalid_path_is_refused_by_every_operation(engine, box, path):
    files = engine.files
    for call in (
        files.read(box, path),
        files.write(box, path, b""),
        files.stat(box, path),
        files.list(box, path),
        files.mkdir(box, path),
        files.move(box, path, "b"),
        files.move(box, "b", path),
        files.remove(box, path),
        files.tar_in(box, path, b""),
    ):
        with pytest.raises(InvalidRequest):
            await call


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/etc/shadow", "/root/x", "/proc/1/mem", "/dev/zero"]
)
async def test_blocked_paths_are_refused_for_reading_and_writing(engine, box, path):
    with pytest.raises((PolicyDenied, FileNotFound, NotRegular)):
        await engine.files.read(box, path)
    with pytest.raises(PolicyDenied):
        await engine.files.write(box, path, b"x")


@pytest.mark.promise("P36")
async def test_a_directory_where_a_file_is_expected_is_named(engine, box):
    files = engine.files
    await engine.exec(box, ExecRequest("mkdir d; ln -s d link; mkfifo p"))

    async def streamed(path):
        async with files.read_stream(box, path):
            pass

    async def pieces():
        yield b"x"

    calls = (
        lambda path: files.read(box, path),
        streamed,
        lambda path: files.write(box, path, b"x"),
        lambda path: files.write(box, path, pieces()),
    )
    for call in calls:
        for path in ("d", "link"):
            with pytest.raises(IsADirectory, match="is a directory") as refused:
                await call(path)
            assert refused.value.hint
        with pytest.raises(NotRegular):
            await call("p")


async def test_writes_stay_in_the_workspace_tmp_and_home(engine, box):
    for path in ("x", "/tmp/x", "/home/sandbox/x"):
        await engine.files.write(box, path, b"x")
    for path in ("/usr/x", "/etc/x", "/x"):
        with pytest.raises(PolicyDenied):
            await engine.files.write(box, path, b"x")


async def test_a_write_does_not_follow_a_link_outside(engine, box):
    await engine.exec(box, ExecRequest("ln -s /etc link; ln -s /etc/passwd file"))
    with pytest.raises(PolicyDenied):
        await engine.files.write(box, "link/x", b"x")
    with pytest.raises(PolicyDenied):
        await engine.files.read(box, "file")


async def test_ranges_and_caps_report_the_true_size(engine, box):
    await engine.files.write(box, "x", b"0123456789")
    read = engine.files.read
    assert await read(box, "x", offset=3, limit=4) == FileContent(
        "/workspace/x", b"3456", 10, truncated=True
    )
    assert await read(box, "x", offset=8) == FileContent("/workspace/x", b"89", 10, truncated=False)
    assert await read(box, "x", max_bytes=4) == FileContent(
        "/workspace/x", b"0123", 10, truncated=True
    )
    assert await read(box, "x", max_bytes=10) == FileContent(
        "/workspace/x", b"0123456789", 10, truncated=False
    )
    assert (await read(box, "x", offset=99)).data == b""
    for bad in ({"offset": -1}, {"limit": -1}, {"max_bytes": True}, {"offset": 1.5}):
        with pytest.raises(InvalidRequest):
            await read(box, "x", **bad)


async def test_overwrite_is_enforced(engine, box):
    await engine.files.write(box, "x", b"old")
    with pytest.raises(FileExists):
        await engine.files.write(box, "x", b"new", overwrite=False)
    assert (await engine.files.read(box, "x")).data == b"old"
    await engine.files.write(box, "x", b"new")
    assert (await engine.files.read(box, "x")).data == b"new"


async def test_a_mode_is_set_and_an_invalid_one_refused(engine, box):
    assert (await engine.files.write(box, "run.sh", b"", mode=0o755)).mode == 0o755
    for mode in (-1, 0o10000, True):
        with pytest.raises(InvalidRequest):
            await engine.files.write(box, "x", b"", mode=mode)


async def test_large_files_go_both_ways_as_streams(engine, box):
    block = bytes(range(256)) * 4096

    async def source():
        for _ in range(8):
            yield block

    entry = await engine.files.write(box, "big", source())
    assert entry.size == 8 * len(block)
    async with engine.files.read_stream(box, "big") as (about, parts):
        assert about.size == entry.size
        assert b"".join([part async for part in parts]) == block * 8
    async with engine.files.read_stream(box, "big", offset=256, limit=3) as (_, parts):
        assert b"".join([part async for part in parts]) == b"\0\1\2"
    async with engine.files.read_stream(box, "big") as (_, parts):
        await anext(parts)
    assert (await engine.files.read(box, "big")).data == block * 8


async def test_a_write_whose_source_fails_leaves_the_old_file(engine, box):
    await engine.files.write(box, "x", b"old")

    async def source():
        yield b"new"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        await engine.files.write(box, "x", source())
    assert (await engine.files.read(box, "x")).data == b"old"
    assert [e.name for e in (await engine.files.list(box)).entries] == ["x"]


async def test_writing_a_string_instead_of_bytes_is_refused(engine, box):
    with pytest.raises(InvalidRequest):
        await engine.files.write(box, "x", "text")


async def test_a_full_workspace_is_a_typed_error(world):
    info = await world.engine.create(CreateRequest(SandboxOptions(limits={"workspace_mb": 1})))
    with pytest.raises(QuotaExceeded):
        await world.engine.files.write(info.id, "x", bytes(2 * 2**20))


def command(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.promise("P74")
@pytest.mark.parametrize("full", [False, True])
async def test_a_read_only_file_system_is_not_a_permission_error(tmp_path, full):
    world = World(host_disk=tmp_path / "disk")
    place = world.backend.real.workspaces._root
    for directory in (place, tmp_path / "disk"):
        directory.mkdir(exist_ok=True)
        command("mount", "-t", "tmpfs", "-o", "size=8m", "test", directory)
    try:
        box = (await world.engine.create(CreateRequest(SandboxOptions(workspace_id="w")))).id
        await world.engine.files.write(box, "there", b"1")
        command("mount", "-o", "remount,ro", place)
        if full:
            with suppress(OSError):
                (tmp_path / "disk/fill").write_bytes(bytes(9 << 20))
        wanted = QuotaExceeded if full else WorkspaceDamaged
        for change in (
            world.engine.files.write(box, "new", b"1"),
            world.engine.files.mkdir(box, "d"),
            world.engine.files.move(box, "there", "elsewhere"),
            world.engine.files.remove(box, "there"),
            world.engine.files.tar_in(box, ".", tarfile.TarInfo("f").tobuf() + bytes(1024)),
        ):
            with pytest.raises(wanted, match="the host's disk"):
                await change
        assert (await world.engine.files.read(box, "there")).data == b"1"
        await world.engine.destroy(box)
    finally:
        await world.engine.aclose()
        for directory in (place, tmp_path / "disk"):
            command("umount", "-l", directory)


@pytest.mark.promise("P74")
@pytest.mark.parametrize("reserve", ["all", "named", "none"])
async def test_shared_space_is_not_written_below_the_watermark(tmp_path, reserve):
    rules = DiskRules(reserve, min_free_bytes=1 << 60)
    world = World(policy=Policy(disk=rules), host_disk=tmp_path)
    try:
        own = (await world.engine.create(CreateRequest())).id
        named = (await world.engine.create(CreateRequest(SandboxOptions(workspace_id="w")))).id
        for box, refused in ((own, reserve != "all"), (named, reserve == "none")):
            if refused:
                with pytest.raises(QuotaExceeded, match="could not write to the workspace"):
                    await world.engine.files.write(box, "f", b"1")
                assert await world.engine.files.remove(box, "f", missing_ok=True) == 0
            else:
                await world.engine.files.write(box, "f", b"1")
            await world.engine.destroy(box)
    finally:
        await world.engine.aclose()


async def test_a_listing_is_sorted_and_paged(engine, box):
    for name in ("b", "a/x", "c"):
        await engine.files.write(box, name, b"1")
    page = await engine.files.list(box)
    assert [(e.name, e.is_dir) for e in page.entries] == [("a", True), ("b", False), ("c", False)]
    names, cursor = [], None
    while True:
        page = await engine.files.list(box, ".", recursive=True, limit=1, cursor=cursor)
        names += [e.path for e in page.entries]
        cursor = page.next
        if cursor is None:
            break
    assert names == ["/workspace/a", "/workspace/a/x", "/workspace/b", "/workspace/c"]
    for limit in (0, -1, 5001, True):
        with pytest.raises(InvalidRequest):
            await engine.files.list(box, limit=limit)


async def test_unusual_names_come_back_exactly(engine, box):
    names = ["new\nline", "-rf", "\u202egpj.exe", "bad\udcff", "<script>", "ü"]
    for name in names:
        await engine.files.write(box, name, name.encode("utf-8", "surrogateescape"))
    listed = {e.name for e in (await engine.files.list(box)).entries}
    assert listed == set(names)
    for name in names:
        assert (await engine.files.read(box, name)).data == name.encode("utf-8", "surrogateescape")


async def test_directories_are_created_moved_and_removed(engine, box):
    files = engine.files
    assert (await files.mkdir(box, "d/e")).type == "directory"
    await files.mkdir(box, "d/e")
    with pytest.raises(FileExists):
        await files.mkdir(box, "d/e", exist_ok=False)
    await files.write(box, "d/e/f", b"1")
    assert (await files.move(box, "d", "m")).path == "/workspace/m"
    with pytest.raises(FileNotFound):
        await files.stat(box, "d")
    with pytest.raises((DirectoryNotEmpty, IsADirectory)):
        await files.remove(box, "m")
    assert await files.remove(box, "m", recursive=True) == 3
    with pytest.raises(FileNotFound):
        await files.remove(box, "m")
    assert await files.remove(box, "m", missing_ok=True) == 0


@pytest.mark.parametrize("path", [".", "/workspace", "/work", "/tmp", "/home/sandbox", "/"])
async def test_the_top_directories_themselves_are_not_removed(engine, box, path):
    with pytest.raises(InvalidRequest):
        await engine.files.remove(box, path, recursive=True)


async def test_a_move_does_not_overwrite_unless_asked(engine, box):
    await engine.files.write(box, "a", b"a")
    await engine.files.write(box, "b", b"b")
    with pytest.raises(FileExists):
        await engine.files.move(box, "a", "b")
    await engine.files.move(box, "a", "b", overwrite=True)
    assert (await engine.files.read(box, "b")).data == b"a"


async def test_archives_go_both_ways(engine, box):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("sub/x.txt")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"hi"))

    async def source():
        yield buffer.getvalue()

    summary = await engine.files.tar_in(box, "in", source())
    assert summary.bytes == 2
    assert (await engine.files.read(box, "in/sub/x.txt")).data == b"hi"
    data = b"".join([part async for part in engine.files.tar_out(box, "in")])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert any(m.name.endswith("sub/x.txt") for m in tar.getmembers())


async def test_an_archive_that_leads_outside_is_refused(engine, box):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../../tmp/evil"))
    with pytest.raises(PolicyDenied):
        await engine.files.tar_in(box, "in", buffer.getvalue())


async def test_changes_are_watched(engine, box):
    watching = engine.files.watch(box)
    first = asyncio.ensure_future(anext(watching))
    async with asyncio.timeout(PATIENCE_S):
        # Nothing says when it has begun to watch.
        while not first.done():
            await engine.files.write(box, "seen", b"1")
            await asyncio.wait([first], timeout=0.05)
    change = await first
    assert change.path.startswith("/workspace/")
    await watching.aclose()


async def test_a_port_that_answers_is_reached_and_a_closed_one_refused(world, box):
    server = """
import socket
with socket.create_server(("127.0.0.1", 8000)) as listener:
    print("ready", flush=True)
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65_536):
            connection.sendall(data.upper())
"""
    running = await world.engine.exec_start(box, ExecRequest(("python3", "-c", server)))
    output = world.engine.exec_output(box, running.exec_id, follow=True)
    assert (await anext(output)).data == b"ready\n"
    await output.aclose()
    async with world.engine.connect(box, 8000) as stream:
        await stream.send(b"hello")
        async for data in stream:
            assert data == b"HELLO"
            break
    with pytest.raises(ConnectionRefused):
        async with world.engine.connect(box, 8001):
            pass
    for port in (0, -1, 65_536, True):
        with pytest.raises(InvalidRequest):
            async with world.engine.connect(box, port):
                pass


async def test_agent_tools_have_their_own_limits():
    check_tool_write(10, 99, max_bytes=10, max_files=100)
    with pytest.raises(PayloadTooLarge) as refused:
        check_tool_write(11, 0, max_bytes=10, max_files=100)
    assert "max_file_size_bytes" in refused.value.hint
    with pytest.raises(PayloadTooLarge) as refused:
        check_tool_write(1, 100, max_bytes=10, max_files=100)
    assert "max_files" in refused.value.hint
