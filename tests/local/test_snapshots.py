"""Snapshots on the real backends: what they keep, when they are cut, who has them, and crashes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from sandkasten.disk import free_space
from sandkasten.disk.cleanup import in_own_thread
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    ImageNotFound,
    InvalidRequest,
    PolicyDenied,
    QuotaExceeded,
    SnapshotDamaged,
    SnapshotNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.sandbox.snapshot import NotKept, SnapshotRequest, SnapshotRules
from sandkasten.model.sandbox.workspace import DiskRules
from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell
from sandkasten_runtime.backends.local.backend import LocalBackend
from sandkasten_runtime.backends.oci.backend import OciBackend
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from sandkasten_runtime.images.host_image import HostImages
from sandkasten_runtime.linux.storage import (
    ext4,
    memory_tree,
    snapshot_directory,
    tree_copy,
)
from sandkasten_runtime.linux.storage.snapshot_directory import SnapshotDirectory
from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.engine.injections import Events
from tests.patience import PATIENCE_S
from tests.security.harness import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.root]

LIMITS = {"workspace_mb": 64, "mem_limit_mb": 256}
DISK = DiskRules(min_free_bytes=0)
TIME = 1_600_000_000


class OneImage(HostImages):
    """The host, and one image of the tests."""

    def __init__(self, image=None) -> None:
        super().__init__()
        self.image = image

    async def resolve(self, name, *, fetch=True):
        if name == "host":
            return await super().resolve(name, fetch=fetch)
        if self.image is None or name not in (self.image.name, self.image.id):
            raise ImageNotFound(f"no image {name}", image=name)
        return self.image


class Site:
    """One data directory with an engine on one backend."""

    def __init__(self, data_dir: Path, backend: str = "local", image=None) -> None:
        self.data_dir, self.backend = data_dir, backend
        self.images = OneImage(image)
        self.engine = self.open()

    def open(self, policy: Policy | None = None, **more) -> Engine:
        runtimes: dict[str, Literal["runc", "runsc"]] = {"oci": "runc", "gvisor": "runsc"}
        runtime = runtimes.get(self.backend)
        backend = OciBackend(self.data_dir, runtime) if runtime else LocalBackend(self.data_dir)
        return Engine(
            backends={backend.name: backend},
            default_backend=backend.name,
            store=DirectoryStore(self.data_dir / "ledger"),
            images=self.images,
            policy=policy or Policy(disk=DISK),
            clock=SystemClock(),
            workspaces=WorkspaceDirectory(self.data_dir / "workspaces"),
            snapshots=SnapshotDirectory(self.data_dir / "snapshots", disk=DISK),
            **more,
        )

    async def create(self, engine: Engine | None = None, tenant: str = "default", **options) -> str:
        if "snapshot" not in options:
            options = {"image": "host", "limits": LIMITS, **options}
        request = CreateRequest(SandboxOptions(**options), tenant=tenant)
        return (await (engine or self.engine).create(request)).id

    async def sh(self, the_id: str, command: str) -> str:
        result = await self.engine.exec(the_id, ExecRequest(command=command))
        assert result.exit_code == 0, (command, result)
        return result.stdout.decode()

    async def snapshot(self, the_id: str, name: str | None = None, **options):
        return await self.engine.snapshots.create(the_id, SnapshotRequest(name, **options))

    def left(self) -> list[str]:
        return sorted(os.listdir(self.data_dir / "snapshots"))

    async def aclose(self) -> None:
        for info in await self.engine.list(all=True):
            await self.engine.destroy(info.id)
        await self.engine.aclose()


@contextmanager
def disk(directory: Path, size: int, *make: str | Path) -> Iterator[Path]:
    """Mount a new file system of this size."""
    image, at = directory / "disk", directory / "mounted"
    with image.open("wb") as file:
        file.truncate(size)
    at.mkdir()
    subprocess.run([*make, image], check=True)
    subprocess.run(["mount", "-o", "loop", image, at], check=True)
    yield at
    # The loop devices of removed sandboxes are freed a little later.
    poll("unmount", lambda: subprocess.run(["umount", at], check=False).returncode)


@pytest.fixture
def small_disk(tmp_path):
    with disk(tmp_path, 160 * MIB, "mkfs.ext4", "-q", "-m", "0") as at:
        yield at


@pytest.fixture(params=["xfs", "btrfs"])
def sharing_disk(request, tmp_path):
    with disk(tmp_path, 1024 * MIB, f"mkfs.{request.param}", "-q") as at:
        yield at


@pytest.fixture
def big_disk():
    path = Path(tempfile.mkdtemp(prefix="pytest-of-snapshots-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def site(big_disk):
    opened = Site(big_disk)
    yield opened
    await opened.aclose()


@pytest.fixture(params=["local", "oci", "gvisor"])
async def each(request, big_disk):
    opened = Site(big_disk, request.param)
    yield opened
    await opened.aclose()


MADE = f"""
set -e
mkdir -p d/closed ~/h /tmp/t/u
echo content > d/file; ln d/file d/other; ln -s /etc/passwd d/outside; ln -s gone d/dangling
truncate -s 100M d/sparse; printf x | dd of=d/sparse bs=1 seek=50M conv=notrunc status=none
test -n "$GVISOR" || mkfifo d/fifo
chmod 640 d/file; chmod 711 d/closed; chmod 4755 d/other
echo home > ~/h/file; echo memory > /tmp/t/u/file; ln /tmp/t/u/file /tmp/t/other; mkfifo /tmp/t/fifo
truncate -s 10M /tmp/t/sparse; ln -s /etc/passwd /tmp/t/outside; chmod 750 /tmp/t/u
python3 -c 'import os; os.setxattr("d/file", "user.note", b"\\x00\\xff")' || test -n "$GVISOR"
touch -h -d @{TIME} d/file d/outside d/closed ~/h/file /tmp/t/u/file /tmp/t/u d
"""
LISTED = r"""
cd /workspace; find . ~/h $MORE -mindepth 1 -printf '%p %y %m %n %U:%G %s %b %l ' \
    \( \( -type f -o -path '*closed' \) -printf '%T@' -o -true \) -printf '\n' | sort
