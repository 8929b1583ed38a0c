"""Keys, the audit log and stored files on the command line, with and without a daemon."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import QuotaExceeded
from sandkasten.model.audit_chain import record_line
from sandkasten.model.audit_records import AuditHead, AuditRow
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.daemon import offline_admin
from tests.client.http.served import served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(params=["alone", "through a daemon"])
def run(request, tmp_path, cli) -> Iterator[object]:
    """Run one command line in this process, with or without a daemon."""
    with ExitStack() as stack:
        if request.param != "alone":
            stack.enter_context(served(tmp_path / "data"))
        yield cli


@pytest.fixture
def full_disk(tmp_path) -> Iterator[Path]:
    """A data directory on a disk without a free byte."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "full", data], check=True)
    try:
        with open(data / "fill", "wb", buffering=0) as fill, suppress(OSError):
            while fill.write(bytes(4096)):
                pass
        yield data
    finally:
        subprocess.run(["umount", "-l", data], check=True)


def told(done):
    assert done.status == 0, done.err
    return json.loads(done.out)


async def test_a_database_that_a_daemon_just_made_is_never_removed(tmp_path, monkeypatch):
    settings = load({"data_dir": str(tmp_path / "data"), "backend": "local"}, {}, tmp_path)
    database = tmp_path / "data" / "sandkasten.db"

    @contextmanager
    def after_a_daemon(_):
        database.write_bytes(b"keys")
        yield

    @asynccontextmanager
    async def full(*_):
        raise QuotaExceeded("the disk is full", hint="free space")
        yield

    monkeypatch.setattr(offline_admin, "only_daemon", after_a_daemon)
    monkeypatch.setattr(offline_admin, "open_books", full)
    with pytest.raises(QuotaExceeded):
        async with offline_admin.offline_books(settings):
            pass
    assert database.read_bytes() == b"keys"


def test_a_key_is_printed_once_listed_without_it_and_revoked(run):
    of_network = ("--max-network-connections", "9", "--max-network-bandwidth", "50M")
    of_day = ("--max-network-bytes-per-day", "1G")
    limits = ("--max-memory", "2G", *of_network, *of_day)
    made = run("key", "create", "-t", "acme", "-n", "ci", *limits, "--expires", "1d")
    assert made.status == 0, made.err
    key = made.out.strip()
    assert key.startswith("sk-")
    assert "not shown again" in made.err
    (row,) = told(run("key", "ls", "--json"))
    assert (row["tenant"], row["name"], row["revoked_at"]) == ("acme", "ci", None)
    assert {name: value for name, value in row["quota"].items() if value is not None} == {
        "max_memory_bytes": 2 << 30,
        "max_network_connections": 9,
        "max_network_bandwidth_bps": 50_000_000,
        "max_network_bytes_per_day": 1 << 30,
    }
    made_at, ends_at = (datetime.fromisoformat(row[name]) for name in ("created_at", "expires_at"))
    assert (ends_at - made_at).total_seconds() == pytest.approx(86_400)
    assert key not in str(row)
    assert "active" in run("key", "ls").out
    gone = run("key", "revoke", row["id"], "key_000000000000", "--json")
    assert gone.status == 125
    body = json.loads(gone.out)
    assert [one["id"] for one in body["revoked"]] == [row["id"]]
    assert [one["code"] for one in body["failed"]] == ["NOT_FOUND"]
    actions = [one["action"] for one in told(run("audit", "show", "--kind", "change", "--json"))]
    assert actions[:2] == ["key.create", "key.revoke"]
    assert "key.revoke" in run("audit", "show", "--action", "key.revoke").out
    wrong = run("key", "create", "--scope", "session")
    assert (wrong.status, wrong.out) == (125, "")
    assert "hint: did you mean sessions?" in wrong.err


@pytest.mark.root
def test_audit_log_is_read_on_a_full_disk_without_a_database(full_disk, cli):
    (full_disk / "fill").unlink()
    made = cli("key", "create", "--name", "one")
    assert made.status == 0, made.err
    for path in full_disk.glob("sandkasten.db*"):
        path.unlink()
    with open(full_disk / "fill", "wb", buffering=0) as fill, suppress(OSError):
        while fill.write(bytes(4096)):
            pass
    found = cli("audit", "verify")
    assert found.status == 0, found.err
    assert found.out.startswith("ok: 1 record")
    assert "key.create" in cli("audit", "show").out
    assert "is full" in cli("key", "ls").err


@pytest.mark.promise("P86")
def test_the_audit_log_is_exported_and_verified(tmp_path, cli):
    for name in ("one", "other"):
        assert cli("key", "create", "--name", name).status == 0
    right = cli("audit", "verify")
    assert (right.status, right.out.splitlines()[0]) == (0, "ok: 2 records, 1 to 2")
    head = right.out.splitlines()[1].removeprefix("head: ")
    copy = tmp_path / "audit.jsonl"
    assert cli("audit", "export", str(copy)).status == 0
    assert copy.stat().st_mode & 0o777 == 0o600
    assert cli("audit", "export").out == copy.read_text()
    assert cli("audit", "verify", "--file", str(copy), "--head", head).status == 0
    (segment,) = (tmp_path / "data" / "audit").glob("*.jsonl")
    for path, options in ((copy, ("--file", str(copy))), (segment, ())):
        path.write_text(path.read_text().replace("key.create", "key.creaze", 1))
        wrong = cli("audit", "verify", *options)
        assert (wrong.status, wrong.out) == (1, "")
        assert "error: record 1 (" in wrong.err
        told_json = cli("audit", "verify", *options, "--json")
        assert (told_json.status, json.loads(told_json.out)["flaw"]["seq"]) == (1, 1)
    assert cli("audit", "show", "--kind", "nothing").status == 2
    assert cli("audit", "show", "--since", "1h", "--json").status == 0


