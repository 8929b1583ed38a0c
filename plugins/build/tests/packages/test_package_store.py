"""The store of package sets: complete or absent, least recently used removed first."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from plugins.build.tests.packages.processes import fetchers
from sandkasten.disk.cleanup import finish
from sandkasten.errors import QuotaExceeded
from sandkasten_build.packages.package_rules import PackageRules
from sandkasten_build.packages.package_shelf import GRACE_S, Shelf, settle
from sandkasten_runtime.images.thread_work import to_the_end
from tests.packages.wheels import serving, wheel
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.promise("P55")

BLOCK = 64 * 1024


async def put(shelf: Shelf, key: str, *, idle_s: float = 0) -> None:
    shelf.prepare()
    async with shelf.scratch() as scratch:
        directory = scratch / "made"
        (directory / "tree").mkdir(parents=True)
        (directory / "tree" / "file").write_bytes(os.urandom(BLOCK))
        shelf.put(key, directory, {"packages": [key]})
    then = time.time() - idle_s
    os.utime(shelf.tree(key).parent, (then, then))


@pytest.mark.anyio
async def test_the_least_recently_used_set_is_removed_unless_it_is_in_use_or_new(tmp_path):
    shelf = Shelf(tmp_path / "p", max_bytes=4 * BLOCK)
    for number, key in enumerate(("old", "used", "older")):
        await put(shelf, key, idle_s=2 * GRACE_S + number)
    await put(shelf, "fresh")
    shelf.make_room(BLOCK, {"older"})
    assert [shelf.has(key) for key in ("old", "used", "older", "fresh")] == [
        True, False, True, True,
    ]  # fmt: skip
    assert shelf.use("old")
    with pytest.raises(QuotaExceeded, match="the rest is in use"):
        shelf.make_room(3 * BLOCK, {"older"})
    assert shelf.has("old"), "asked for a moment ago"


def test_files_from_a_sandbox_become_ours_and_readable_only(tmp_path):
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    for name, mode in (("plain", 0o4600), ("program", 0o2701), ("open", 0o666)):
        (tree / "closed" / name).write_text("x")
        (tree / "closed" / name).chmod(mode)
    (tree / "link").symlink_to(secret)
    (tree / "closed").chmod(0o700)
    settle(tree)
    modes = {
        path.name: oct(path.lstat().st_mode & 0o7777)
        for path in tree.rglob("*")
        if not path.is_symlink()
    }
    assert modes == {"closed": "0o755", "plain": "0o644", "program": "0o755", "open": "0o644"}
    assert oct(secret.stat().st_mode & 0o7777) == "0o600", "no link was followed"


def poll(look, wanted, within_s: float = PATIENCE_S):
    """Return the last value, which is `wanted` unless the time ran out."""
    ends_at = time.monotonic() + within_s
    while (value := look()) != wanted and time.monotonic() < ends_at:
        time.sleep(0.02)
    return value


def test_a_directory_is_measured_with_its_contents(tmp_path):
    rules = PackageRules(find_links=str(tmp_path))
    before = rules.pip_source
    assert PackageRules(find_links=str(tmp_path)).pip_source == before
    wheel(tmp_path, "new")
    assert rules.pip_source != before
    index = PackageRules(index_url="https://me:secret@host/simple")
    assert index.pip_source == ["index https://host/simple"]
    assert "secret" not in repr(index)


_DYING = """
import asyncio, sys
from pathlib import Path
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions

async def main():
    flags = {"data_dir": sys.argv[1], "packages.index_url": sys.argv[2]}
    engine = await open_engine(load(flags, {}, Path("/nonexistent")))
    options = SandboxOptions(pip_packages=("gamma",))
    result = await engine.run(RunRequest("import gamma; print(gamma.VERSION)", options=options))
    print(result.stdout.decode())
    await engine.aclose()

asyncio.run(main())
"""


@pytest.mark.timeout(300)
def test_a_killed_process_leaves_no_partial_set(data_dir: Path, tmp_path: Path):
    """The next process sweeps the leftovers and gets the complete set."""
    wheel(tmp_path / "w", "gamma", "3.0")
    making = data_dir / "packages" / "making"
    words = [sys.executable, "-c", _DYING, str(data_dir)]
    with serving(tmp_path / "w") as index:
        words.append(f"{index.url}/simple")
        index.stall = threading.Event()
        dying = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert index.began.wait(PATIENCE_S)
        dying.kill()
        dying.wait()
        sets = sorted((data_dir / "packages" / "sets").glob("*"))
        assert len(list(making.iterdir())) == 1
        assert poll(lambda: fetchers(data_dir), []) == [], "it ended with whoever began it"
        index.stall.set()
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.strip() == "3.0", done.stderr
    assert list(making.iterdir()) == []
    assert len(sorted((data_dir / "packages" / "sets").glob("*"))) == len(sets) + 1


@pytest.mark.anyio
async def test_a_cancelled_caller_waits_for_its_thread_and_can_hurry_it():
    started, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go_on.wait(PATIENCE_S)
        done.set()

    waiting = asyncio.ensure_future(finish(asyncio.to_thread(work), hurry=go_on.set))
    assert await asyncio.to_thread(started.wait, PATIENCE_S)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done.is_set()
    assert await to_the_end(lambda: 5) == 5