cat d/file ~/h/file; md5sum d/sparse
test -n "$GVISOR" || python3 -c 'import os; print(os.getxattr("d/file", "user.note"))'
"""


@pytest.mark.promise("P130")
async def test_a_new_sandbox_has_the_files_as_they_were(each):
    box = await each.create()
    # gVisor has no attributes of files; its FIFOs and its /tmp are its own.
    more = "GVISOR=1" if each.backend == "gvisor" else "MORE=/tmp/t"
    await each.sh(box, f"{more}; {MADE}")
    before = await each.sh(box, f"{more}; {LISTED}")
    snapshot = await each.snapshot(box)
    await each.sh(box, "echo changed > /workspace/d/file; rm -r ~/h /tmp/t")
    await each.engine.destroy(box)
    copy = await each.create(snapshot=snapshot.id)
    assert await each.sh(copy, f"{more}; {LISTED}") == before
    assert snapshot.not_kept == NotKept(paths=("/tmp",) if each.backend == "gvisor" else ())
    assert snapshot.size_bytes < 20 * MIB
    # The copy is a sandbox like any other: it writes, and can be copied in turn.
    again = await each.snapshot(copy)
    assert again.parent == snapshot.id
    third = await each.create(snapshot=again.id)
    assert await each.sh(third, f"{more}; {LISTED}") == before
    await each.sh(third, "touch /workspace/new ~/new /tmp/new")


async def test_everything_that_a_new_sandbox_needs_is_kept_with_the_files(each):
    box = await each.create(
        env={"A": "one", "B": "two"}, labels={"team": "x"}, hostname="named", network="none"
    )
    await each.sh(box, "mkdir 'a b'; cd 'a b'; export C=$'x\\ny' A=changed; unset B")
    snapshot = await each.snapshot(box, "base", labels={"more": "y"})
    info = await each.engine.create(CreateRequest(SandboxOptions(snapshot="base")))
    assert (info.snapshot, info.cwd) == (snapshot.id, "/workspace/a b")
    assert info.labels == {"team": "x", "more": "y"}
    assert (info.limits, info.env_names) == ((await each.engine.get(box)).limits, ("A", "B"))
    script = 'pwd; hostname; echo "$A-$B-$C"'
    assert await each.sh(info.id, script) == "/workspace/a b\nnamed\nchanged--x\ny\n"
    # What the request names counts, also in the shell.
    other = await each.create(snapshot="base", env={"C": "mine"}, labels={"team": "z"})
    assert await each.sh(other, 'echo "$A-$B-$C"') == "changed--mine\n"
    assert (await each.engine.get(other)).labels == {"team": "z", "more": "y"}


@pytest.mark.promise("P130")
async def test_the_cut_is_one_moment(each):
    """A writer appends to one file and then to another: the second is never ahead."""
    box = await each.create()
    loop = "i=0; while :; do i=$((i+1)); echo $i >> first; echo $i >> second; done"
    await each.engine.exec_start(box, ExecRequest(command=("sh", "-c", loop)))
    for _ in range(3):
        await each.sh(box, "until [ -s second ]; do sleep 0.01; done")
        snapshot = await each.snapshot(box)
        assert len(snapshot.not_kept.commands) == 1
        copy = await each.create(snapshot=snapshot.id)
        lines = (await each.sh(copy, "wc -l < first; wc -l < second")).split()
        assert int(lines[0]) - 1 <= int(lines[1]) <= int(lines[0])
        assert int(lines[0]) > 0
        await each.engine.destroy(copy)
    # It runs on.
    await each.sh(box, "n=$(wc -l < first); until [ $(wc -l < first) -gt $n ]; do sleep 0.01; done")


async def test_a_writable_root_is_kept_and_its_ids_are_those_of_the_new_sandbox(big_disk, debian):
    image = replace(debian, id="sha256:" + "1" * 64)
    site = Site(big_disk, image=image)
    try:
        box = await site.create(image="debian", profile="dev", workspace_id="named")
        await site.sh(
            box, "echo root > /etc/mine; chown 33:33 /etc/mine; rm /etc/issue; echo w > w"
        )
        other = await site.create(image="debian", profile="dev")
        await site.sh(
            other, "echo root > /etc/mine; chown 33:33 /etc/mine; rm -f /etc/issue; echo w > w"
        )
        for source in (box, other):
            snapshot = await site.snapshot(source)
            copy = await site.create(snapshot=snapshot.id)
            script = "cat /etc/mine w; stat -c %u:%g /etc/mine w /root; ls /etc/issue 2>&1 | wc -l"
            assert await site.sh(copy, script) == "root\nw\n33:33\n0:0\n0:0\n1\n"
            await site.sh(copy, "echo more >> /etc/mine; useradd -m someone; touch /usr/bin/new")
            twice = await site.create(snapshot=(await site.snapshot(copy)).id)
            assert await site.sh(twice, "tail -1 /etc/mine; id -un someone; ls /usr/bin/new") == (
                "more\nsomeone\n/usr/bin/new\n"
            )
        # A snapshot of a named workspace is a copy: the workspace is still the sandbox's own.
        assert (await site.engine.workspaces.get("named")).used_by == (box,)
        site.images.image = replace(image, id="sha256:" + "2" * 64)
        with pytest.raises(ImageNotFound) as raised:
            await site.create(snapshot=snapshot.id)
        assert raised.value.details["snapshot"] == snapshot.id
    finally:
        await site.aclose()


async def test_a_paused_source_stays_paused(each):
    box = await each.create(env={"A": "1"})
    await each.sh(box, "echo kept > f; cd /tmp; export Z=2; (sleep 1000 &)")
    await each.engine.pause(box)
    snapshot = await each.snapshot(box)
    assert (await each.engine.get(box)).status == "paused"
    assert (snapshot.env_names, snapshot.shells, snapshot.not_kept.processes) == (
        ("A",),
        ("default",),
        1,
    )
    copy = await each.create(snapshot=snapshot.id)
    assert await each.sh(copy, "pwd; cat /workspace/f; echo $A$Z") == "/tmp\nkept\n12\n"
    await each.engine.resume(box)
    assert await each.sh(box, "pgrep sleep | wc -l") == "1\n"


async def test_a_request_that_contradicts_is_refused_before_anything_is_made(site):
    box = await site.create()
    await site.snapshot(box, "base")
    for options, field in (
        ({"profile": "dev"}, "profile"),
        ({"workspace_id": "mine"}, "workspace_id"),
        ({"limits": {"workspace_mb": 63}}, "workspace_mb"),
        ({"limits": {"tmp_mb": 63}}, "tmp_mb"),
    ):
        with pytest.raises(Conflict) as raised:
            await site.create(snapshot="base", **options)
        assert raised.value.details["field"] == field
    with pytest.raises(ImageNotFound):
        await site.create(snapshot="base", image="another:1")
    for missing in ("snap_0123456789abcdef", "none", "../base", "x" * 500):
        with pytest.raises(SnapshotNotFound):
            await site.create(snapshot=missing)
    for name in ("Upper", "snap_0123456789abcdef", "", "a/b"):
        with pytest.raises(InvalidRequest):
            await site.snapshot(box, name)
    larger = await site.create(snapshot="base", limits={"workspace_mb": 96})
    blocks = int((await site.sh(larger, "stat -f -c '%b * %S' /workspace")).split()[0])
    assert blocks * 4096 > 80 * MIB
    assert len(await site.engine.list()) == 2


async def test_the_ceilings_of_now_apply(site):
    box = await site.create()
    await site.snapshot(box, "base")
    strict = site.open(Policy(disk=DISK, ceiling={"mem_limit_mb": 128}))
    with pytest.raises(PolicyDenied):
        await site.create(strict, snapshot="base")
    small = await site.create(strict, snapshot="base", limits={"memory_mb": 100})
    assert (await strict.get(small)).limits.memory_bytes == 100 * MIB
    await strict.aclose()


async def test_the_warm_pool_does_not_serve_it(site):
    pooled = site.open(pool=PoolRules(enabled=True))
    box = await site.create(pooled)
    await site.snapshot(box, "base")
    for _ in range(3):
        request = CreateRequest(SandboxOptions(snapshot="base"))
        assert (await pooled.create(request)).acquire_source == "cold"
    await pooled.aclose()


@pytest.mark.promise("P131")
async def test_another_tenant_neither_sees_nor_uses_nor_removes_it(site):
    box = await site.create(tenant="one")
    snapshot = await site.snapshot(box, "base")
    assert await site.engine.snapshots.list(tenant="two") == []
    for text in (snapshot.id, "base", "snap_0123456789abcdef"):
        for act in (site.engine.snapshots.get, site.engine.snapshots.remove):
            with pytest.raises(SnapshotNotFound) as raised:
                await act(text, tenant="two")
            assert raised.value.details == {"snapshot": text}
        with pytest.raises(SnapshotNotFound):
            await site.create(tenant="two", snapshot=text)
    assert [listed.id for listed in await site.engine.snapshots.list(tenant="one")] == [snapshot.id]


@pytest.mark.promise("P131")
async def test_quotas_refuse_what_is_too_much_and_leave_nothing(site):
    box = await site.create()
    await site.sh(box, "head -c 5M /dev/urandom > f")
    rules = SnapshotRules(max_count=2, max_total_bytes=100 * MIB)
    strict = site.open(Policy(disk=DISK, snapshots=rules))
    take = strict.snapshots.create
    await take(box, SnapshotRequest("a"))
    quota = TenantQuota(max_disk_bytes=64 * MIB + 6 * MIB)
    with pytest.raises(QuotaExceeded) as raised:
        await take(box, SnapshotRequest("b"), quota)
    assert raised.value.details["quota"] == "disk"
    second = await take(box, SnapshotRequest("a"))
    with pytest.raises(QuotaExceeded) as raised:
        await take(box, SnapshotRequest("a"))
    assert (raised.value.details["quota"], raised.value.details["used"]) == ("snapshots", 2)
    less = site.open(
        Policy(disk=DISK, snapshots=replace(rules, max_count=9, max_total_bytes=12 * MIB))
    )
    with pytest.raises(QuotaExceeded):
        await less.snapshots.create(box, SnapshotRequest("a"))
    assert len(site.left()) == 2
    await strict.snapshots.remove(second.id)
    kept = await take(box, SnapshotRequest("a", keep_last=1))
    assert [listed.id for listed in await strict.snapshots.list()] == [kept.id]
    assert await site.sh(box, "echo alive") == "alive\n"
    expiring = site.open(Policy(disk=DISK, snapshots=replace(rules, expire_after_s=1e-9)))
    await expiring.snapshots.tidy()
    assert site.left() == []
    for engine in (strict, less, expiring):
        await engine.aclose()


@pytest.mark.promise("P131")
async def test_a_full_disk_is_a_named_error_and_leaves_nothing(small_disk):
    site = Site(small_disk)
    box = await site.create()
    await site.sh(box, "head -c 50M /dev/urandom > f")
    (small_disk / "filler").write_bytes(bytes(20 * MIB))
    with pytest.raises(QuotaExceeded) as raised:
        await site.snapshot(box)
    assert raised.value.details["quota"] == "disk"
    assert site.left() == []
    assert await site.sh(box, "echo alive > g; cat g") == "alive\n"
    await site.aclose()


async def test_a_disk_that_becomes_full_while_it_copies_leaves_nothing(small_disk, monkeypatch):
    site = Site(small_disk)
    box = await site.create()
    await site.sh(box, "head -c 50M /dev/urandom > f")
    (small_disk / "filler").write_bytes(bytes(20 * MIB))
    monkeypatch.setattr(snapshot_directory, "check_free", lambda *_: None)
    with pytest.raises(QuotaExceeded) as raised:
        await site.snapshot(box)
    assert raised.value.details["quota"] == "disk"
    assert site.left() == []
    assert await site.sh(box, "echo alive > g; cat g") == "alive\n"
    await site.aclose()


async def test_blocks_are_shared_where_the_file_system_can(sharing_disk):
    site = Site(sharing_disk)
    box = await site.create()
    await site.sh(box, "head -c 30M /dev/urandom > f; md5sum f > sum")
    snapshot = await site.snapshot(box)
    assert snapshot.method == "reflink"
    copy = await site.create(snapshot=snapshot.id)
    assert await site.sh(copy, "md5sum -c sum") == "f: OK\n"
    assert await site.sh(box, "head -c 30M /dev/zero > f; sync; echo alive") == "alive\n"
    assert await site.sh(copy, "md5sum -c sum") == "f: OK\n"
    await site.aclose()


_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell
from sandkasten_runtime.linux.storage.snapshot_directory import SnapshotDirectory
from sandkasten.model.sandbox.snapshot import SnapshotRequest
from tests.local.test_snapshots import Site

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

async def work():
    site = Site(Path(sys.argv[1]))
    owners = {"_complete": SnapshotDirectory}
    setattr(owners.get(sys.argv[3], LaunchedCell), sys.argv[3], die)
    await site.snapshot(sys.argv[2])
asyncio.run(work())
"""


