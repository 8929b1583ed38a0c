"""Files through the tools, and between the sandbox and the file store."""

from __future__ import annotations

import base64
import hashlib
import os

import pytest

from sandkasten.model.access.tenancy import TenantQuota

LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"


@pytest.mark.parametrize(
    "content",
    [
        {"contents": "é\n"},
        {"text": "é\n"},
        {"content": "é\n"},
        {"content": "é\n", "encoding": "utf-8"},
        {"content": "w6kK", "encoding": "base64"},
        {"contents_b64": "w6kK"},
        {"content_base64": "w6kK"},
    ],
)
async def test_every_spelling_writes_the_same_file(tools, content):
    written = await tools.call("fs_write", path="a/b/x", **content)
    assert written == {
        "sandbox_id": written["sandbox_id"],
        "session_id": written["sandbox_id"],
        "ok": True,
        "path": "/workspace/a/b/x",
        "size_bytes": 3,
    }
    assert (await tools.call("exec", cmd="cat a/b/x"))["stdout"] == "é\n"


async def test_three_ways_to_write_a_path_name_one_file(tools):
    for path in ("x", "/work/x", "/workspace/x", "./x"):
        assert (await tools.call("fs_write", path=path, text=path))["path"] == "/workspace/x"
        for other in ("x", "/work/x", "/workspace/x"):
            answer = await tools.call("fs_read", path=other)
            assert (answer["path"], answer["contents"]) == ("/workspace/x", path)
    assert len((await tools.call("fs_list"))["entries"]) == 1


async def test_overwrite_is_enforced_and_mode_is_applied(tools):
    assert (await tools.call("fs_write", path="x", text="1", mode="0755", overwrite=False))["ok"]
    refused = await tools.call("fs_write", path="x", text="2", overwrite=False)
    assert refused["code"] == "FILE_EXISTS"
    assert (await tools.call("fs_read", path="x"))["contents"] == "1"
    assert (await tools.call("fs_list"))["entries"][0]["mode"] == "0755"
    assert (await tools.call("fs_write", path="x", text="2", mode=0o600))["ok"]
    assert (await tools.call("fs_list"))["entries"][0]["mode"] == "0600"


async def test_invalid_base64_and_invalid_unicode_are_refused(tools):
    assert (await tools.call("fs_write", path="x", contents_b64="!"))["code"] == "INVALID_REQUEST"
    assert (await tools.call("fs_write", path="x", text="\ud800"))["code"] == "INVALID_REQUEST"


async def test_a_read_reports_the_true_size_and_the_truncation(tools):
    await tools.call(
        "exec", cmd="head -c 300000 /dev/zero | tr '\\0' x > big; printf '\\377' > raw"
    )
    big = await tools.call("fs_read", path="big")
    assert (big["size_bytes"], big["truncated"], len(big["contents"])) == (300_000, True, 262_144)
    assert (big["encoding"], big["content"]) == ("utf-8", big["contents"])
    raw = await tools.call("fs_read", path="raw")
    assert (raw["encoding"], raw["contents_b64"], raw["content_base64"]) == (
        "base64",
        "/w==",
        "/w==",
    )
    assert "contents" not in raw
    refused = await tools.call("fs_read", path="raw", encoding="utf-8")
    assert (refused["code"], refused["message"]) == (
        "INVALID_REQUEST",
        "the file is not valid UTF-8",
    )
    plain = await tools.call("fs_read", path="big", encoding="base64", max_bytes=2)
    assert base64.b64decode(plain["contents_b64"]) == b"xx"


async def test_a_truncated_read_ends_between_characters(tools):
    await tools.call("fs_write", path="x", text="aé")
    cut = await tools.call("fs_read", path="x", max_bytes=2)
    assert (cut["contents"], cut["truncated"], cut["size_bytes"]) == ("a", True, 3)


async def test_a_listing_has_both_spellings_and_is_recursive_on_request(tools):
    await tools.call("fs_write", path="d/x", text="123")
    await tools.call("exec", cmd="ln -s x d/link; printf '' > $(printf 'n\\377')")
    top = await tools.call("fs_list")
    assert [entry["name"] for entry in top["entries"]] == ["d", "n\ufffd"]
    odd = top["entries"][1]
    assert base64.b64decode(odd["name_b64"]) == b"n\xff"
    tree = await tools.call("fs_list", path="/work", recursive=True)
    [shown] = [entry for entry in tree["entries"] if entry["name"] == "x"]
    mtime = shown.pop("mtime_unix")
    assert isinstance(mtime, int)
    assert shown == {
        "path": "/workspace/d/x",
        "name": "x",
        "type": "file",
        "is_dir": False,
        "size": 3,
        "size_bytes": 3,
        "mode": "0644",
    }
    [link] = [entry for entry in tree["entries"] if entry["name"] == "link"]
    assert (link["type"], link["target"]) == ("symlink", "x")
    assert (tree["path"], tree["truncated"]) == ("/workspace", False)


async def test_a_long_listing_is_truncated_and_marked(tools):
    await tools.call("exec", cmd="mkdir many && cd many && touch $(seq 1001)")
    listed = await tools.call("fs_list", path="many")
    assert (len(listed["entries"]), listed["truncated"]) == (1000, True)


