"""Streamed uploads: raw, as forms, as tars; interrupted, too many, too large."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile

import aiohttp
import pytest

from sandkasten_server.api.http_limits import HttpLimits
from tests import delayed_blocks
from tests.api.daemon_in_process import serving
from tests.patience import PATIENCE_S

JSON = {"Content-Type": "application/json"}
MIB = 1 << 20


@pytest.fixture
async def box(daemon):
    return f"/v1/sessions/{await daemon.session()}/fs"


@pytest.fixture
async def real_box(real_daemon):
    return f"/v1/sessions/{await real_daemon.session()}/fs"


def form(*files, path=None, late=False, field="file"):
    """Return the bytes of a form, so that the test decides the order of its parts."""
    parts = []
    for name, data in files:
        head = f'Content-Disposition: form-data; name="{field}"; filename="'.encode()
        parts.append(head + name + b'"\r\nContent-Type: application/octet-stream\r\n\r\n' + data)
    if path is not None:
        where = len(parts) if late else 0
        parts.insert(where, b'Content-Disposition: form-data; name="path"\r\n\r\n' + path)
    return b"".join(b"--BOUNDARY\r\n" + part + b"\r\n" for part in parts) + b"--BOUNDARY--\r\n"


FORM = {"content-type": "multipart/form-data; boundary=BOUNDARY"}


async def send(daemon, box, body, query=""):
    return await daemon.ask("POST", f"{box}/upload{query}", data=io.BytesIO(body), headers=FORM)


async def read(daemon, box, path):
    reply = await daemon.ask("GET", f"{box}/download", params={"path": path})
    return reply.raw if reply.status == 200 else None


async def pieces(*parts, pause=0.0):
    for part in parts:
        await asyncio.sleep(pause)
        yield part


async def test_a_raw_body_is_written_as_a_file(daemon, box):
    data = os.urandom(3 * MIB + 7)
    put = await daemon.ask(
        "PUT", f"{box}/file?path=d/raw&mode=0755", data=pieces(data[:5], data[5:])
    )
    assert (put.status, put.json["size_bytes"]) == (200, len(data))
    assert put.json["mode"] & 0o777 == 0o755
    assert await read(daemon, box, "d/raw") == data
    taken = await daemon.ask("PUT", f"{box}/file?path=d/raw&overwrite=false", data=b"x")
    assert taken.status == 409
    assert (await daemon.ask("PUT", f"{box}/file?path=empty")).json["size_bytes"] == 0


@pytest.mark.promise("P21")
async def test_a_form_writes_files_into_its_path(daemon, box):
    body = form((b"a.txt", b"A"), (b"sub/b.bin", b"\x00\xff\r\n--BOUNDAR"), path=b"/workspace/in")
    reply = await send(daemon, box, body)
    assert reply.status == 200, reply.raw
    assert reply.json["ok"] is True
    assert reply.json["paths"] == ["/workspace/in/a.txt", "/workspace/in/sub/b.bin"]
    assert [one["size_bytes"] for one in reply.json["files"]] == [1, 13]
    assert await read(daemon, box, "in/a.txt") == b"A"
    assert await read(daemon, box, "in/sub/b.bin") == b"\x00\xff\r\n--BOUNDAR"


async def test_forms_of_a_client_library_are_accepted(daemon, box):
    data = aiohttp.FormData()
    data.add_field("path", "/workspace/x")
    data.add_field("files", b"1", filename="one")
    data.add_field("files", b"2", filename="two")
    reply = await daemon.ask("POST", f"{box}/upload", data=data)
    assert reply.json["paths"] == ["/workspace/x/one", "/workspace/x/two"]


@pytest.mark.promise("P21")
async def test_a_path_field_after_the_files_is_used(daemon, box):
    await daemon.ask("POST", f"{box}/write", {"path": "a.txt", "text": "untouched"})
    reply = await send(daemon, box, form((b"a.txt", b"A"), path=b"deep/er", late=True))
    assert reply.json["paths"] == ["/workspace/deep/er/a.txt"]
    assert await read(daemon, box, "deep/er/a.txt") == b"A"
    assert await read(daemon, box, "a.txt") == b"untouched"
    names = [one["name"] for one in (await daemon.ask("GET", f"{box}/list")).json["entries"]]
    assert sorted(names) == ["a.txt", "deep"]
    nowhere = await send(daemon, box, form((b"n", b"N")))
    assert nowhere.json["paths"] == ["/workspace/n"]


async def test_a_refused_late_path_leaves_nothing(daemon, box):
    reply = await send(daemon, box, form((b"a", b"A"), path=b"/etc", late=True))
    assert reply.status == 403, reply.raw
    assert (await daemon.ask("GET", f"{box}/list")).json["entries"] == []


BAD_NAMES = [b"../x", b"/etc/x", b"a/../../x", b"..", b".", b"", b"a//b"]


@pytest.mark.promise("P21")
async def test_a_file_name_that_leads_outside_is_refused(daemon, box):
    for name in BAD_NAMES:
        reply = await send(daemon, box, form((name, b"x"), path=b"in"))
        assert (reply.status, reply.json["code"]) == (422, "INVALID_REQUEST"), reply.raw
        assert (await daemon.ask("GET", f"{box}/list")).json["entries"] == []


async def test_names_of_any_bytes_arrive_unchanged(daemon, box):
    reply = await send(daemon, box, form((b"\xff\xfe <b>", b"x"), path=b"in"))
    [entry] = reply.json["files"]
    found = await daemon.ask("GET", f"{box}/read", params={"path_b64": entry["path_b64"]})
    assert found.json["content"] == "x"


MALFORMED = [
    b"",
    b"--BOUNDARY--\r\n",
    b"garbage",
    form((b"a", b"A"))[:-20],
    form((b"a", b"A"), field="other"),
    form(path=b"x"),
    form((b"a", b"A"), path=b"x").replace(b'name="path"', b'name="way"'),
    form((b"a", b"A")).replace(b'name="file"; ', b""),
    b"--BOUNDARY\r\n" + b"x" * 100_000,
    b"--BOUNDARY\r\nA: " + b"x" * 100_000 + b"\r\n\r\nx\r\n--BOUNDARY--\r\n",
]


async def test_a_malformed_form_is_refused(daemon, box):
    for body in MALFORMED:
        reply = await send(daemon, box, body)
        assert reply.status in (400, 422), reply.raw
        assert reply.json["code"] == "INVALID_REQUEST"


@pytest.mark.promise("P21")
async def test_a_form_has_at_most_a_hundred_files_and_lists_those_written(daemon, box):
    many = [(b"%d" % number, b"") for number in range(101)]
    assert (await send(daemon, box, form(*many[:100], path=b"in"))).json["entries"] == 100
    reply = await send(daemon, box, form(*many, path=b"more"))
    assert (reply.status, reply.json["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert len(reply.json["details"]["written"]) == 100


def tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc"
            else:
                info.size = len(data)
            archive.addfile(info, None if data is None else io.BytesIO(data))
    return out.getvalue()


TAR = {"content-type": "application/x-tar"}


async def test_a_tar_is_unpacked_and_downloaded_again(daemon, box):
    data = os.urandom(MIB)
    body = tar(("a/b", data), ("c", b"C"))
    reply = await daemon.ask("POST", f"{box}/upload?path=t", data=pieces(body), headers=TAR)
    assert reply.status == 200, reply.raw
    assert reply.json["entries"] >= 2
    assert await read(daemon, box, "t/a/b") == data
    back = await daemon.ask("GET", f"{box}/download?path=t")
    assert back.headers["Content-Type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(back.raw)) as archive:
        [one] = [one for one in archive if one.name.endswith("a/b")]
        found = archive.extractfile(one)
        assert found is not None
        assert found.read() == data


async def test_a_tar_that_leads_outside_is_refused(real_daemon, real_box):
    for body in (tar(("../x", b"x")), tar(("/etc/x", b"x")), tar(("l", None), ("l/x", b"x"))):
        reply = await real_daemon.ask("POST", f"{real_box}/upload", data=body, headers=TAR)
        assert (reply.status, reply.json["code"]) == (403, "FORBIDDEN"), reply.raw
    cut = tar(("x", b"x" * 10_000))[:3000]
    reply = await real_daemon.ask("POST", f"{real_box}/upload?path=cut", data=cut, headers=TAR)
    assert reply.status in (400, 409, 422), reply.raw
    assert (await real_daemon.ask("GET", f"{real_box}/stat?path=cut/x")).status == 404


async def test_a_body_of_another_content_type_is_refused(daemon, box):
    for kind in ("text/plain", "application/json", "application/gzip", ""):
        reply = await daemon.ask("POST", f"{box}/upload", data=b"x", headers={"content-type": kind})
        assert reply.status == 415, kind


@pytest.mark.promise("P19")
@pytest.mark.parametrize("how", ["chunked", "length", "form"])
async def test_a_client_that_disconnects_during_an_upload_leaves_the_old_file(
    real_daemon, real_box, how
):
    daemon, box = real_daemon, real_box
    await daemon.ask("POST", f"{box}/write", {"path": "f", "text": "old"})
    data = b"n" * (2 * MIB)
    head = {"chunked": "Transfer-Encoding: chunked", "length": "Content-Length: 9000000"}
    line = f"PUT {box}/file?path=f HTTP/1.1\r\nHost: localhost\r\n{head.get(how)}\r\n\r\n"
    body = b"%x\r\n%s\r\n" % (len(data), data) if how == "chunked" else data
    if how == "form":
        body = form((b"f", data), path=b"/workspace")[:-30]
        line = (
            f"POST {box}/upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n"
            f"Content-Type: {FORM['content-type']}\r\n\r\n"
        )
    _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(line.encode() + body)
    await writer.drain()
    await asyncio.sleep(0.2)
    assert await read(daemon, box, "f") == b"old"
    writer.transport.abort()
    for _ in range(int(PATIENCE_S / 0.05)):
        names = [one["name"] for one in (await daemon.ask("GET", f"{box}/list")).json["entries"]]
        if names == ["f"]:
            break
        await asyncio.sleep(0.05)
    assert names == ["f"]
    assert await read(daemon, box, "f") == b"old"


async def test_a_body_that_never_arrives_ends_the_request(engine):
    async with serving(engine, rules=HttpLimits(upload_timeout_s=0.3)) as daemon:
        box = f"/v1/sessions/{await daemon.session()}/fs"
        reply = await daemon.ask("PUT", f"{box}/file?path=f", data=pieces(b"a", b"b", pause=1.0))
        assert reply.status == 408
        assert (await daemon.ask("GET", f"{box}/stat?path=f")).status == 404


@pytest.mark.promise("P21")
@pytest.mark.long(reason="it waits for seconds")
async def test_a_streamed_body_may_pause_longer_than_json_but_not_forever(engine):
    rules = HttpLimits(body_timeout_s=0.1, upload_timeout_s=PATIENCE_S)
    async with serving(engine, rules=rules) as daemon:
        box = f"/v1/sessions/{await daemon.session()}/fs"
        slow = await daemon.ask("PUT", f"{box}/file?path=f", data=pieces(*[b"a"] * 5, pause=0.2))
        assert slow.status == 200
        assert await read(daemon, box, "f") == b"aaaaa"
        late = await daemon.ask(
            "POST", f"{box}/write", data=pieces(b"{", b"}", pause=0.3), headers=JSON
        )
        assert late.status == 408
    async with serving(engine, rules=HttpLimits(upload_timeout_s=0.4)) as daemon:
        drips = await daemon.ask("PUT", f"{box}/file?path=f", data=pieces(*[b"b"] * 40, pause=0.2))
        assert drips.status == 408
        assert await read(daemon, box, "f") == b"aaaaa"


async def test_a_body_over_the_limit_is_refused_and_leaves_nothing(engine):
    async with serving(engine, rules=HttpLimits(max_upload_bytes=MIB)) as daemon:
        box = f"/v1/sessions/{await daemon.session()}/fs"
        told = await daemon.ask("PUT", f"{box}/file?path=f", data=io.BytesIO(b"x" * (MIB + 1)))
        assert told.status == 413
        untold = await daemon.ask("PUT", f"{box}/file?path=f", data=pieces(b"x" * MIB, b"x"))
        assert untold.status == 413
        assert (await daemon.ask("GET", f"{box}/stat?path=f")).status == 404


@pytest.mark.promise("P19")
async def test_a_file_over_the_quota_is_refused_and_leaves_the_old_one(real_daemon):
    the_id = await real_daemon.session(limits={"workspace_mb": 16})
    box = f"/v1/sessions/{the_id}/fs"
    await real_daemon.ask("POST", f"{box}/write", {"path": "f", "text": "old"})

    async def much():
        for _ in range(40):
            yield bytes(MIB)

    reply = await real_daemon.ask("PUT", f"{box}/file?path=f", data=much())
    assert (reply.status, reply.json["code"]) == (507, "QUOTA_EXCEEDED")
    assert await read(real_daemon, box, "f") == b"old"
    again = await real_daemon.ask("POST", f"{box}/write", {"path": "g", "text": "room"})
    assert again.status == 200


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has workspaces with ext4")
async def test_flush_false_answers_before_the_file_is_on_disk(real_daemon):
    the_id = await real_daemon.session()
    box, data = f"/v1/sessions/{the_id}/fs", delayed_blocks.DATA
    ask = real_daemon.ask
    names = ["json", "raw", "early", "late", "tar"]

    async def unflushed(flush: bool) -> list[str]:
        at, query = str(flush), f"flush={str(flush).lower()}"
        body = {"path": f"{at}/json", "contents": data.decode(), "flush": flush}
        early, late = (
            form((b"early", data), path=at.encode()),
            form((b"late", data), path=at.encode(), late=True),
        )
        replies = [
            await ask("POST", f"{box}/write", body),
            await ask("PUT", f"{box}/file?path={at}/raw&{query}", data=data),
            await send(real_daemon, box, early, f"?{query}"),
            await send(real_daemon, box, late, f"?{query}"),
            await ask(
                "POST", f"{box}/upload?path={at}&{query}", data=tar(("tar", data)), headers=TAR
            ),
        ]
        assert [reply.status for reply in replies] == [200] * 5, [reply.raw for reply in replies]
        cmd = delayed_blocks.command(*(f"{at}/{name}" for name in names))
        result = (await ask("POST", f"/v1/sessions/{the_id}/exec", {"cmd": cmd})).json
        assert result["stderr"] == ""
        return [name.removeprefix(f"{at}/") for name in result["stdout"].split()]

    assert await unflushed(True) == []
    # Another program may have flushed all file systems meanwhile.
    for _ in range(5):
        if await unflushed(False) == names:
            break
    else:
        pytest.fail("the files were on disk each time")
    refused = await ask("PUT", f"{box}/file?path=x&flush=maybe", data=data)
    assert (refused.status, refused.json["details"]["field"]) == (422, "flush")
