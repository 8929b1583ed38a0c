"""Hostile archives: unpacked inside the sandbox, beneath their folder, or not at all."""

from __future__ import annotations

import contextlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import (
    InvalidRequest,
    PayloadTooLarge,
    PolicyDenied,
    QuotaExceeded,
    SandkastenError,
)
from sandkasten_contract.shared_sandbox_cases import each
from tests.security.harness import EVICTED, NO_SIZES, UNSIZED

if TYPE_CHECKING:
    from tests.security.harness import Box

pytestmark = pytest.mark.promise("P18")


def _member(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", size: int = 0, mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, size, mode
    return info


def _archive(
    *members: tarfile.TarInfo, data: bytes = b"", format: int = tarfile.PAX_FORMAT
) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=format) as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return raw.getvalue()


HOSTILE = {
    "absolute": [_member("/tmp/evil", size=4)],
    "dotdot": [_member("../evil", size=4)],
    "dotdot inside": [_member("a/../../evil", size=4)],
    "link out": [
        _member("out", tarfile.SYMTYPE, link="/tmp"),
        _member("out/evil", size=4),
    ],
    "relative link out": [
        _member("out", tarfile.SYMTYPE, link="../.."),
        _member("out/tmp/evil", size=4),
    ],
    "link to a link": [
        _member("a", tarfile.SYMTYPE, link="."),
        _member("a/b", tarfile.SYMTYPE, link=".."),
        _member("a/b/evil", size=4),
    ],
    "hard link out": [_member("h", tarfile.LNKTYPE, link="/etc/passwd")],
    "hard link by dotdot": [_member("h", tarfile.LNKTYPE, link="../../etc/passwd")],
    "hard link through a link": [
        _member("out", tarfile.SYMTYPE, link="/etc"),
        _member("h", tarfile.LNKTYPE, link="out/passwd"),
    ],
    "character device": [_member("null", tarfile.CHRTYPE)],
    "block device": [_member("disk", tarfile.BLKTYPE)],
}  # fmt: skip


