"""Named workspaces and host mounts on real sandboxes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from sandkasten import (
    Conflict,
    Info,
    PolicyDenied,
    QuotaExceeded,
    Sandbox,
    SandkastenError,
    Workspaces,
    run,
)
from sandkasten_runtime.linux.storage import workspace_image
from tests.ordinary_user import OrdinaryUser
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="must be root to see what root sees"),
]


class Here:
    """A separate data directory, because an engine reads its settings once."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.sandbox = partial(Sandbox, data_dir=data_dir)
        self.run = partial(run, data_dir=data_dir)
        self.workspaces = Workspaces(data_dir=data_dir)

    def sandboxes(self) -> list[Info]:
        return Sandbox.list(data_dir=self.data_dir)


@pytest.fixture
def local_data(
    monkeypatch: pytest.MonkeyPatch, unisolated_only: None, tmp_path: Path
) -> Iterator[Here]:
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    made = Here(tmp_path / "data")
    yield made
    for info in made.sandboxes():
        Sandbox.attach(info.id, data_dir=made.data_dir).close()


@pytest.fixture
def mounted_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    (models / "weights").write_text("42")
    models.chmod(0o777)
    (models / "weights").chmod(0o666)
    one = tmp_path / "one.txt"
    one.write_text("file\n")
    rules = f"models={models}:/models,one={one}:/mnt/one.txt:default"
    monkeypatch.setenv("SANDKASTEN_POLICY_MOUNTS", rules)
    return models


@pytest.mark.promise("P22")
def test_workspace_files_keep_owner_and_mode_for_the_next_sandbox(local_data):
    with local_data.sandbox(workspace="w", limits={"workspace_mb": 32}) as box:
        box.exec("umask 077; echo kept > file; mkdir -p d/e; ln -s file link; echo h > ~/.rc")
        info = box.info()
        assert (info.workspace_id, info.limits.workspace_bytes) == ("w", 32 << 20)
        assert info.unenforced == ()
    with local_data.sandbox(workspace_id="w") as box:
        result = box.exec("cat link ~/.rc; stat -c '%U %a %n' file d; id -u")
        assert result.output == "kept\nh\nsandbox 600 file\nsandbox 700 d\n1000\n"
    assert [one.name for one in local_data.workspaces.list()] == ["w"]


@pytest.mark.promise("P26")
def test_the_kernel_enforces_the_size_of_a_named_workspace(local_data):
    with local_data.sandbox(workspace="w", limits={"workspace_mb": 16}) as box:
        full = box.exec("head -c 30000000 /dev/zero > big; ls -l big >/dev/null; rm big; echo ok")
        assert "No space left" in full.stderr
        assert full.stdout == "ok\n"
        with pytest.raises(QuotaExceeded):
            box.write("big", bytes(30_000_000))
    local_data.workspaces.resize("w", 64)
    with local_data.sandbox(workspace="w") as box:
        assert box.exec("head -c 30000000 /dev/zero > big && wc -c < big").stdout == "30000000\n"
        told = local_data.workspaces.get("w")
        assert told.used_by == (box.id,)
        assert told.used_bytes is not None
        assert 30_000_000 < told.used_bytes < 32_000_000


def test_a_workspace_is_exclusive_and_a_conflict_names_the_holder(local_data):
    with local_data.sandbox(workspace="w") as box:
        with pytest.raises(Conflict, match=box.id):
            local_data.sandbox(workspace="w")
        with pytest.raises(Conflict, match=box.id):
            local_data.workspaces.delete("w")
        with pytest.raises(Conflict, match=box.id):
            local_data.workspaces.copy("w", "x")
    local_data.workspaces.delete("w")
    assert local_data.workspaces.list() == []


@pytest.mark.promise("P22")
def test_sharing_sandboxes_see_each_others_files(local_data):
    with (
        local_data.sandbox(workspace="w", workspace_mode="shared") as one,
        local_data.sandbox(workspace="w", workspace_mode="shared") as other,
    ):
        one.exec("echo hello > file")
        assert other.exec("cat file; echo more >> file").stdout == "hello\n"
        assert one.exec("cat file").stdout == "hello\nmore\n"
        one.close()
        assert other.exec("cat file").stdout == "hello\nmore\n"
        other.exec("echo last >> file")
    with local_data.sandbox(workspace="w") as box:
        assert box.exec("cat file").stdout == "hello\nmore\nlast\n"


