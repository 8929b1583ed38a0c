"""File requests as JSON: every spelling of a write, exact reads and names, typed refusals."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from io import BytesIO
from urllib.parse import quote

import pytest

MIB = 1 << 20


@pytest.fixture
async def box(daemon):
    """The path of a session's files."""
    return f"/v1/sessions/{await daemon.session()}/fs"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


SPELLINGS = [
    {"contents": "grüß"},
    {"text": "grüß"},
    {"content": "grüß"},
    {"content": "grüß", "encoding": "utf-8"},
    {"content": b64("grüß".encode()), "encoding": "base64"},
    {"contents_b64": b64("grüß".encode())},
    {"content_base64": b64("grüß".encode())},
]


@pytest.mark.promise("P21")
async def test_each_spelling_of_a_write_is_accepted(daemon, box):
    for given in SPELLINGS:
        written = await daemon.ask(
            "POST", f"{box}/write", {"path": "a/b.txt", "mode": "0600", **given}
        )
        assert written.status == 200, written.raw
        assert written.json["ok"] is True
        assert written.json["path"] == "/workspace/a/b.txt"
        assert written.json["size_bytes"] == written.json["size"] == 6
        assert written.json["mode"] & 0o777 == 0o600
        read = (await daemon.ask("GET", f"{box}/read?path=/work/a/b.txt")).json
        assert read["content"] == read["contents"] == "grüß"
        assert read["content_base64"] == b64("grüß".encode())
        assert (read["encoding"], read["truncated"], read["size_bytes"]) == ("utf-8", False, 6)


async def test_an_empty_file_can_be_written_and_read(daemon, box):
    for given in ({"contents": ""}, {"content_base64": ""}):
        reply = await daemon.ask("POST", f"{box}/write", {"path": "empty", **given})
        assert (reply.status, reply.json["size_bytes"]) == (200, 0)
    read = (await daemon.ask("GET", f"{box}/read?path=empty")).json
    assert (read["content"], read["content_base64"], read["truncated"]) == ("", "", False)


UNCLEAR: list[dict[str, object]] = [
    {},
    {"text": "a", "contents": "a"},
    {"contents": "a", "encoding": "utf-8"},
    {"content": "a", "encoding": "latin-1"},
    {"contents_b64": "%%"},
    {"contents": "a", "mode": "9"},
    {"contents": "a", "mode": True},
    {"contents": "a", "mode": 0o10000},
    {"contents": "a", "overwrite": "yes"},
    {"contents": "a", "more": 1},
]


@pytest.mark.promise("P21")
async def test_an_ambiguous_write_is_refused_and_writes_nothing(daemon, box):
    for given in UNCLEAR:
        body: dict[str, object] = {"path": "x", **given}
        reply = await daemon.ask("POST", f"{box}/write", body)
        assert reply.status in (400, 422), reply.raw
        assert reply.json["code"] == "INVALID_REQUEST"
        assert (await daemon.ask("GET", f"{box}/stat?path=x")).status == 404


async def test_overwrite_false_keeps_the_existing_file(daemon, box):
    await daemon.ask("POST", f"{box}/write", {"path": "x", "text": "old"})
    again = await daemon.ask(
        "POST", f"{box}/write", {"path": "x", "text": "new", "overwrite": False}
    )
    assert (again.status, again.json["code"]) == (409, "FILE_EXISTS")
    assert (await daemon.ask("GET", f"{box}/read?path=x")).json["content"] == "old"


async def _write_json(daemon, box, path, data):
    # In a thread: so large a text takes a while, and the daemon shares this loop.
    encode = partial(json.dumps, {"path": path, "contents_b64": b64(data)})
    body = BytesIO((await asyncio.to_thread(encode)).encode())
    headers = {"content-type": "application/json"}
    return await daemon.ask("POST", f"{box}/write", data=body, headers=headers)


