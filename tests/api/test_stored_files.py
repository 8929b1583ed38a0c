"""The file store over HTTP: forms and plain bodies, ranges, tenants, limits."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time

import aiohttp
import pytest

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.store.record_rules import FileRules
from sandkasten_server.daemon.persistent_stores import open_books
from sandkasten_server.records.content_files import Content
from sandkasten_server.records.file_store import DiskFileStore
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.patience import PATIENCE_S

DATA = os.urandom(300_000)
SHA256 = "sha256:" + hashlib.sha256(DATA).hexdigest()


@pytest.fixture
async def daemon(engine, tmp_path):
    """A daemon on loopback without keys, used as the operator."""
    plain = settings(ServerAddress(str(tmp_path / "data"), "unisolated"))
    (tmp_path / "data").mkdir(exist_ok=True)
    async with (
        open_books(plain, SystemClock()) as books,
        serving(engine, journal=books.journal, keys=books.keys, files=books.files) as one,
    ):
        assert isinstance(books.files, DiskFileStore)
        books.files.rules = FileRules(max_bytes=1_000_000, max_total_bytes=2_000_000)
        yield one


def form(data: bytes = DATA, name: str = "data.bin", kind: str = "image/png", **fields: str):
    body = aiohttp.FormData()
    for field, value in fields.items():
        body.add_field(field, value)
    body.add_field("file", data, filename=name, content_type=kind)
    return body


async def put(daemon, data: bytes = DATA, query: str = "", **more):
    reply = await daemon.ask("POST", f"/v1/files{query}", data=data, **more)
    assert reply.status == 201, reply.raw
    return reply.json


async def test_a_form_is_stored_and_described_completely(daemon):
    before = time.time()
    reply = await daemon.ask(
        "POST", "/v1/files", data=form(metadata='{"by": "me"}', ttl_seconds="60")
    )
    assert reply.status == 201, reply.raw
    body = reply.json
    assert body["key"] == body["file_key"]
    assert body["key"].startswith("f_")
    assert (body["size_bytes"], body["content_type"], body["checksum"]) == (
        len(DATA),
        "image/png",
        SHA256,
    )
    assert body["metadata"] == {"by": "me"}
    # The time to live counts from the request, which is before the file is complete.
    assert before + 60 <= body["expires_at_unix"] <= body["created_at_unix"] + 60
    listed = await daemon.ask("GET", "/v1/files")
    assert listed.json == {"files": [body], "count": 1, "next": None}
    for key in (body["key"], "files/" + body["key"]):
        got = await daemon.ask("GET", f"/v1/files/{key}")
        assert (got.status, got.raw) == (200, DATA)
        assert got.headers["Content-Type"] == "image/png"
        assert got.headers["Content-Disposition"].startswith("attachment")


async def test_a_plain_body_is_stored_under_a_chosen_key(daemon):
    body = await put(
        daemon, b"hello", "?key=runs/7/output/a b.txt", headers={"Content-Type": "text/plain"}
    )
    assert (body["key"], body["content_type"]) == ("runs/7/output/a b.txt", "text/plain")
    got = await daemon.ask("GET", "/v1/files/runs/7/output/a%20b.txt")
    assert got.raw == b"hello"
    taken = await daemon.ask("POST", "/v1/files?key=runs/7/output/a b.txt", data=b"x")
    assert (taken.status, taken.json["code"]) == (409, "CONFLICT")
    await put(daemon, b"newer", "?key=runs/7/output/a b.txt&overwrite=true")
    assert (await daemon.ask("GET", "/v1/files/runs/7/output/a%20b.txt")).raw == b"newer"
    assert (await daemon.ask("POST", "/v1/files?key=empty", data=b"")).status == 201
    assert (await daemon.ask("GET", "/v1/files/empty")).raw == b""


async def test_stored_files_support_ranges_head_and_conditional_requests(daemon):
    key = (await put(daemon))["key"]
    head = await daemon.ask("HEAD", f"/v1/files/{key}")
    assert (head.status, head.raw, head.headers["Content-Length"]) == (200, b"", str(len(DATA)))
    assert head.headers["X-Checksum"] == SHA256
    for asked, first, last in (
        ("bytes=0-9", 0, 9),
        ("bytes=299990-", 299_990, 299_999),
        ("bytes=-5", 299_995, 299_999),
    ):
        part = await daemon.ask("GET", f"/v1/files/{key}", headers={"Range": asked})
        assert (part.status, part.raw) == (206, DATA[first : last + 1])
        assert part.headers["Content-Range"] == f"bytes {first}-{last}/{len(DATA)}"
    behind = await daemon.ask("GET", f"/v1/files/{key}", headers={"Range": "bytes=300000-"})
    assert behind.status == 416
    same = await daemon.ask(
        "GET", f"/v1/files/{key}", headers={"If-None-Match": head.headers["ETag"]}
    )
    assert (same.status, same.raw) == (304, b"")


async def test_an_oversized_stored_file_is_refused_and_leaves_nothing(daemon, tmp_path):
    large = await daemon.ask("POST", "/v1/files", data=os.urandom(1_000_001))
    assert (large.status, large.json["code"]) == (413, "PAYLOAD_TOO_LARGE")
    in_form = await daemon.ask("POST", "/v1/files", data=form(os.urandom(1_000_001)))
    assert in_form.status == 413
    await put(daemon, os.urandom(1_000_000))
    await put(daemon, os.urandom(900_000))
    full = await daemon.ask("POST", "/v1/files", data=os.urandom(200_000))
    assert (full.status, full.json["code"]) == (507, "QUOTA_EXCEEDED")
    assert (await daemon.ask("GET", "/v1/files")).json["count"] == 2
    kept = [p for p in (tmp_path / "data" / "files").rglob("*") if p.is_file()]
    assert len(kept) == 2


@pytest.mark.promise("P19")
async def test_a_client_that_disconnects_during_an_upload_leaves_nothing(daemon, tmp_path):
    async def half():
        yield DATA
        await asyncio.sleep(600)

    task = asyncio.ensure_future(daemon.ask("POST", "/v1/files", data=half()))
    making = tmp_path / "data" / "files" / "making"
    for _ in range(int(PATIENCE_S / 0.01)):
        await asyncio.sleep(0.01)
        if [p for p in making.iterdir() if p.stat().st_size]:
            break
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(int(PATIENCE_S / 0.01)):
        await asyncio.sleep(0.01)
        if not list(making.iterdir()):
            break
    assert list(making.iterdir()) == []
    assert (await daemon.ask("GET", "/v1/files")).json["count"] == 0


@pytest.mark.parametrize(
    "query",
    [
        "?key=/absolute",
        "?key=a/../b",
        "?key=a//b",
        "?key=.",
        "?key=" + "k" * 513,
        "?key=a%00b",
        "?key=a%0Ab",
        "?ttl_seconds=-1",
        "?ttl_seconds=nan",
        "?metadata=[]",
        "?metadata=%7B%22a%22:1%7D",
        "?metadata=" + "[" * 5000,
        "?checksum=short",
        "?unknown=1",
        "?content_type=%0d%0aX:1",
        "?checksum=" + "0" * 64,
    ],
)
async def test_an_invalid_store_request_is_refused(daemon, query):
    refused = await daemon.ask("POST", f"/v1/files{query}", data=b"x")
    assert refused.status in (400, 422), refused.raw
    assert refused.json["code"] == "INVALID_REQUEST"
    assert (await daemon.ask("GET", "/v1/files")).json["count"] == 0


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"--b\r\nnonsense"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--\r\n',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nabc',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nabc\r\n'
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="g"\r\n\r\nabc\r\n--b--',
        ),
    ],
)
async def test_an_invalid_form_stores_nothing(daemon, kind, raw):
    refused = await daemon.ask("POST", "/v1/files", data=raw, headers={"Content-Type": kind})
    assert refused.status in (400, 422), refused.raw
    assert (await daemon.ask("GET", "/v1/files")).json["count"] == 0


@pytest.mark.parametrize(
    "key", ["f_unknown", "a/../b", "%2e%2e/%2e%2e/etc/passwd", "a%00b", "x" * 2000]
)
async def test_an_unknown_or_malformed_key_is_404(daemon, key):
    for method in ("GET", "HEAD", "DELETE"):
        assert (await daemon.ask(method, f"/v1/files/{key}")).status == 404


async def test_lists_are_paged_and_filtered_by_prefix(daemon):
    for number in range(5):
        await put(daemon, b"x", f"?key=runs/{number}/x")
    first = (await daemon.ask("GET", "/v1/files?limit=3")).json
    assert [f["key"] for f in first["files"]] == ["runs/0/x", "runs/1/x", "runs/2/x"]
    rest = (await daemon.ask("GET", f"/v1/files?limit=3&cursor={first['next']}")).json
    assert [f["key"] for f in rest["files"]] == ["runs/3/x", "runs/4/x"]
    assert rest["next"] is None
    assert (await daemon.ask("GET", "/v1/files?prefix=runs/4")).json["count"] == 1


async def test_a_deleted_file_is_gone_with_its_content(daemon, tmp_path):
    one, two = await put(daemon), await put(daemon)
    assert (await daemon.ask("DELETE", f"/v1/files/{one['key']}")).json == {
        "ok": True,
        "key": one["key"],
    }
    assert (await daemon.ask("GET", f"/v1/files/{one['key']}")).status == 404
    assert (await daemon.ask("GET", f"/v1/files/{two['key']}")).raw == DATA
    await daemon.ask("DELETE", f"/v1/files/{two['key']}")
    assert [p for p in (tmp_path / "data" / "files").rglob("*") if p.is_file()] == []


async def test_tenants_have_their_own_keys_and_their_own_quota(engine, tmp_path):
    async with booked(engine, tmp_path / "data") as daemon:
        a = await new_key(daemon, tenant="a", quota={"max_disk_bytes": 1000})
        b = await new_key(daemon, tenant="b")
        await put(daemon, b"of a", "?key=same", headers=a)
        await put(daemon, b"of b", "?key=same", headers=b)
        assert (await daemon.ask("GET", "/v1/files/same", headers=a)).raw == b"of a"
        assert (await daemon.ask("GET", "/v1/files/same", headers=AS_OPERATOR)).status == 404
        await daemon.ask("DELETE", "/v1/files/same", headers=a)
        assert (await daemon.ask("GET", "/v1/files/same", headers=b)).raw == b"of b"
        over = await daemon.ask("POST", "/v1/files", data=b"x" * 1001, headers=a)
        assert (over.status, over.json["details"]["quota"]) == (507, "disk")


@pytest.mark.promise("P46")
async def test_a_tenants_sandboxes_and_files_share_its_disk(engine, tmp_path):
    mib = 1 << 20
    async with booked(engine, tmp_path / "data") as daemon:
        key = await new_key(
            daemon, tenant="a", quota={"max_disk_bytes": 2 * mib}, scopes=["sessions", "files"]
        )
        made = await daemon.ask(
            "POST", "/v1/sessions", {"limits": {"workspace_mb": 1}}, headers=key
        )
        assert made.status == 201, made.raw
        at = f"/v1/sessions/{made.json['id']}"
        await put(daemon, b"x" * (mib // 2), headers=key)
        over = await daemon.ask("POST", "/v1/files", data=b"x" * (mib // 2 + 1), headers=key)
        assert (over.status, over.json["details"]["quota"]) == (507, "disk")
        await engine.files.write(made.json["id"], "big", b"x" * (mib // 2 + 1))
        out = await daemon.ask("POST", f"{at}/files/publish", {"source": "big"}, headers=key)
        assert (out.status, out.json["details"]["quota"]) == (507, "disk")
        await put(daemon, b"x" * (mib // 2), headers=key)


async def test_a_sparse_file_is_refused_before_a_byte_is_stored(daemon, monkeypatch):
    """A terabyte of holes takes no space inside, and must take none here."""
    made = await daemon.ask("POST", "/v1/sessions", {})
    at = f"/v1/sessions/{made.json['id']}"
    ran = await daemon.ask("POST", f"{at}/exec", {"cmd": "truncate -s 1T big"})
    assert ran.json["exit_code"] == 0, ran.json
    received: list[object] = []
    monkeypatch.setattr(Content, "receive", lambda _, data, __: received.append(data))
    out = await daemon.ask("POST", f"{at}/files/publish", {"source": "big"})
    assert (out.status, out.json["code"], received) == (413, "PAYLOAD_TOO_LARGE", [])


async def test_a_file_is_staged_into_a_session_and_published(daemon):
    await check_stage_and_publish(daemon)


async def test_a_file_is_staged_into_a_real_sandbox_and_published(real_engine, tmp_path):
    plain = settings(ServerAddress(str(tmp_path / "data"), "local"))
    async with (
        open_books(plain, SystemClock()) as books,
        serving(real_engine, journal=books.journal, files=books.files) as daemon,
    ):
        await check_stage_and_publish(daemon)


async def check_stage_and_publish(daemon) -> None:
    session = await daemon.session()
    at = f"/v1/sessions/{session}/files"
    key = (await put(daemon))["key"]
    staged = await daemon.ask(
        "POST", f"{at}/stage", {"file_key": key, "destination": "in/data.png"}
    )
    assert staged.status == 200, staged.raw
    assert staged.json == {
        "ok": True,
        "path": "/workspace/in/data.png",
        "size_bytes": len(DATA),
        "file_key": key,
        "checksum": SHA256,
    }
    inside = await daemon.server.engine.files.read(session, "in/data.png")
    assert inside.data == DATA
    out = await daemon.ask("POST", f"{at}/publish", {"source": "in/data.png"})
    assert out.status == 200, out.raw
    assert (out.json["ok"], out.json["checksum"], out.json["size_bytes"]) == (
        True,
        SHA256,
        len(DATA),
    )
    assert out.json["content_type"] == "image/png"
    named = await daemon.ask(
        "POST", f"{at}/publish", {"source": "in/data.png", "file_key": "runs/1/output/data.png"}
    )
    assert (await daemon.ask("GET", f"/v1/files/{named.json['file_key']}")).raw == DATA
    for verb, body, status in (
        ("stage", {"file_key": "f_missing", "destination": "x"}, 404),
        ("stage", {"file_key": key, "destination": "/etc/x"}, 403),
        ("publish", {"source": "missing"}, 404),
        ("publish", {"source": "in"}, 409),
        ("publish", {"source": "in/data.png", "checksum": "0" * 64}, 400),
        ("stage", {"file_key": key}, 422),
    ):
        refused = await daemon.ask("POST", f"{at}/{verb}", body)
        assert refused.status == status, (verb, body, refused.raw)


@pytest.mark.promise("P19")
async def test_damaged_content_is_never_staged(daemon, tmp_path):
    session = await daemon.session()
    key = (await put(daemon))["key"]
    digest = SHA256.removeprefix("sha256:")
    path = tmp_path / "data" / "files" / digest[:2] / digest
    path.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    at = f"/v1/sessions/{session}"
    refused = await daemon.ask("POST", f"{at}/files/stage", {"file_key": key, "destination": "x"})
    assert (refused.status, "damaged" in refused.json["message"]) == (500, True)
    told = await daemon.ask("POST", f"{at}/exec", {"cmd": ["cat", "/workspace/x"]})
    assert told.json["exit_code"] != 0
