"""The audit log on disk: what `verify` finds, what a crash leaves, and what retention removes."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandkasten.errors import QuotaExceeded
from sandkasten.model.audit_chain import GENESIS, record_line
from sandkasten.model.audit_records import AuditFilter, AuditHead, AuditRow
from sandkasten_runtime.store.audit_directory import AuditDirectory
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


def row(number: int, **more) -> AuditRow:
    base = AuditRow(0, 1000.0 + number, "acme", "key_1", "a.b", f"t{number}", "ok")
    return replace(base, **more)


@pytest.fixture
async def audit(tmp_path):
    log = AuditDirectory(tmp_path / "audit")
    yield log
    await log.aclose()


def lines_of(audit) -> tuple[Path, list[bytes]]:
    (path,) = audit.path.glob("*.jsonl")
    return path, path.read_bytes().splitlines(keepends=True)


async def flaw_of(audit, heads=()):
    report = await audit.verify(heads)
    assert report.ok is (report.flaw is None)
    return report.flaw and (report.flaw.seq, report.flaw.flaw)


@pytest.mark.promise("P86")
async def test_a_changed_a_removed_and_a_moved_record_are_named(audit):
    for number in range(1, 6):
        audit.record(row(number, detail={"why": "ü\n\x1b", "n": str(number)}))
    assert await flaw_of(audit) is None
    path, lines = lines_of(audit)
    for at in (0, 40, len(lines[2]) - 30, len(lines[2]) - 2):
        changed = bytearray(lines[2])
        changed[at] ^= 1
        path.write_bytes(b"".join([*lines[:2], bytes(changed), *lines[3:]]))
        assert await flaw_of(audit) == (3, "changed")
    for kept, found in (
        ([0, 1, 3, 4], (3, "missing")),
        ([0, 1, 3, 2, 4], (3, "missing")),
        ([0, 1, 2, 2, 3, 4], (3, "reordered")),
        ([1, 2, 3, 4], (2, "missing")),
        ([0, 1, 2, 3], (5, "truncated")),
        ([], (1, "truncated")),
    ):
        path.write_bytes(b"".join(lines[one] for one in kept))
        assert await flaw_of(audit) == found
    path.write_bytes(b"".join(lines)[:-20])
    assert await flaw_of(audit) == (5, "incomplete")
    path.write_bytes(b"".join(lines))
    assert await flaw_of(audit) is None


@pytest.mark.promise("P86")
async def test_a_chain_that_was_written_anew_is_found_by_a_head_that_was_kept(audit):
    for number in range(1, 4):
        audit.record(row(number))
    kept = await audit.sync()
    assert kept.seq == 3
    path, _ = lines_of(audit)
    head, forged = AuditHead(0, GENESIS), b""
    for number in (1, 2, 9):
        line, head = record_line(row(number), head)
        forged += line
    path.write_bytes(forged)
    await audit.aclose()
    (audit.path / "head").unlink()
    assert await flaw_of(audit) is None
    assert await flaw_of(audit, [kept]) == (3, "changed")
    path.write_bytes(b"")
    assert await flaw_of(audit, [kept]) == (1, "truncated")


async def test_a_line_is_canonical_json_with_its_hash_at_the_end(audit):
    audit.record(row(1, detail={"b": 'ü\x00"\\', "a": "1"}, usage={"z": 2, "a": 1}))
    _, (line,) = lines_of(audit)
    told = json.loads(line)
    hashed = told.pop("hash")
    body = json.dumps(told, sort_keys=True, separators=(",", ":"))
    assert line.decode() == f'{body[:-1]},"hash":"{hashed}"}}\n'
    assert (told["seq"], told["prev"]) == (1, GENESIS)


async def test_records_are_read_by_every_filter(audit):
    audit.record(row(1, kind="exec", session_id="sbx_1", action="exec.start"))
    audit.record(row(2, kind="exec", session_id="sbx_2", key_id=None))
    audit.record(row(3, kind="file", session_id="sbx_1", tenant="b"))
    for wanted, found in (
        (AuditFilter(), [1, 2, 3]),
        (AuditFilter(kind="exec"), [1, 2]),
        (AuditFilter(session_id="sbx_1"), [1, 3]),
        (AuditFilter(key_id="key_1"), [1, 3]),
        (AuditFilter(tenant="b"), [3]),
        (AuditFilter(action="exec.start"), [1]),
        (AuditFilter(target="t2"), [2]),
        (AuditFilter(since=1002.0), [2, 3]),
        (AuditFilter(since_seq=1, limit=1), [2]),
        (AuditFilter(limit=2, newest=True), [2, 3]),
        (AuditFilter(key_id='key"1\\'), []),
    ):
        assert [one.seq for one in await audit.read(wanted)] == found
    assert b"".join([piece async for piece in audit.lines()]) == lines_of(audit)[0].read_bytes()


@pytest.mark.parametrize(
    ("body", "flaw"),
    [
        ({"seq": "2"}, (2, "changed")),
        ({"action": "audit.cut", "detail": []}, (2, "changed")),
        ({"at": "now"}, (2, "changed")),
        ([], (2, "changed")),
        # It is in the chain, and excuses no missing record.
        ({"action": "audit.cut", "detail": {"through_seq": "x"}}, None),
    ],
)
async def test_a_forged_record_with_a_valid_hash_does_not_stop_the_check(audit, body, flaw):
    audit.record(row(1))
    path, lines = lines_of(audit)
    if isinstance(body, dict):
        told = json.loads(lines[0])
        body = {**told, "seq": 2, "prev": told["hash"], **body}
        del body["hash"]
    raw = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    hashed = hashlib.sha256(raw[:-1] + b"}").hexdigest()
    path.write_bytes(lines[0] + raw[:-1] + f',"hash":"{hashed}"}}\n'.encode())
    (audit.path / "head").unlink()
    assert await flaw_of(audit) == flaw
    assert (await audit.read(AuditFilter(since=0.0)))[0].seq == 1


@pytest.mark.promise("P86")
async def test_retention_cuts_the_start_and_the_rest_still_verifies(tmp_path):
    audit = AuditDirectory(tmp_path / "audit", max_bytes=64 << 10, keep_s=3600)
    for number in range(400):
        audit.record(row(number, detail={"x": "y" * 100}))
    report = await audit.verify()
    assert report.flaw is None
    assert 1 < report.first_seq < report.last_seq
    assert sum(one.stat().st_size for one in audit.path.iterdir()) <= 64 << 10
    oldest = min(audit.path.glob("*.jsonl"))
    os.utime(oldest, (1, 1))
    assert await audit.prune(10_000) == 1
    after = await audit.verify()
    assert after.flaw is None
    assert after.first_seq > report.first_seq
    cut = (await audit.read(AuditFilter(action="audit.cut", newest=True, limit=1)))[0]
    assert cut.detail["through_seq"] == str(after.first_seq - 1)
    # What was not cut by the log itself is missed.
    min(audit.path.glob("*.jsonl")).unlink()
    flaw = await flaw_of(audit)
    assert flaw is not None
    assert flaw[1] == "missing"
    await audit.aclose()


WRITER = """
import asyncio, sys
from pathlib import Path
from sandkasten.model.audit_records import AuditRow
from sandkasten_runtime.store.audit_directory import AuditDirectory
async def main():
    audit = AuditDirectory(Path(sys.argv[1]))
    number = 0
    while number < int(sys.argv[2]):
        number += 1
        audit.record(AuditRow(0, 1.0, "t", None, "a.b", f"{sys.argv[3]}-{number}", "ok"))
        print(number, flush=True)
        await asyncio.sleep(0)
    await audit.aclose()
