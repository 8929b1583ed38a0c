"""Every file request: exact bytes, exact names, atomic writes, typed refusals."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from sandkasten.errors import (
    Cancelled,
    DirectoryNotEmpty,
    FileExists,
    FileNotFound,
    FilePermission,
    FileTrouble,
    InvalidRequest,
    IsADirectory,
    NotADirectory,
    NotRegular,
    PayloadTooLarge,
    PolicyDenied,
    SandkastenError,
)
from sandkasten_contract.box import Box, eventually
from sandkasten_contract.shared_sandbox_cases import each
from sandkasten_runtime.wire.call import CallEvent, Data
from sandkasten_runtime.wire.messages import decode_entry, to_bytes_json

ODD_NAMES = [
    "plain",
    " lead and trail ",
    "-rf",
    "new\nline",
    "tab\there",
    "quo'te\"s",
    "$HOME `id`",
    "ünïcödé",
    "\u202egnp.exe",
    "<script>",
    b"\xff\xfe\x80".decode("utf-8", "surrogateescape"),
    "x" * 255,
]


async def test_a_file_is_written_and_read_back(box: Box):
    data = bytes(range(256)) * 300
    entry = await box.write("f.bin", data)
    assert (entry.path, entry.name, entry.type) == (box.path("f.bin"), "f.bin", "file")
    assert (entry.size, entry.mode) == (len(data), 0o644)
    assert await box.read("f.bin") == data
    assert (await box.run(["wc", "-c"], stdin=data)).stdout.strip() == b"%d" % len(data)


@pytest.mark.promise("P11")
async def test_a_command_sent_after_a_file_finds_it_written(box: Box):
    for number in range(50):
        fields = {"path": f"code{number}.sh", "size": 7}
        # Neither waits for an answer: only the order on the connection says which is first.
        written = asyncio.ensure_future(box.channel.call("fs.write", fields, data=b"echo ok"))
        ran = asyncio.ensure_future(box.run(["sh", f"code{number}.sh"]))
        await written
        assert (await ran).stdout == b"ok\n"


async def test_an_empty_file_can_be_written_and_read(box: Box):
    assert (await box.write("empty", b"")).size == 0
    assert await box.read("empty") == b""


async def test_a_file_larger_than_any_window_survives_the_round_trip(box: Box):
    data = array("Q", range(1_500_000)).tobytes()
    assert (await box.write("large", data)).size == len(data)
    assert await box.read("large") == data


@each("name", ODD_NAMES, ids=ascii)
async def test_any_name_survives_the_round_trip(box: Box, name: str):
    assert (await box.write(name, b"here")).name == name
    assert await box.read(name) == b"here"
    assert (await box.stat(name)).path == box.path(name)
    assert [entry.name for entry in (await box.list()).entries] == [name]
    assert await box.remove(name) == 1


async def test_commands_and_file_requests_see_each_others_files(box: Box):
    await box.run("printf inside > made")
    assert await box.read("made") == b"inside"
    await box.write("given", b"outside")
    assert (await box.run("cat given")).stdout == b"outside"


# ---- stat


async def test_stat_tells_files_directories_links_and_fifos_apart(box: Box):
    await box.run("mkdir d; echo x > f; ln -s f l; mkfifo p; chmod 750 d")
    assert (await box.stat("d")).type == "directory"
    assert (await box.stat("d")).mode == 0o750
    assert (await box.stat("f")).size == 2
    link = await box.stat("l", follow=False)
    assert (link.type, link.target, link.path) == ("symlink", "f", box.path("l"))
    followed = await box.stat("l")
    assert (followed.type, followed.path) == ("file", box.path("f"))
    assert (await box.stat("p")).type == "fifo"


async def test_stat_of_a_missing_path_is_file_not_found(box: Box):
    with pytest.raises(FileNotFound):
        await box.stat("nope")
    await box.run("ln -s nowhere dangling")
    with pytest.raises(FileNotFound):
        await box.stat("dangling")
    assert (await box.stat("dangling", follow=False)).type == "symlink"


async def test_a_loop_of_links_is_refused(box: Box):
    await box.run("ln -s b a; ln -s a b")
    with pytest.raises(FileTrouble):
        await box.stat("a")


async def test_a_path_through_a_file_is_not_a_directory(box: Box):
    await box.write("f", b"")
    with pytest.raises(NotADirectory):
        await box.stat("f/x")


@each("path", ["", "nul\0", 5, None, {"b64": "!!"}, {"b64": "AA=="}, []])
async def test_a_malformed_path_is_invalid_for_every_request(box: Box, path: object):
    for verb in ("fs.stat", "fs.list", "fs.read", "fs.write", "fs.mkdir", "fs.remove"):
        with pytest.raises(InvalidRequest):
            await box.ask(verb, path=path, data=b"")


async def test_a_path_that_is_too_long_is_invalid(box: Box):
    with pytest.raises(InvalidRequest):
        await box.stat("x" * 256)
    with pytest.raises(InvalidRequest):
        await box.stat("a/" * 3000)


async def test_dot_dot_is_resolved_inside(box: Box):
    await box.write("d/f", b"x")
    assert (await box.stat("d/../d/./f")).path == box.path("d/f")
    assert (await box.stat("/../../..")).path == "/"


# ---- read


async def test_a_range_is_read(box: Box):
    await box.write("f", b"0123456789")
    assert await box.read("f", offset=3, limit=4) == b"3456"
    assert await box.read("f", offset=8) == b"89"
    assert await box.read("f", offset=8, limit=100) == b"89"
    assert await box.read("f", offset=10) == b""
    assert await box.read("f", offset=10_000) == b""
    assert await box.read("f", limit=0) == b""


async def test_read_sends_the_entry_first_and_the_sizes_last(box: Box):
    await box.write("f", b"0123456789")
    async with box.channel.stream("fs.read", {"path": "f", "offset": 4}) as call:
        items = [item async for item in call]
        result = await call.result()
    first = items[0]
    assert isinstance(first, CallEvent)
    assert first.name == "open"
    assert decode_entry(first.body["entry"]).size == 10
    assert b"".join(item.data for item in items if isinstance(item, Data)) == b"456789"
    assert result == {"size": 10, "bytes": 6}


async def test_a_file_over_the_read_limit_is_too_large(box: Box):
    await box.write("f", b"0123456789")
    assert await box.read("f", max=10) == b"0123456789"
    with pytest.raises(PayloadTooLarge):
        await box.read("f", max=9)
    assert await box.read("f", max=9, offset=1) == b"123456789"
    assert await box.read("f", max=1, limit=5) == b"01234"


async def test_reading_a_special_file_is_refused_at_once(box: Box):
    await box.run("mkdir d; mkfifo p")
    with pytest.raises((IsADirectory, NotRegular)):
        await box.read("d")
    with pytest.raises(NotRegular):
        await box.read("p")
    with pytest.raises(NotRegular):
        await box.read("/dev/zero")
    with pytest.raises(FileNotFound):
        await box.read("nope")


async def test_a_read_left_early_does_not_disturb_the_channel(box: Box):
    await box.write("large", bytes(6_000_000))
    for _ in range(5):
        async with box.channel.stream("fs.read", {"path": "large"}) as call:
            async for item in call:
                if isinstance(item, Data):
                    break
    assert (await box.run(["echo", "fine"])).stdout == b"fine\n"


async def test_a_slow_reader_does_not_block_others(box: Box):
    await box.write("large", bytes(8_000_000))
    async with box.channel.stream("fs.read", {"path": "large"}, window=1) as call:
        for number in range(20):
            assert (await box.run(["echo", str(number)])).stdout == b"%d\n" % number
        got = 0
        async for item in call:
            if isinstance(item, Data):
                got += len(item.data)
    assert got == 8_000_000


# ---- write


async def test_writing_replaces_and_keeps_the_old_mode(box: Box):
    await box.write("f", b"old content", mode=0o750)
    entry = await box.write("f", b"new")
    assert (entry.mode, entry.size) == (0o750, 3)
    assert (await box.write("f", b"newer", mode=0o600)).mode == 0o600
    assert await box.read("f") == b"newer"


@pytest.mark.parametrize("flush", [True, False])
async def test_a_change_is_made_with_and_without_a_flush(box: Box, flush: bool):
    data = bytes(5_000_000)
    assert (await box.write("a/f", data, flush=flush)).size == len(data)
    await box.ask("fs.mkdir", path="d", flush=flush)
    await box.ask("fs.move", source="a/f", destination="d/f", flush=flush)
    assert await box.read("d/f") == data
    await box.ask("fs.remove", path="d", recursive=True, flush=flush)
    assert [entry.name for entry in (await box.list(".")).entries] == ["a"]


async def test_set_id_and_sticky_bits_are_not_set_by_a_write(box: Box):
    for mode in (0o4755, 0o2755, 0o1755, 0o7755):
        assert (await box.write("f", b"#!/bin/sh\n", mode=mode)).mode == 0o755


async def test_an_existing_file_is_kept_when_overwriting_is_off(box: Box):
    await box.write("f", b"first", overwrite=False)
    with pytest.raises(FileExists):
        await box.write("f", b"second", overwrite=False)
    assert await box.read("f") == b"first"


async def test_missing_parents_are_created_unless_forbidden(box: Box):
    assert (await box.write("a/b/c", b"x")).path == box.path("a/b/c")
    with pytest.raises(FileNotFound):
        await box.write("no/b/c", b"x", parents=False)


async def test_writing_through_a_link_replaces_its_target(box: Box):
    await box.write("target", b"old")
    await box.run("ln -s target link")
    entry = await box.write("link", b"new")
    assert entry.path == box.path("target")
    assert await box.read("target") == b"new"
    assert (await box.stat("link", follow=False)).type == "symlink"


async def test_writing_over_a_directory_or_a_fifo_is_refused(box: Box):
    await box.run("mkdir d; mkfifo p")
    with pytest.raises((IsADirectory, NotRegular)):
        await box.write("d", b"x")
    with pytest.raises(NotRegular):
        await box.write("p", b"x")


async def test_writing_without_permission_is_refused(box: Box):
    with pytest.raises((FilePermission, SandkastenError)):
        await box.write("/proc/mine", b"x")
    with pytest.raises(FileNotFound):
        await box.stat("/proc/mine")


async def names(box: Box) -> list[str]:
    return [entry.name for entry in (await box.list()).entries]


async def test_a_cancelled_write_leaves_only_the_old_file(box: Box):
    await box.write("f", b"old")
    async with box.channel.stream("fs.write", {"path": "f"}) as call:
        await call.send(b"x" * 500_000)
    assert await box.read("f") == b"old"
    await eventually(lambda: names(box), ["f"])
    assert await box.read("f") == b"old"


async def test_a_write_whose_connection_is_lost_leaves_only_the_old_file(box: Box):
    await box.write("f", b"old")
    other = await Box.open(box.cell)
    async with other.channel.stream("fs.write", {"path": "f"}) as call:
        await call.send(b"x" * 500_000)
        await other.aclose()
        with pytest.raises(Cancelled):
            await call.result()
    await eventually(lambda: names(box), ["f"])
    assert await box.read("f") == b"old"


async def test_a_reader_sees_the_old_file_until_the_new_one_is_complete(box: Box):
    await box.write("f", b"old")
    async with box.channel.stream("fs.write", {"path": "f"}) as call:
        await call.send(b"n" * 300_000)
        assert await box.read("f") == b"old"
        await call.end()
        assert (await call.result())["size"] == 300_000
    assert await box.read("f") == b"n" * 300_000


# ---- mkdir, move, remove


async def test_directories_are_created_with_their_parents(box: Box):
    entry = await box.mkdir("a/b/c", mode=0o700)
    assert (entry.path, entry.type, entry.mode) == (box.path("a/b/c"), "directory", 0o700)
    assert (await box.mkdir("a/b/c")).path == box.path("a/b/c")
    with pytest.raises(FileExists):
        await box.mkdir("a/b/c", exist_ok=False)
    with pytest.raises(FileNotFound):
        await box.mkdir("x/y", parents=False)
    await box.write("f", b"")
    with pytest.raises((FileExists, NotADirectory)):
        await box.mkdir("f")


async def test_a_file_is_moved(box: Box):
    await box.write("from", b"data")
    assert (await box.move("from", "to")).path == box.path("to")
    assert await box.read("to") == b"data"
    with pytest.raises(FileNotFound):
        await box.stat("from")
    with pytest.raises(FileNotFound):
        await box.move("from", "elsewhere")


async def test_a_move_overwrites_only_when_asked_and_never_a_directory(box: Box):
    await box.write("a", b"a")
    await box.write("b", b"b")
    await box.mkdir("d")
    with pytest.raises(FileExists):
        await box.move("a", "b")
    with pytest.raises((FileExists, IsADirectory)):
        await box.move("a", "d")
    with pytest.raises((FileExists, IsADirectory)):
        await box.move("a", "d", overwrite=True)
    await box.move("a", "b", overwrite=True)
    assert await box.read("b") == b"a"
    assert (await box.list("d")).entries == ()


async def test_a_directory_is_moved_with_its_contents_and_not_into_itself(box: Box):
    await box.write("d/e/f", b"deep")
    await box.move("d", "moved")
    assert await box.read("moved/e/f") == b"deep"
    with pytest.raises(SandkastenError):
        await box.move("moved", "moved/e/inside")
    assert await box.read("moved/e/f") == b"deep"


async def test_a_move_between_file_systems_copies_and_removes(box: Box):
    await box.write("tree/file", b"content", mode=0o640)
    await box.run("ln -s file tree/link")
    await box.move("tree", "/tmp/conformance-moved")
    assert await box.read("/tmp/conformance-moved/file") == b"content"
    assert (await box.stat("/tmp/conformance-moved/file")).mode == 0o640
    assert (await box.stat("/tmp/conformance-moved/link", follow=False)).target == "file"
    assert (await box.list()).entries == ()
    await box.remove("/tmp/conformance-moved", recursive=True)


async def test_remove_returns_the_number_of_removed_entries(box: Box):
    await box.run("mkdir -p d/e; touch d/f d/e/g; ln -s / d/link")
    with pytest.raises(DirectoryNotEmpty):
        await box.remove("d")
    assert await box.remove("d", recursive=True) == 5
    with pytest.raises(FileNotFound):
        await box.remove("d", recursive=True)
    assert await box.remove("d", missing_ok=True) == 0
    assert (await box.stat("/dev")).type == "directory"


async def test_remove_deletes_the_link_and_never_its_target(box: Box):
    await box.write("kept/f", b"x")
    await box.run("ln -s kept link")
    assert await box.remove("link", recursive=True) == 1
    assert await box.read("kept/f") == b"x"


async def test_an_empty_directory_is_removed_without_recursion(box: Box):
    await box.mkdir("d")
    assert await box.remove("d") == 1


async def test_a_tree_of_directories_without_permissions_is_removed(box: Box):
    await box.run("mkdir -p d/e/f; touch d/e/f/g; chmod 000 d/e/f; chmod 000 d/e; chmod 000 d")
    assert await box.remove("d", recursive=True) == 4


@pytest.mark.aspect("large")
async def test_a_tree_two_thousand_deep_is_created_listed_and_removed(box: Box):
    for start in range(0, 2000, 500):
        await box.mkdir("/".join(["d"] * (start + 500)))
    page = await box.list(recursive=True, limit=5000)
    assert len(page.entries) + (1 if page.next else 0) >= 1
    seen = list(page.entries)
    while page.next is not None:
        page = await box.list(recursive=True, limit=5000, cursor=to_bytes_json(page.next))
        seen += page.entries
    assert len(seen) == 2000
    assert await box.remove("d", recursive=True) == 2000


# ---- rules of the caller


async def test_denied_prefixes_are_refused_after_links_are_resolved(box: Box):
    await box.write("secret/f", b"s")
    await box.run("ln -s secret/f direct; ln -s secret around")
    deny = {"deny": [box.path("secret")]}
    for path in ("secret/f", "direct", "around/f", "x/../secret/f"):
        if path.startswith("x/"):
            await box.mkdir("x")
        with pytest.raises(PolicyDenied):
            await box.read(path, **deny)
        with pytest.raises(PolicyDenied):
            await box.stat(path, **deny)
        with pytest.raises(PolicyDenied):
            await box.write(path, b"changed", **deny)
    with pytest.raises(PolicyDenied):
        await box.list("around", **deny)
    with pytest.raises(PolicyDenied):
        await box.remove("secret/f", **deny)
    with pytest.raises(PolicyDenied):
        await box.move("secret/f", "out", **deny)
    assert await box.read("secret/f") == b"s"


async def test_a_denied_prefix_matches_whole_names_only(box: Box):
    await box.write("secretary", b"fine")
    assert await box.read("secretary", deny=[box.path("secret")]) == b"fine"


async def test_writes_outside_the_allowed_directories_are_refused(box: Box):
    await box.mkdir("in")
    await box.mkdir("out")
    await box.run("ln -s ../out in/escape; ln -s ../out/f in/link")
    rule = {"within": [box.path("in")]}
    assert (await box.write("in/f", b"x", **rule)).size == 1
    for path in ("out/f", "in/escape/f", "in/link", "in/../out/f"):
        with pytest.raises(PolicyDenied):
            await box.write(path, b"x", **rule)
    with pytest.raises(PolicyDenied):
        await box.mkdir("out/d", **rule)
    with pytest.raises(PolicyDenied):
        await box.mkdir("out/d/e/f", **rule)
    with pytest.raises(PolicyDenied):
        await box.move("in/f", "out/f", **rule)
    with pytest.raises(PolicyDenied):
        await box.remove("out", **rule)
    assert (await box.list("out")).entries == ()


async def test_a_sparse_terabyte_can_be_described_and_read_in_part(box: Box):
    await box.run("printf end | dd of=huge bs=1 seek=1000000000000 2>/dev/null")
    entry = await box.stat("huge")
    if entry.size == 1_000_000_000_003:
        assert await box.read("huge", offset=1_000_000_000_000) == b"end"
        with pytest.raises(PayloadTooLarge):
            await box.read("huge", max=1_000_000)


async def test_a_file_that_grows_is_read_to_the_size_first_seen(box: Box):
    await box.write("grows", bytes(2_000_000))
    async with box.channel.stream("fs.read", {"path": "grows"}, window=1) as call:
        got = 0
        async for item in call:
            if isinstance(item, CallEvent):
                await box.run("printf more >> grows")
            if isinstance(item, Data):
                got += len(item.data)
        assert await call.result() == {"size": 2_000_000, "bytes": 2_000_000}
    assert got == 2_000_000