@pytest.mark.promise("P131")
@pytest.mark.parametrize("moment", ["_copy_files", "resume", "_complete"])
async def test_a_killed_process_leaves_a_running_sandbox_and_no_half_of_a_snapshot(site, moment):
    box = await site.create()
    await site.sh(box, "echo kept > f")
    words = [sys.executable, "-c", _KILLED, os.fspath(site.data_dir), box, moment]
    died = await asyncio.to_thread(subprocess.run, words, capture_output=True, timeout=60)
    assert died.returncode == -signal.SIGKILL, died.stderr
    (half,) = site.left()
    assert half.startswith(".making-snap_")
    await site.engine.snapshots.tidy()
    assert site.left() == []
    assert await site.sh(box, "cat f") == "kept\n"


async def test_a_removal_that_was_interrupted_is_finished(site):
    box = await site.create()
    snapshot = await site.snapshot(box)
    root = site.data_dir / "snapshots"
    (root / snapshot.id).rename(root / f".removing-{snapshot.id}-01234567")
    # It counts for no tenant.
    strict = site.open(Policy(disk=DISK, snapshots=SnapshotRules(max_count=1)))
    await strict.snapshots.remove((await strict.snapshots.create(box, SnapshotRequest())).id)
    await strict.aclose()
    with pytest.raises(SnapshotNotFound):
        await site.engine.snapshots.get(snapshot.id)
    await site.engine.snapshots.tidy()
    assert site.left() == []