asyncio.run(main())
"""


def writer(path: Path, count: int, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(path), str(count), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)


@pytest.mark.promise("P86")
async def test_several_processes_write_one_chain(audit):
    others = [writer(audit.path, 100, name) for name in ("a", "b")]
    for number in range(100):
        audit.record(row(number, target=f"c-{number + 1}"))
        await asyncio.sleep(0.001)
    for one in others:
        await asyncio.to_thread(one.communicate)
        assert one.returncode == 0
    report = await audit.verify()
    assert (report.flaw, report.records) == (None, 300)
    found = {one.target for one in await audit.read(AuditFilter(limit=1000))}
    assert found == {f"{name}-{number}" for name in "abc" for number in range(1, 101)}


@pytest.mark.promise("P86")
async def test_a_killed_writer_loses_no_record_and_leaves_a_right_chain(audit):
    one = writer(audit.path, 10**9, "a")
    assert one.stdout is not None
    said = [await asyncio.to_thread(one.stdout.readline) for _ in range(50)]
    one.send_signal(signal.SIGKILL)
    rest, _ = await asyncio.to_thread(one.communicate)
    said += rest.splitlines(keepends=True)
    told = {int(line) for line in said if line.endswith(b"\n")}
    # Half a line, as a full disk or a power failure may leave it.
    path, _ = lines_of(audit)
    with path.open("ab") as file:
        file.write(b'{"action":"a.b","at":1.0')
    assert (await audit.verify()).flaw is None
    audit.record(row(1, target="next"))
    report = await audit.verify()
    assert report.flaw is None
    found = {one.target for one in await audit.read(AuditFilter(limit=10**6))}
    assert found >= {f"a-{number}" for number in told} | {"next"}


async def test_lines_whose_head_was_not_written_are_adopted(audit):
    audit.record(row(1))
    await audit.aclose()
    path, (first,) = lines_of(audit)
    told = json.loads(first)
    line, _ = record_line(row(2), AuditHead(1, told["hash"]))
    with path.open("ab") as file:
        file.write(line)
    audit.record(row(3))
    report = await audit.verify()
    assert (report.flaw, report.records) == (None, 3)


APPENDED = {
    "a line": b"x\n",
    "a part of a line": b"x",
    "an empty line": b"\n",
    "NUL": b"\0",
    "many NUL": b"\0" * 4096,
    "a record of its own": b'{"action":"a.b","at":1.0,"seq":2}\n',
    "half a record with NUL": b'{"action":"a.b"\0',
    "half a record and a line": b'{"action":"a.b"\n{"action":',
}


@pytest.mark.promise("P86")
@pytest.mark.parametrize("place", ["newest", "next"])
@pytest.mark.parametrize("name", APPENDED)
async def test_what_was_appended_is_found_and_the_next_record_removes_it(audit, name, place):
    audit.record(row(1))
    path, _ = lines_of(audit)
    with (path if place == "newest" else path.with_name("0000000002.jsonl")).open("ab") as file:
        file.write(APPENDED[name])
    assert await flaw_of(audit) in ((2, "changed"), (2, "incomplete"))
    if place == "newest":
        audit.record(row(2))
        assert await flaw_of(audit) is None


@pytest.mark.parametrize("cut", [0, 1, 5, 11, 40, -2])
async def test_a_line_that_a_crash_cut_off_is_no_flaw_and_is_written_anew(audit, cut):
    audit.record(row(1))
    path, (first,) = lines_of(audit)
    line, _ = record_line(row(2), AuditHead(1, json.loads(first)["hash"]))
    with path.open("ab") as file:
        file.write(line[:cut])
    assert await flaw_of(audit) is None
    audit.record(row(3))
    report = await audit.verify()
    assert (report.flaw, report.records) == (None, 2)


async def test_what_a_crash_left_in_a_new_segment_is_taken_over(tmp_path):
    """The writer died between the first line of a segment and the head."""
    log = AuditDirectory(tmp_path / "audit", segment_bytes=4096)
    number = 0
    while not (tmp_path / "audit" / "0000000002.jsonl").exists():
        number += 1
        old = (tmp_path / "audit" / "head").read_bytes() if number > 1 else b""
        log.record(row(number))
    await log.aclose()
    (tmp_path / "audit" / "head").write_bytes(old)
    with (tmp_path / "audit" / "0000000002.jsonl").open("ab") as file:
        file.write(b'{"action":"a.b","at')
    log = AuditDirectory(tmp_path / "audit", segment_bytes=4096)
    assert await flaw_of(log) is None
    log.record(row(number + 1))
    report = await log.verify()
    await log.aclose()
    assert (report.flaw, report.records) == (None, number + 1)


async def test_a_record_waits_while_another_process_holds_the_log(audit):
    audit.record(row(1))
    with (audit.path / "head").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        audit.record(row(2))
        assert len(lines_of(audit)[1]) == 1
    await audit.flush()
    assert len(lines_of(audit)[1]) == 2


async def test_a_full_disk_refuses_lasting_records_and_keeps_the_others(audit, monkeypatch):
    audit.record(row(1))
    real, full = os.write, [True]

    def write(fd, data):
        if full[0] and len(data) > 100:
            real(fd, data[:50])
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    audit.record(row(2))
    with pytest.raises(QuotaExceeded):
        await audit.record_lasting(row(3))
    assert len(lines_of(audit)[1]) == 1
    full[0] = False

    await asyncio.wait_for(audit._draining, PATIENCE_S)
    report = await audit.verify()
    assert (report.flaw, report.records) == (None, 2)