@pytest.mark.promise("P21")
async def test_a_json_body_is_limited_to_exactly_ten_mebibytes(daemon, box):
    data = b"\xff" * (10 * MIB)
    assert (await _write_json(daemon, box, "big", data)).status == 200
    read = await daemon.ask("GET", f"{box}/read?path=big")
    assert base64.b64decode(read.json["content_base64"]) == data
    refused = await _write_json(daemon, box, "bigger", data + b"\xff")
    assert (refused.status, refused.json["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert (await daemon.ask("GET", f"{box}/stat?path=bigger")).status == 404
    await daemon.ask("PUT", f"{box}/file?path=bigger", data=BytesIO(data + b"\xff"))
    whole = await daemon.ask("GET", f"{box}/read?path=bigger")
    assert (whole.status, whole.json["code"]) == (413, "PAYLOAD_TOO_LARGE")
    part = (await daemon.ask("GET", f"{box}/read?path=bigger&max_bytes=2&offset=3")).json
    assert base64.b64decode(part["content_base64"]) == b"\xff\xff"
    assert (part["truncated"], part["next_offset"]) == (True, 5)
    assert part["size_bytes"] == 10 * MIB + 1


@pytest.mark.promise("P21")
async def test_a_partial_read_of_text_ends_between_characters(daemon, box):
    await daemon.ask("POST", f"{box}/write", {"path": "t", "text": "aß"})
    part = (await daemon.ask("GET", f"{box}/read?path=t&max_bytes=2")).json
    assert (part["content"], part["next_offset"], part["truncated"]) == ("a", 1, True)
    rest = (await daemon.ask("GET", f"{box}/read?path=t&offset=1")).json
    assert (rest["content"], rest["truncated"]) == ("ß", False)
    half = (await daemon.ask("GET", f"{box}/read?path=t&offset=1&max_bytes=1")).json
    assert half["encoding"] == "base64"
    assert base64.b64decode(half["content_base64"]) == b"\xc3"


@pytest.mark.promise("P21")
async def test_bytes_that_are_not_utf8_are_returned_as_base64(daemon, box):
    await daemon.ask("POST", f"{box}/write", {"path": "b", "contents_b64": b64(b"\xff\x00")})
    read = (await daemon.ask("GET", f"{box}/read?path=b")).json
    assert read["contents_b64"] == read["content_base64"] == b64(b"\xff\x00")
    assert read["encoding"] == "base64"
    assert "content" not in read
    as_text = await daemon.ask("GET", f"{box}/read?path=b&encoding=utf-8")
    assert (as_text.status, as_text.json["details"]["field"]) == (422, "encoding")
    await daemon.ask("POST", f"{box}/write", {"path": "t", "text": "text"})
    as_b64 = (await daemon.ask("GET", f"{box}/read?path=t&encoding=base64")).json
    assert as_b64["contents_b64"] == b64(b"text")


NAMES = [
    b"new\nline",
    b"-rf",
    b"<script>alert(1)<",
    b"\xe2\x80\xaetxt.exe",
    b"not utf-8 \xff\xfe",
    b'quote"\\ %2e%2e',
    b"\xef\xbf\xbd",
]


@pytest.mark.promise("P20")
async def test_every_file_name_survives_the_round_trip(daemon, box):
    for name in NAMES:
        raw = b"/workspace/" + name
        made = await daemon.ask(
            "POST", f"{box}/write", {"path_b64": b64(raw), "text": "x", "overwrite": False}
        )
        assert made.status == 200, made.raw

        def exact(entry, field):
            return (
                base64.b64decode(entry[field + "_b64"])
                if field + "_b64" in entry
                else (entry[field].encode())
            )

        assert exact(made.json, "path") == raw
        [entry] = (await daemon.ask("GET", f"{box}/list")).json["entries"]
        assert (exact(entry, "path"), exact(entry, "name")) == (raw, name)
        ref = (
            f"path_b64={quote(entry['path_b64'])}"
            if "path_b64" in entry
            else f"path={quote(entry['path'], safe='')}"
        )
        assert (await daemon.ask("GET", f"{box}/read?{ref}")).json["content"] == "x"
        gone = await daemon.ask("DELETE", f"{box}?{ref}")
        assert (gone.status, gone.json["removed"]) == (200, 1)
        assert (await daemon.ask("GET", f"{box}/list")).json["entries"] == []


@pytest.mark.promise("P20")
async def test_a_name_that_is_not_utf8_is_refused_in_a_query_and_not_altered(daemon, box):
    from yarl import URL

    url = URL(f"{daemon.url}{box}/stat?path=%ff", encoded=True)
    async with daemon.http.get(url) as reply:
        assert reply.status == 400
        assert (await reply.json())["code"] == "INVALID_REQUEST"
    both = await daemon.ask("GET", f"{box}/stat?path=a&path_b64=YQ")
    assert both.status == 422


async def test_an_empty_cursor_is_refused_as_the_document_says(daemon, box):
    assert (await daemon.ask("GET", f"{box}/list?path=.&cursor=")).status == 422


async def test_a_directory_is_listed_page_by_page(daemon, box):
    for number in range(7):
        await daemon.ask("POST", f"{box}/write", {"path": f"d/{number}/f", "text": ""})
    found, cursor, pages = [], "", 0
    while True:
        query = f"path=d&recursive=true&limit=5{cursor}"
        page = (await daemon.ask("GET", f"{box}/list?{query}")).json
        found += [entry["path"] for entry in page["entries"]]
        pages += 1
        assert page["truncated"] is (page["next_cursor"] is not None)
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert pages == 3
    assert sorted(found) == sorted(
        [f"/workspace/d/{n}" for n in range(7)] + [f"/workspace/d/{n}/f" for n in range(7)]
    )
    entry = page["entries"][0]
    assert {"path", "name", "type", "is_dir", "size", "size_bytes", "mode", "mtime_unix"} <= set(
        entry
    )
    assert (await daemon.ask("GET", f"{box}/list?limit=0")).status == 422
    assert (await daemon.ask("GET", f"{box}/list?cursor=%25")).status == 422


async def test_directories_are_created_and_entries_moved_and_deleted(daemon, box):
    made = await daemon.ask("POST", f"{box}/mkdir", {"path": "a/b"})
    assert (made.status, made.json["is_dir"]) == (200, True)
    again = await daemon.ask("POST", f"{box}/mkdir", {"path": "a/b", "exist_ok": False})
    assert (again.status, again.json["code"]) == (409, "FILE_EXISTS")
    await daemon.ask("POST", f"{box}/write", {"path": "a/b/f", "text": "f"})
    moved = await daemon.ask("POST", f"{box}/move", {"source": "a/b/f", "destination": "g"})
    assert (moved.status, moved.json["path"]) == (200, "/workspace/g")
    assert (await daemon.ask("GET", f"{box}/stat?path=a/b/f")).json["code"] == "FILE_NOT_FOUND"
    full = await daemon.ask("POST", f"{box}/delete", {"path": "a"})
    assert full.status == 409
    gone = await daemon.ask("POST", f"{box}/delete", {"path": "a", "recursive": True})
    assert gone.json == {
        "ok": True,
        "path": "/workspace/a",
        "deleted": "/workspace/a",
        "removed": 2,
    }
    assert (await daemon.ask("DELETE", f"{box}?path=a")).status == 404
    assert (await daemon.ask("DELETE", f"{box}?path=a&missing_ok=true")).json["removed"] == 0
    assert (await daemon.ask("DELETE", f"{box}?path=/workspace&recursive=true")).status == 400
    assert (await daemon.ask("DELETE", box)).status == 422


AWAY = [
    ("..%2f..%2fetc%2fpasswd", 400),
    ("%2e%2e/%2e%2e/etc/passwd", 400),
    ("/workspace/../etc/passwd", 400),
    ("", 400),
    ("..", 400),
    ("a%00b", 400),
    ("x" * 5000, 400),
    ("/etc/passwd", 403),
    ("%2e%2e%252fx", 404),
    ("nothing", 404),
]


@pytest.mark.promise("P18")
async def test_a_path_that_leads_outside_is_refused_in_any_spelling(daemon, box):
    for path, status in AWAY:
        from yarl import URL

        for verb in ("read", "stat", "list", "download", "watch"):
            url = URL(f"{daemon.url}{box}/{verb}?path={path}", encoded=True)
            async with daemon.http.get(url) as reply:
                assert reply.status == status, (verb, await reply.read())


async def test_a_write_outside_the_writable_directories_is_refused(daemon, box):
    for path in ("/etc/x", "/usr/x", "/x"):
        reply = await daemon.ask("POST", f"{box}/write", {"path": path, "text": ""})
        assert reply.status == 403, reply.raw
    assert (await daemon.ask("POST", f"{box}/write", {"path": "/tmp/x", "text": ""})).status == 200


async def test_files_of_an_unknown_or_a_foreign_session_are_not_found(daemon, engine):
    from sandkasten.model.sandbox.sandbox_values import CreateRequest

    foreign = await engine.create(CreateRequest(tenant="other"))
    for the_id in ("sbx_0123456789abcdef", foreign.id):
        for verb in ("read?path=x", "list", "stat?path=x", "download?path=x", "watch"):
            reply = await daemon.ask("GET", f"/v1/sessions/{the_id}/fs/{verb}")
            assert (reply.status, reply.json["code"]) == (404, "SESSION_NOT_FOUND"), verb
        body = {"path": "x", "text": ""}
        reply = await daemon.ask("POST", f"/v1/sessions/{the_id}/fs/write", body)
        assert reply.json["code"] == "SESSION_NOT_FOUND"