def test_a_head_that_retention_removed_is_not_called_right(tmp_path, cli):
    last = AuditHead(5, "5" * 64)
    detail = {"through_seq": "5", "hash": last.hash}
    cut = AuditRow(0, 1.0, "", None, "audit.cut", "", "ok", detail=detail, kind="audit")
    line, head = record_line(cut, last)
    copy = tmp_path / "audit.jsonl"
    copy.write_bytes(line)
    kept = cli("audit", "verify", "--file", str(copy), "--head", f"6:{head.hash}")
    assert (kept.status, kept.err) == (0, "")
    old = f"3:{'3' * 64}"
    gone = cli("audit", "verify", "--file", str(copy), "--head", old)
    assert gone.status == 1
    assert f"{old} was not checked: the log begins with record 6" in gone.err


def test_usage_of_a_tenant_is_shown_by_a_daemon(tmp_path, cli):
    alone = cli("key", "usage")
    assert (alone.status, alone.out) == (125, "")
    assert "hint: start one: sandkasten serve" in alone.err
    with served(tmp_path / "data"):
        found = told(cli("key", "usage", "--json"))
        assert (found["tenant"], found["used"]["sessions"]) == ("default", 0)
        assert set(found["quota"].values()) == {None}
        table = cli("key", "usage").out
    assert ["network_bytes_per_day", "0", "-"] in [line.split() for line in table.splitlines()]


def test_a_file_is_stored_and_fetched(run, tmp_path):
    data = os.urandom(500_000)
    (tmp_path / "report.png").write_bytes(data)
    (tmp_path / "text").write_text("hi")
    key = run("files", "put", str(tmp_path / "report.png")).out.strip()
    assert key.startswith("f_")
    put = ("files", "put", str(tmp_path / "text"), "--key", "runs/1/x")
    named = told(run(*put, "--ttl", "1h", "--json"))
    assert (named["key"], named["size_bytes"]) == ("runs/1/x", 2)
    assert run("files", "get", "runs/1/x").out == "hi"
    assert run("files", "get", key, str(tmp_path / "back")).status == 0
    assert (tmp_path / "back").read_bytes() == data
    (tmp_path / "link").symlink_to("back")
    assert run("files", "get", "runs/1/x", str(tmp_path / "link")).status == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "back").read_bytes() == b"hi"
    info = told(run("files", "info", key, "--json"))
    assert (info["content_type"], info["size_bytes"]) == ("image/png", len(data))
    assert [one["key"] for one in told(run("files", "ls", "runs/", "--json"))] == ["runs/1/x"]
    assert run(*put).status == 125
    assert run(*put, "--overwrite").status == 0
    gone = run("files", "rm", key, "runs/1/x", "nothing", "--json")
    assert json.loads(gone.out)["removed"] == [key, "runs/1/x"]
    missing = run("files", "info", key)
    assert (missing.status, missing.out) == (125, "")
    assert "no stored file has the key" in missing.err
    assert run("files", "ls").out.split()[0] == "KEY"


def test_a_file_is_staged_and_published_by_sandbox_id(tmp_path, cli, unisolated_only):
    # In one process: on the unisolated backend only the daemon has its sandboxes.
    with served(tmp_path / "data"):
        box = cli("create").out.strip()
        (tmp_path / "in").write_text("hi")
        assert cli("files", "put", str(tmp_path / "in"), "--key", "k").status == 0
        assert cli("files", "stage", "k", f"{box}:a/b").out == "/workspace/a/b\n"
        assert told(cli("files", "stage", "k", f"{box}:c", "--json"))["size_bytes"] == 2
        assert cli("files", "publish", f"{box}:a/b", "-k", "out", "--ttl", "1h").out == "out\n"
        assert told(cli("files", "publish", f"{box}:c", "--json"))["key"].startswith("f_")
        assert cli("files", "get", "out").out == "hi"
        here = cli("files", "stage", "k", str(tmp_path))
        assert here.status == 2
        assert "ID:path" in here.err
        assert cli("rm", box).status == 0


def test_a_file_is_stored_from_a_pipe(process, cli):
    # By its older name too, and back.
    assert process("files", "upload", "-", "--key", "k", stdin=b"piped\0").stdout == b"k\n"
    assert told(cli("files", "info", "k", "--json"))["size_bytes"] == 6
    assert process("files", "download", "k").stdout == b"piped\0"


def test_a_database_in_use_is_not_opened_twice(tmp_path, cli):
    with served(tmp_path / "data"):
        done = cli("--embedded", "key", "ls")
    assert done.status == 125
    assert "another daemon" in done.err


@pytest.mark.root
@pytest.mark.parametrize(
    "words",
    [
        ("files", "put", "/etc/passwd"),
        ("files", "ls"),
        ("key", "create"),
        ("key", "ls"),
        # In a process of its own: a daemon lowers limits of its process, which cannot be undone.
        ("serve",),
    ],
    ids=" ".join,
)
def test_a_full_data_directory_is_a_named_error(full_disk, process, words):
    done = process(*words)
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"error: the disk of the daemon's database is full")
    assert b"hint: free space" in done.stderr