async def test_a_snapshot_that_cannot_be_read_is_named_and_can_be_removed(site):
    box = await site.create()
    snapshot = await site.snapshot(box)
    meta = site.data_dir / "snapshots" / snapshot.id / "snapshot.json"
    meta.write_text(json.dumps({"id": snapshot.id}))
    with pytest.raises(SnapshotDamaged):
        await site.engine.snapshots.get(snapshot.id)
    for act in (site.engine.snapshots.get, site.engine.snapshots.remove):
        with pytest.raises(SnapshotNotFound):
            await act(snapshot.id, tenant="other")
    await site.engine.snapshots.remove(snapshot.id)
    assert site.left() == []


async def test_a_damaged_snapshot_counts_is_listed_expires_and_is_its_owners(site):
    box = await site.create(tenant="one")
    rules = SnapshotRules(max_count=1)
    strict = site.open(Policy(disk=DISK, snapshots=rules))
    snapshot = await strict.snapshots.create(box, SnapshotRequest("base"))
    meta = site.data_dir / "snapshots" / snapshot.id / "snapshot.json"
    meta.write_text(json.dumps({"id": snapshot.id, "tenant": "one"}))
    for tenant, ids in (("one", [snapshot.id]), ("two", []), ("default", [snapshot.id])):
        listed = await strict.snapshots.list(tenant=tenant)
        assert [(item.id, item.image) for item in listed] == [(the_id, "") for the_id in ids]
    assert listed[0].size_bytes > snapshot.size_bytes // 2
    assert (await strict.quotas.usage("one")).disk_bytes > 64 * MIB + snapshot.size_bytes // 2
    with pytest.raises(QuotaExceeded) as raised:
        await strict.snapshots.create(box, SnapshotRequest())
    assert raised.value.details["quota"] == "snapshots"
    with pytest.raises(SnapshotNotFound):
        await strict.snapshots.remove(snapshot.id, tenant="two")
    await strict.snapshots.remove(snapshot.id, tenant="one")
    assert site.left() == []
    again = await strict.snapshots.create(box, SnapshotRequest())
    (site.data_dir / "snapshots" / again.id / "snapshot.json").write_text("{}")
    little = SnapshotRules(max_total_bytes=again.size_bytes * 3 // 2, expire_after_s=1e-9)
    full = site.open(Policy(disk=DISK, snapshots=little))
    with pytest.raises(QuotaExceeded) as raised:
        await full.snapshots.create(box, SnapshotRequest())
    # Of other tenants it is not known what they have.
    assert raised.value.details.keys() == {"quota", "limit"}
    assert site.left() == [again.id]
    await full.snapshots.tidy()
    assert site.left() == []
    for engine in (strict, full):
        await engine.aclose()


async def test_the_state_of_shells_is_bounded_and_only_a_create_reads_it(site):
    names = [f"V{number:03}" + "x" * 241 for number in range(400)]
    box = await site.create(env=dict.fromkeys(names, "1"))
    for shell in range(4):
        request = ExecRequest(command="unset ${!V*}", shell=f"s{shell}")
        assert (await site.engine.exec(box, request)).exit_code == 0
    snapshot = await site.snapshot(box, "base")
    # 98 kB each, and 256 kB are kept.
    assert (len(snapshot.shells), len(snapshot.not_kept.shells)) == (2, 2)
    place = site.data_dir / "snapshots" / snapshot.id
    copy = await site.create(snapshot=snapshot.id)
    request = ExecRequest(command="echo ${!V*}", shell=snapshot.shells[0])
    assert (await site.engine.exec(copy, request)).stdout == b"\n"
    (place / "state.json").unlink()
    assert await site.engine.snapshots.list() == [snapshot]
    with pytest.raises(SnapshotDamaged):
        await site.create(snapshot=snapshot.id)


async def test_metadata_that_is_too_large_is_refused_before_there_is_a_snapshot(site):
    env = {f"V{number:04}" + "x" * 240: "1" for number in range(1500)}
    box = await site.create(env=env)
    with pytest.raises(QuotaExceeded) as raised:
        await site.snapshot(box)
    assert raised.value.details["quota"] == "snapshot_metadata"
    assert site.left() == []
    assert await site.sh(box, "echo alive") == "alive\n"


async def test_the_quotas_count_what_the_copy_really_takes(site):
    # With `reserve: all`, the volume takes more than its copy and /tmp.
    sparse = DiskRules(reserve="none", min_free_bytes=0)
    strict = site.open(Policy(disk=sparse))
    box = await site.create(strict)
    await strict.aclose()
    first = await site.snapshot(box)
    await site.sh(box, "head -c 20M /dev/urandom > /tmp/f")
    most = 2 * first.size_bytes + 5 * MIB
    strict = site.open(Policy(disk=DISK, snapshots=SnapshotRules(max_total_bytes=most)))
    with pytest.raises(QuotaExceeded) as raised:
        await strict.snapshots.create(box, SnapshotRequest())
    assert raised.value.details["quota"] == "snapshots"
    quota = TenantQuota(max_disk_bytes=64 * MIB + most)
    with pytest.raises(QuotaExceeded) as raised:
        await site.engine.snapshots.create(box, SnapshotRequest(), quota)
    assert raised.value.details["quota"] == "disk"
    assert site.left() == [first.id]
    assert await site.sh(box, "echo alive") == "alive\n"
    await strict.aclose()


async def test_a_backend_without_copies_refuses_by_name(site, monkeypatch):
    box = await site.create()
    snapshot = await site.snapshot(box)
    backend = site.engine._backends["local"]
    lacking = replace(backend.capabilities, copies_files=False)
    monkeypatch.setitem(vars(backend), "capabilities", lacking)
    with pytest.raises(UnsupportedByBackend) as raised:
        await site.create(snapshot=snapshot.id)
    assert raised.value.details["backend"] == "local"


async def test_a_shared_workspace_is_not_copied_while_another_sandbox_writes_to_it(site):
    first = await site.create(workspace_id="shared", workspace_mode="shared")
    second = await site.create(workspace_id="shared", workspace_mode="shared")
    with pytest.raises(Conflict) as raised:
        await site.snapshot(first)
    assert raised.value.details["sandbox_ids"] == [second]
    await site.engine.destroy(second)
    await site.sh(first, "echo mine > f; chmod 600 f")
    copy = await site.create(snapshot=(await site.snapshot(first)).id)
    assert (
        await site.sh(copy, "cat f; stat -c '%u %a' f . ~")
        == "mine\n1000 600\n1000 755\n1000 755\n"
    )
    assert (await site.engine.get(copy)).workspace_id is None


@pytest.mark.promise("P130")
async def test_a_failure_while_it_is_stopped_lets_it_run_on(site, monkeypatch):
    box = await site.create()

    def fails(*_):
        raise OSError(5, "input/output error")

    monkeypatch.setattr(tree_copy, "share_or_copy", fails)
    with pytest.raises(BackendUnavailable):
        await site.snapshot(box)
    assert await site.sh(box, "echo alive") == "alive\n"
    assert site.left() == []


@pytest.mark.promise("P131")
async def test_a_sandbox_that_could_not_run_on_is_tried_again(site, monkeypatch):
    box = await site.create()

    async def fails(*_):
        raise BackendUnavailable("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(LaunchedCell, "resume", fails)
        with pytest.raises(BackendUnavailable):
            await site.snapshot(box)
        await site.engine.snapshots.tidy()
        (half,) = site.left()
        assert half.startswith(".making-snap_")
    await site.engine.snapshots.tidy()
    assert site.left() == []
    assert await site.sh(box, "echo alive") == "alive\n"


@pytest.mark.parametrize("work", ["flush_files", "save", "check", "restore"])
async def test_a_long_copy_takes_no_thread_from_others(site, monkeypatch, work):
    owner = {"flush_files": LaunchedCell, "check": ext4}.get(work, memory_tree)
    name = "_flush_files" if work == "flush_files" else work
    box, other = await site.create(), await site.create()
    snapshot = await site.snapshot(box)
    begun, go, original = threading.Event(), threading.Event(), getattr(owner, name)

    def waits(*args, **kwargs):
        begun.set()
        go.wait(2 * PATIENCE_S)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, waits)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    slow = site.create(snapshot=snapshot.id) if work == "restore" else site.snapshot(box)
    task = asyncio.create_task(slow)
    try:
        assert await in_own_thread(begun.wait, PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            await site.engine.destroy(other)
    finally:
        go.set()
        await task


async def test_a_sandbox_runs_while_its_snapshot_waits_for_others(site, monkeypatch):
    boxes = [await site.create() for _ in range(4)]
    entered, go, original = threading.Semaphore(0), threading.Event(), memory_tree.save

    def waits(*args):
        entered.release()
        go.wait(2 * PATIENCE_S)
        return original(*args)

    monkeypatch.setattr(memory_tree, "save", waits)
    tasks = [asyncio.create_task(site.snapshot(box)) for box in boxes[:2]]
    try:
        for _ in tasks:
            assert await in_own_thread(entered.acquire, timeout=PATIENCE_S)
        tasks += [asyncio.create_task(site.snapshot(box)) for box in boxes[2:]]
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(5):
                for box in boxes[2:]:
                    assert await site.sh(box, "echo alive; sleep 0.1") == "alive\n"
        assert not entered.acquire(blocking=False)
    finally:
        go.set()
        await asyncio.gather(*tasks)


@pytest.mark.promise("P130")
@pytest.mark.parametrize(
    ("constants", "error"),
    [
        ({"_INODE_BYTES": -(10**6), "_BYTES_PER_S": 10**15}, QuotaExceeded),
        ({"_NAMES_S": -1e9}, Busy),
    ],
)
async def test_a_tmp_that_is_too_much_lets_the_sandbox_run_on(site, monkeypatch, constants, error):
    box = await site.create()
    for name, number in constants.items():
        monkeypatch.setattr(memory_tree, name, number)
    with pytest.raises(error):
        await site.snapshot(box)
    assert site.left() == []
    assert await site.sh(box, "echo alive") == "alive\n"


async def test_a_failure_of_the_storage_does_not_stop_a_sweep(site, monkeypatch):
    events = Events()
    engine = site.open(events=events)
    box = await site.create()

    async def fails(*_):
        raise OSError(5, "input/output error")

    monkeypatch.setattr(engine.snapshots.port, "begun", fails)
    assert (await engine.sweep()).failed == ()
    assert "snapshot.tidy_failed" in events.names()
    monkeypatch.undo()
    (site.data_dir / "snapshots").write_text("")
    with pytest.raises(BackendUnavailable):
        await engine.snapshots.list()
    assert await site.sh(box, "echo alive") == "alive\n"
    await engine.aclose()


# btrfs cannot reserve blocks.
@pytest.mark.parametrize("sharing_disk", ["xfs"], indirect=True)
async def test_blocks_get_their_own_place_only_where_space_stays_free(sharing_disk):
    assert free_space.is_reservable(sharing_disk)
    site = Site(sharing_disk)
    try:
        box = await site.create()
        await site.sh(box, "head -c 30M /dev/urandom > f; sync")
        least = free_space.free_bytes(sharing_disk) - 15 * MIB
        strict = site.open(Policy(disk=DiskRules(min_free_bytes=least)))
        with pytest.raises(QuotaExceeded) as raised:
            await strict.snapshots.create(box, SnapshotRequest())
        assert raised.value.details == {"quota": "disk"}
        assert site.left() == []
        assert await site.sh(box, "echo alive > g; cat g") == "alive\n"
        await strict.aclose()
    finally:
        await site.aclose()
