"""Streamed downloads: complete, in ranges, as a tar, and to readers that disconnect or stall."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import tarfile
import time

import pytest

from sandkasten_server.api.response import streamed_response
from sandkasten_server.api.response.byte_ranges import (
    FileVersion,
    Span,
    Unsatisfiable,
    disposition,
    wanted,
)
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

MIB = 1 << 20


@pytest.fixture
async def box(daemon):
    return f"/v1/sessions/{await daemon.session()}/fs"


@pytest.fixture
async def real(real_daemon):
    """The real daemon, the id of a session, and the path of its files."""
    the_id = await real_daemon.session()
    return real_daemon, the_id, f"/v1/sessions/{the_id}/fs"


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


async def run(daemon, the_id, command):
    from sandkasten.model.commands.exec_values import ExecRequest

    result = await daemon.server.engine.exec(the_id, ExecRequest(command))
    assert result.exit_code == 0, result.stderr
    return result.stdout


async def test_a_file_is_sent_with_its_size_and_never_as_a_page(daemon, box):
    await daemon.ask("POST", f"{box}/write", {"path": "p.html", "text": "<script>"})
    reply = await daemon.ask("GET", f"{box}/download?path=p.html")
    assert (reply.status, reply.raw) == (200, b"<script>")
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.headers["Content-Length"] == "8"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Content-Disposition"].startswith('attachment; filename="p.html"')
    head = await daemon.ask("HEAD", f"{box}/download?path=p.html")
    assert (head.status, head.raw) == (200, b"")
    assert head.headers["Content-Length"] == "8"
    assert head.headers["ETag"].removeprefix("W/") == reply.headers["ETag"].removeprefix("W/")
    assert (await daemon.ask("HEAD", f"{box}/download?path=none")).status == 404


PARTS = [
    ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
    ("bytes=3-5", 206, b"345", "bytes 3-5/10"),
    ("bytes=7-", 206, b"789", "bytes 7-9/10"),
    ("bytes=7-99", 206, b"789", "bytes 7-9/10"),
    ("bytes=-4", 206, b"6789", "bytes 6-9/10"),
    ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=10-", 416, None, "bytes */10"),
    ("bytes=-0", 416, None, "bytes */10"),
    ("bytes=5-3", 200, b"0123456789", None),
    ("bytes=0-1,3-4", 200, b"0123456789", None),
    ("bytes=x-y", 200, b"0123456789", None),
    ("lines=1-2", 200, b"0123456789", None),
    ("bytes=99999999999999999999999999-", 200, b"0123456789", None),
]


@pytest.mark.promise("P21")
async def test_a_requested_range_is_sent(daemon, box):
    for asked, status, data, told in PARTS:
        await daemon.ask("POST", f"{box}/write", {"path": "f", "text": "0123456789"})
        reply = await daemon.ask("GET", f"{box}/download?path=f", headers={"Range": asked})
        assert reply.status == status
        assert reply.headers.get("Content-Range") == told
        if data is None:
            assert reply.json["code"] == "INVALID_REQUEST"
        else:
            assert reply.raw == data
            assert reply.headers["Content-Length"] == str(len(data))


@pytest.mark.promise("P21")
async def test_a_download_is_resumed_only_of_the_same_file(real):
    daemon, the_id, box = real
    await run(daemon, the_id, "printf 0123456789 > f; touch -d @1000000000 f")
    first = await daemon.ask("GET", f"{box}/download?path=f")
    tag = first.headers["ETag"]
    assert not tag.startswith("W/")
    resume = {"Range": "bytes=5-", "If-Range": tag}
    assert (await daemon.ask("GET", f"{box}/download?path=f", headers=resume)).raw == b"56789"
    date = {"Range": "bytes=5-", "If-Range": first.headers["Last-Modified"]}
    assert (await daemon.ask("GET", f"{box}/download?path=f", headers=date)).status == 206
    known = {"If-None-Match": f'"x", {tag}'}
    assert (await daemon.ask("GET", f"{box}/download?path=f", headers=known)).status == 304
    await run(daemon, the_id, "printf abcdefghij > f; touch -d @1000000001 f")
    again = await daemon.ask("GET", f"{box}/download?path=f", headers=resume)
    assert (again.status, again.raw) == (200, b"abcdefghij")
    # Fresh: within this second it can change again, so nobody may put parts together.
    await run(daemon, the_id, "printf 0123456789 > f")
    fresh = await daemon.ask("GET", f"{box}/download?path=f")
    assert fresh.headers["ETag"].startswith("W/")
    resume = {"Range": "bytes=5-", "If-Range": fresh.headers["ETag"]}
    assert (await daemon.ask("GET", f"{box}/download?path=f", headers=resume)).status == 200


def test_ranges_at_the_edges_are_exact():
    version = FileVersion.of(0, 5, now=100)
    with pytest.raises(Unsatisfiable):
        wanted({"range": "bytes=0-"}, version)
    assert wanted({}, version) is None
    assert wanted({"range": "bytes= 1-2 "}, FileVersion.of(9, 5, now=100)) == Span(1, 2)
    assert FileVersion.of(1, -5, now=100).headers.keys() == {"ETag", "Accept-Ranges"}


ODD_NAMES = [
    b'a"b',
    b"a\r\nSet-Cookie: x=1",
    b"a\nb",
    "grüße €.txt".encode(),
    b"\xff\xfe",
    b";",
    b"\\",
]


@pytest.mark.promise("P21")
async def test_file_names_are_escaped_in_headers(daemon, box):
    for name in ODD_NAMES:
        import base64

        encoded = base64.urlsafe_b64encode(b"/workspace/" + name).decode()
        assert (
            await daemon.ask("POST", f"{box}/write", {"path_b64": encoded, "text": "x"})
        ).status == 200
        reply = await daemon.ask("GET", f"{box}/download", params={"path_b64": encoded})
        assert (reply.status, reply.raw) == (200, b"x")
        assert "Set-Cookie" not in reply.headers
        said = reply.headers["Content-Disposition"]
        assert said == disposition(os.fsdecode(name))
        assert said.isascii()
        assert said.isprintable()


async def test_a_directory_is_sent_as_a_tar_and_so_is_a_file_on_request(daemon, box):
    await daemon.ask("POST", f"{box}/write", {"path": "d/f", "text": "F"})
    for path, query in (("d", ""), ("d", "&format=tar"), ("d/f", "&format=tar")):
        reply = await daemon.ask("GET", f"{box}/download?path={path}{query}")
        assert reply.headers["Content-Type"] == "application/x-tar"
        with tarfile.open(fileobj=io.BytesIO(reply.raw)) as archive:
            [one] = [one for one in archive if one.isfile()]
            found = archive.extractfile(one)
            assert found is not None
            assert found.read() == b"F"
    assert (await daemon.ask("GET", f"{box}/download?path=no&format=tar")).status == 404
    head = await daemon.ask("HEAD", f"{box}/download?path=d")
    assert (head.status, head.raw) == (200, b"")


@pytest.mark.promise("P18")
async def test_downloading_a_special_file_is_refused_at_once(real):
    daemon, the_id, box = real
    await run(
        daemon,
        the_id,
        "mkfifo fifo; ln -s loop loop; ln -s nowhere dangling; ln -s /etc/passwd secret;"
        "ln -s /dev/zero zero; python3 -c \"import socket; socket.socket(1).bind('sock')\"",
    )
    cases = {
        "fifo": (409, "NOT_REGULAR"),
        "sock": (409, "NOT_REGULAR"),
        "dangling": (404, "FILE_NOT_FOUND"),
        "secret": (403, "FORBIDDEN"),
        "zero": (403, "FORBIDDEN"),
        "/root/x": (403, "FORBIDDEN"),
        "/proc/1/mem": (403, "FORBIDDEN"),
        "/proc/self/root/etc/hostname": (403, "FORBIDDEN"),
    }
    for path, (status, code) in cases.items():
        for verb in ("download", "read"):
            began = time.monotonic()
            reply = await daemon.ask("GET", f"{box}/{verb}", params={"path": path})
            assert (reply.status, reply.json["code"]) == (status, code), (verb, path)
            assert time.monotonic() - began < FAR_TOO_LATE_S
    loop = await daemon.ask("GET", f"{box}/read?path=loop")
    assert 400 <= loop.status < 500
    entry = (await daemon.ask("GET", f"{box}/stat?path=secret&follow=false")).json
    assert (entry["type"], entry["target"]) == ("symlink", "/etc/passwd")


@pytest.mark.promise("P18")
async def test_a_sparse_terabyte_is_described_and_read_in_parts(real):
    daemon, the_id, box = real
    await run(daemon, the_id, "truncate -s 1T big; printf end | dd of=big bs=1 seek=1T 2>/dev/null")
    size = (1 << 40) + 3
    assert (await daemon.ask("GET", f"{box}/stat?path=big")).json["size"] == size
    assert (await daemon.ask("GET", f"{box}/read?path=big")).status == 413
    part = await daemon.ask("GET", f"{box}/read?path=big&offset={1 << 40}")
    assert (part.json["content"], part.json["truncated"]) == ("end", False)
    last = await daemon.ask("GET", f"{box}/download?path=big", headers={"Range": "bytes=-3"})
    assert (last.status, last.raw) == (206, b"end")
    head = await daemon.ask("HEAD", f"{box}/download?path=big")
    assert head.headers["Content-Length"] == str(size)


@pytest.mark.promise("P21")
async def test_a_large_file_passes_through_the_daemon_in_bounded_memory(real_daemon, full_size):
    daemon = real_daemon
    size = (1024 if full_size else 200) * MIB
    the_id = await daemon.session(limits={"workspace_mb": 2500})
    box = f"/v1/sessions/{the_id}/fs"
    await run(daemon, the_id, f"yes 0123456789abcde | head -c {size} > in")
    gc.collect()
    before, most, count = _rss(), 0, 0

    async def coming():
        nonlocal most, count
        async with daemon.http.get(f"{daemon.url}{box}/download?path=in") as reply:
            assert reply.headers["Content-Length"] == str(size)
            async for piece in reply.content.iter_any():
                count += len(piece)
                most = max(most, _rss())
                yield piece

    reply = await daemon.ask("PUT", f"{box}/file?path=out", data=coming())
    assert (reply.status, reply.json["size_bytes"]) == (200, size)
    assert count == size
    assert most - before < 48 * MIB
    await run(daemon, the_id, "cmp in out")


@pytest.mark.promise("P21")
async def test_readers_that_disconnect_or_do_not_read_leak_nothing(real, monkeypatch):
    daemon, the_id, box = real
    monkeypatch.setattr(streamed_response, "STALL_S", 1.0)
    await run(daemon, the_id, "head -c 100000000 /dev/zero > f; mkdir d; mv f d; ln d/f f")
    ask = "GET {}/download?path={} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    await daemon.ask("GET", f"{box}/stat?path=f")
    gc.collect()
    tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    held = []
    for number in range(40):
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port, limit=1024)
        writer.write(ask.format(box, "d" if number % 2 else "f").encode())
        assert await reader.readexactly(12) == b"HTTP/1.1 200"
        if number < 30:
            writer.transport.abort()
        else:
            held.append(writer)
    # Those that left at once, and those that do not read when their time is over.
    for _ in range(int(PATIENCE_S / 0.05)):
        if len(asyncio.all_tasks()) <= tasks:
            break
        await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= tasks
    for writer in held:
        writer.transport.abort()
    for _ in range(int(PATIENCE_S / 0.05)):
        if len(os.listdir("/proc/self/fd")) <= files + 2:
            break
        await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= tasks
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    stats = await daemon.server.engine.stats(the_id)
    assert stats.running == 0
    small = await daemon.ask("GET", f"{box}/download?path=f", headers={"Range": "bytes=0-9"})
    assert small.raw == bytes(10)


async def test_a_growing_file_is_sent_at_its_first_size_and_a_shrinking_one_is_cut_off(real):
    daemon, the_id, box = real
    await run(daemon, the_id, "head -c 50000000 /dev/zero > f")
    async with daemon.http.get(f"{daemon.url}{box}/download?path=f") as reply:
        await reply.content.readexactly(10)
        await run(daemon, the_id, "echo more >> f")
        assert len(await reply.read()) == 50_000_000 - 10
    import aiohttp

    async with daemon.http.get(f"{daemon.url}{box}/download?path=f") as reply:
        await reply.content.readexactly(10)
        await run(daemon, the_id, "truncate -s 100 f")
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()