def test_concurrent_claims_leave_one_holder_and_an_intact_file_system(local_data, tmp_path):
    local_data.workspaces.create("w", size_mb=32)
    made: list[Sandbox] = []
    told: list[SandkastenError] = []

    def want() -> None:
        try:
            made.append(local_data.sandbox(workspace="w"))
        except SandkastenError as exc:
            told.append(exc)

    crowd = [threading.Thread(target=want) for _ in range(6)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(60)
    assert (len(made), {type(exc) for exc in told}) == (1, {Conflict})
    made[0].exec("echo x > file")
    made[0].close()
    with local_data.sandbox(workspace="w") as box:
        assert box.exec("cat file").stdout == "x\n"


def test_a_killed_sandbox_leaves_its_workspace_intact(local_data, tmp_path):
    """Its first process is killed, so that nothing was unmounted in order."""
    box = local_data.sandbox(workspace="w", limits={"workspace_mb": 32})
    box.exec("for i in $(seq 200); do echo $i > f$i; done; sync")
    pid = int((tmp_path / "data" / "cells" / box.id / "pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not local_data.workspaces.list()[0].used_by)
    with local_data.sandbox(workspace="w") as heir:
        assert heir.exec("ls | wc -l; cat f200").output == "200\n200\n"
    volume = tmp_path / "data" / "workspaces" / "w" / "volume"
    _until(lambda: not workspace_image.attached(str(volume)))
    subprocess.run(["e2fsck", "-fn", volume], check=True, capture_output=True, timeout=60)


def test_a_killed_process_releases_its_workspace(local_data, tmp_path):
    code = """
        import os, sys
        from sandkasten import Sandbox
        box = Sandbox(workspace="w")
        box.exec("echo kept > file; sync")
        box.update(ttl_seconds=1)
        print(box.id, flush=True)
        os.kill(os.getpid(), 9)
    """
    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert died.returncode == -9
    # The sandbox lives on without its maker until its own lease ends it.
    _until(lambda: not local_data.workspaces.list()[0].used_by)
    with local_data.sandbox(workspace="w") as heir:
        assert heir.exec("cat file").stdout == "kept\n"


def test_a_run_keeps_its_files_and_not_its_code(local_data):
    first = local_data.run("open('made', 'w').write('x'); print('ok')", workspace="w")
    assert (first.ok, first.stdout) == (True, "ok\n")
    second = local_data.run("import os; print(os.path.exists('made'))", workspace="w")
    assert second.stdout == "True\n"
    with local_data.sandbox(workspace="w") as box:
        assert box.exec("ls -A").stdout == "made\n"


def test_a_copy_is_an_independent_workspace(local_data):
    with local_data.sandbox(workspace="w", limits={"workspace_mb": 32}) as box:
        box.exec("echo first > file")
    local_data.workspaces.copy("w", "x")
    with local_data.sandbox(workspace="x") as box, local_data.sandbox(workspace="w") as other:
        assert box.exec("cat file; echo second > file").stdout == "first\n"
        assert other.exec("cat file").stdout == "first\n"


@pytest.mark.promise("P24")
def test_a_mount_is_read_only_at_the_operators_target(local_data, mounted_models):
    with local_data.sandbox(mounts=["models"]) as box:
        assert [(one.name, one.target) for one in box.info().mounts] == [
            ("models", "/models"),
            ("one", "/mnt/one.txt"),
        ]
        assert box.exec("cat /models/weights /mnt/one.txt").stdout == "42file\n"
        tried = box.exec("echo x > /models/new; echo x > /models/weights; rm -f /models/weights")
        assert tried.stderr.count("Read-only file system") == 3
        options = box.exec("grep ' /models ' /proc/self/mountinfo | cut -d' ' -f6").stdout
        assert {"ro", "nosuid", "nodev"} <= set(options.strip().split(","))
        assert box.read("/models/weights") == b"42"
        for attempt in (
            lambda: box.write("/models/new", "x"),
            lambda: box.remove("/models/weights"),
            lambda: box.mkdir("/models/d"),
            lambda: box.move("/models/weights", "/workspace/w"),
            lambda: box.write("/mnt/one.txt", "x"),
        ):
            with pytest.raises(PolicyDenied) as refused:
                attempt()
            assert refused.value.hint
    assert (mounted_models / "weights").read_text() == "42"
    assert [one.name for one in mounted_models.iterdir()] == ["weights"]


def test_without_a_request_only_the_default_mount_is_present(local_data, mounted_models):
    with local_data.sandbox() as box:
        assert box.exec("ls -d /models /mnt/*").stdout == "/mnt/one.txt\n"
    assert (
        local_data.run("print(open('/mnt/one.txt').read())", mounts=["models"]).stdout == "file\n\n"
    )


@pytest.mark.promise("P24")
@pytest.mark.parametrize("name", ["/etc", "../models", "weights", ""])
def test_a_request_for_an_unlisted_mount_is_refused(local_data, mounted_models, name):
    with pytest.raises(PolicyDenied, match="known: models, one"):
        local_data.sandbox(mounts=[name])
    assert local_data.sandboxes() == []


@pytest.mark.promise("P26")
def test_workspaces_and_mounts_work_for_an_ordinary_user():
    code = """
        import os
        os.environ["SANDKASTEN_POLICY_MOUNTS"] = f"models={os.environ['HOME']}/models:/models"
        from sandkasten import Conflict, Sandbox, Workspaces
        with Sandbox(workspace="w", mounts=["models"]) as box:
            box.exec("echo kept > file; mkdir -m 0 shut")
            assert box.exec("cat /models/weights").stdout == "42", "mount"
            assert "Read-only" in box.exec("echo > /models/x").stderr, "read-only"
            told = [one.reason for one in box.info().unenforced if one.limit == "workspace"]
            assert len(told) == 1 and "directory" in told[0], told
            try:
                Sandbox(workspace="w")
            except Conflict:
                pass
            else:
                raise AssertionError("two have it")
        assert Workspaces().get("w").kind == "directory"
        with Sandbox(workspace="w") as box:
            assert box.exec("cat file; ls").stdout == "kept\\nfile\\nshut\\n", "kept"
        Workspaces().delete("w")
        assert Workspaces().list() == []
        print("done")
    """
    with OrdinaryUser() as user:
        models = user.home / "models"
        models.mkdir()
        (models / "weights").write_text("42")
        ran = user.python("-c", textwrap.dedent(code), timeout_s=100)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def _until(question) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not question():
        assert time.monotonic() < ends, f"it did not come true within {PATIENCE_S:g} s"
        time.sleep(0.02)