async def test_a_directory_is_removed_only_with_the_recursive_flag(tools):
    await tools.call("fs_write", path="d/x", text="")
    assert (await tools.call("fs_delete", path="d"))["code"] == "DIRECTORY_NOT_EMPTY"
    removed = await tools.call("fs_delete", path="/work/d", recursive=True)
    assert (removed["ok"], removed["deleted"], removed["path"]) == (
        True,
        "/workspace/d",
        "/workspace/d",
    )
    assert (await tools.call("fs_delete", path="d"))["code"] == "FILE_NOT_FOUND"
    assert (await tools.call("fs_delete", path="/work"))["code"] == "INVALID_REQUEST"
    await tools.call("exec", cmd="mkdir empty")
    assert (await tools.call("fs_delete", path="empty"))["ok"]


async def test_nothing_of_the_host_is_read_or_written(tools):
    for path in ("/etc/shadow", "/root/x", "/proc/self/environ"):
        assert (await tools.call("fs_read", path=path))["code"] == "FORBIDDEN"
        assert (await tools.call("fs_write", path=path, text=""))["code"] == "FORBIDDEN"
    await tools.call("exec", cmd="ln -s /etc/passwd link")
    assert (await tools.call("fs_read", path="link"))["code"] == "FORBIDDEN"
    assert (await tools.call("fs_read", path="../etc/shadow"))["code"] == "INVALID_REQUEST"


@pytest.mark.promise("P65")
async def test_a_large_file_survives_publish_and_stage_byte_for_byte(tools):
    size = (200 if LONG else 20) << 20
    created = await tools.call(
        "exec",
        cmd=f"head -c {size} /dev/urandom > big && sha256sum big",
        timeout_seconds=100,
    )
    digest = created["stdout"].split()[0]
    published = await tools.call("publish_file", source="big", file_key="results/big.bin")
    assert published == {
        "sandbox_id": created["sandbox_id"],
        "session_id": created["sandbox_id"],
        "ok": True,
        "file_key": "results/big.bin",
        "size_bytes": size,
        "checksum": f"sha256:{digest}",
        "content_type": published["content_type"],
    }
    await tools.call("close")
    staged = await tools.call("stage_file", file_key="results/big.bin", destination="in/copy")
    assert (staged["ok"], staged["path"], staged["size_bytes"]) == (
        True,
        "/workspace/in/copy",
        size,
    )
    copied = await tools.call("exec", cmd="sha256sum in/copy", timeout_seconds=100)
    assert copied["stdout"].split()[0] == digest


async def test_a_storage_key_is_generated_when_none_is_given(tools):
    await tools.call("fs_write", path="x", text="1")
    published = await tools.call("publish_file", source="x")
    row = await tools.store.get("default", published["file_key"])
    assert row.checksum == f"sha256:{hashlib.sha256(b'1').hexdigest()}"


async def test_a_missing_or_foreign_stored_file_is_not_staged(tools):
    other = tools.within(tenant="other")
    await other.call("fs_write", path="x", text="1")
    await other.call("publish_file", source="x", file_key="theirs")
    missing = await tools.call("stage_file", file_key="mine", destination="x")
    foreign = await tools.call("stage_file", file_key="theirs", destination="x")
    assert missing["code"] == foreign["code"] == "FILE_NOT_FOUND"
    assert missing["message"].replace("mine", "?") == foreign["message"].replace("theirs", "?")
    for path in ("/etc/x", "../x"):
        refused = await other.call("stage_file", file_key="theirs", destination=path)
        assert refused["code"] in ("FORBIDDEN", "INVALID_REQUEST")


async def test_a_directory_is_not_published(tools):
    await tools.call("exec", cmd="mkdir d")
    assert (await tools.call("publish_file", source="d"))["code"] == "IS_A_DIRECTORY"
    assert (await tools.call("fs_read", path="d"))["code"] == "IS_A_DIRECTORY"
    assert (await tools.call("publish_file", source="none"))["code"] == "FILE_NOT_FOUND"


async def test_a_tenants_quota_bounds_what_is_published_and_opened(tools):
    small = tools.within(
        tenant="small", quota=TenantQuota(max_disk_bytes=700 << 20, max_sessions=1)
    )
    await small.call("exec", cmd="head -c 300000000 /dev/zero > big")
    refused = await small.call("publish_file", source="big")
    assert (refused["code"], refused["details"]["quota"]) == ("QUOTA_EXCEEDED", "disk")
    second = await small.call("open", session_key="second")
    assert (second["code"], second["details"]["quota"]) == ("QUOTA_EXCEEDED", "sessions")


async def test_without_a_file_store_its_tools_are_missing(unisolated_tools):
    from sandkasten_tools.calls.toolbox import Toolbox

    bare = Toolbox(unisolated_tools.engine)
    names = [spec.name for spec in bare.specs(unisolated_tools.context.sandbox)]
    assert len(names) == 10
    answer = await bare.call("sandbox_publish_file", {"source": "x"}, unisolated_tools.context)
    assert answer["code"] == "UNSUPPORTED_BY_BACKEND"