@each("name", HOSTILE)
@each("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_an_archive_member_that_leads_outside_is_refused(name, format, box):
    box.exec(["mkdir", "-p", "/workspace/in"])
    with pytest.raises(PolicyDenied):
        box.tar_in("/workspace/in", _archive(*HOSTILE[name], data=b"evil", format=format))
    assert box.exec(["sh", "-c", "find / -xdev -name 'evil*' 2>/dev/null"]).text == ""
    assert box.exec(["sh", "-c", "ls /workspace/evil /tmp/evil 2>/dev/null"]).text == ""
    # An engine's own busybox knows no users.
    if (box.ground.image, box.ground.kept) != ("busybox", "engine"):
        assert b"root:x:0:0" in box.read("/etc/passwd")


def test_an_archive_member_does_not_follow_an_existing_link(box):
    box.exec(
        "mkdir /workspace/in /dev/shm/out; cd /workspace/in;"
        "ln -s /dev/shm/out d; ln -s /dev/shm/out/f f"
    )
    for members in ([_member("d/evil", size=4)], [_member("f", size=4)]):
        with contextlib.suppress(SandkastenError):
            box.tar_in("/workspace/in", _archive(*members, data=b"evil"))
        assert box.exec(["ls", "-A", "/dev/shm/out"]).text == ""


def test_an_ordinary_archive_is_unpacked_completely(box):
    members = [
        _member("d", tarfile.DIRTYPE, mode=0o755),
        _member("d/f", size=4),
        _member("d/l", tarfile.SYMTYPE, link="f"),
        _member("d/h", tarfile.LNKTYPE, link="d/f"),
        _member("x" * 200 + "/" + "y" * 100, size=4),
    ]
    answer = box.tar_in("/workspace/in", _archive(*members, data=b"fine"))
    assert answer["entries"] == 5
    assert box.read("/workspace/in/d/l") == b"fine"
    assert box.read("/workspace/in/d/h") == b"fine"


def test_set_id_bits_are_dropped(box):
    box.tar_in("/workspace/in", _archive(_member("tool", size=4, mode=0o6755), data=b"fine"))
    assert box.stat("/workspace/in/tool").mode == 0o755


def test_owners_in_an_archive_are_ignored(box):
    info = _member("f", size=4)
    info.uid = info.gid = 4242
    info.uname = info.gname = "games"
    box.tar_in("/workspace/in", _archive(info, data=b"fine"))
    assert box.stat("/workspace/in/f").uid == box.uid


@pytest.mark.not_on(*UNSIZED, reason=NO_SIZES)
@pytest.mark.not_on("kubernetes", reason=EVICTED)
def test_an_archive_bomb_of_bytes_hits_the_quota(box, neighbour):
    with pytest.raises(QuotaExceeded):
        box.tar_in("/workspace/in", _huge(box.limits.workspace_bytes + 10_000_000))
    neighbour.write("/workspace/fine", bytes(100_000))
    box.exec(["rm", "-rf", "/workspace/in"])
    assert box.write("/workspace/after", b"x").size == 1


def _huge(size: int) -> bytes:
    return _archive(_member("big", size=size), data=bytes(size))


def test_an_archive_bomb_of_entries_hits_its_limit(box):
    archive = _archive(*[_member(f"d{n}", tarfile.DIRTYPE, mode=0o755) for n in range(3000)])
    with pytest.raises((PayloadTooLarge, PolicyDenied, QuotaExceeded)):
        box.tar_in("/workspace/in", archive, max_entries=1000)
    with pytest.raises((PayloadTooLarge, PolicyDenied, QuotaExceeded)):
        box.tar_in("/workspace/in", _huge(2_000_000), max_bytes=1_000_000)


def test_an_archive_with_the_deepest_possible_names_does_no_harm(box):
    info = _member("/".join(["d"] * 1500) + "/f", size=4)
    with contextlib.suppress(SandkastenError):
        box.tar_in("/workspace/in", _archive(info, data=b"deep"))
    box.remove("/workspace/in", recursive=True, missing_ok=True)


def _header(**fields: bytes) -> bytes:
    block = bytearray(512)
    block[0:1] = b"f"
    block[100:108] = b"0000644\0"
    block[124:136] = b"00000000004\0"
    block[156:157] = b"0"
    block[257:265] = b"ustar\00000"
    for at, value in fields.items():
        block[int(at[1:]) : int(at[1:]) + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


BROKEN = {
    "empty": b"",
    "noise": bytes(range(256)) * 8,
    "cut in a header": _header()[:300],
    "cut in the data": _header() + b"fi",
    "wrong checksum": _header()[:148] + b"0000000\0" + _header()[156:] + bytes(1536),
    "size of all bits": _header(_124=b"\x80" + b"\xff" * 11) + bytes(1536),
    "size of 8 EiB": _header(_124=b"777777777777") + bytes(1536),
    "negative size": _header(_124=b"\xff" * 12) + bytes(1536),
    "endless pax header": _header(_156=b"x", _124=b"77777777777\0") + bytes(1536),
    "endless long name": _header(_156=b"L", _124=b"77777777777\0") + bytes(1536),
    "pax with a bad length": _header(_156=b"x", _124=b"00000000020\0")
    + b"99999999 path=x\n".ljust(512, b"\0") + _header() + bytes(1536),
    "pax with a NUL path": _header(_156=b"x", _124=b"00000000013\0")
    + b"11 path=\0x\n".ljust(512, b"\0") + _header() + bytes(1536),
    "unknown kind": _header(_156=b"Z") + b"fine".ljust(512, b"\0") + bytes(1024),
    "a directory with a size": _header(_156=b"5") + b"fine".ljust(512, b"\0") + bytes(1024),
    "no name": _header(_0=b"\0") + b"fine".ljust(512, b"\0") + bytes(1024),
    "dot": _header(_0=b".") + b"fine".ljust(512, b"\0") + bytes(1024),
    "slash": _header(_0=b"/") + b"fine".ljust(512, b"\0") + bytes(1024),
}  # fmt: skip


def _outcome(box: Box, archive: bytes) -> str:
    try:
        box.tar_in("/workspace/in", archive)
    except SandkastenError as exc:
        return exc.code
    return "unpacked"


@each("name", BROKEN)
def test_a_broken_archive_is_an_error_and_the_runner_survives(name, box):
    assert _outcome(box, BROKEN[name]) not in ("INTERNAL_ERROR", "QUOTA_EXCEEDED")
    box.answers()


def test_a_compressed_archive_is_refused(box):
    import gzip

    with pytest.raises((InvalidRequest, SandkastenError)):
        box.tar_in("/workspace/in", gzip.compress(_archive(_member("f", size=4), data=b"fine")))


def test_a_downloaded_archive_has_no_set_id_file_of_another_user(box):
    box.exec("mkdir /workspace/d; cd /workspace/d; mkfifo fifo; echo x >f; chmod 000 f")
    raw = _or_none(box, "/workspace/d")
    if raw is not None:
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            assert all(not m.name.startswith("/") and ".." not in m.name for m in archive)


def _or_none(box: Box, path: str) -> bytes | None:
    try:
        return box.tar_out(path)
    except SandkastenError:
        return None
