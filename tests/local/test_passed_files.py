"""Files read through descriptors that the runner of a real sandbox passes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandkasten import FileNotFound, NotRegular, PolicyDenied, Sandbox
from sandkasten.disk import received_file
from sandkasten_runtime.engine.storage import open_file

pytestmark = [pytest.mark.root, pytest.mark.promise("P96")]

LARGE = 3_000_000


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    """Without a warm pool, whose sandbox would outlive the test.

    In a directory of its own: the engine stays open, and removes sandboxes without a record, such
    as those that other tests make in `data_dir` without an engine.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDKASTEN_POOL_ONESHOT_SPARES", "0")
        own = tmp_path_factory.mktemp("data")
        with Sandbox(url="embedded", backend="local", data_dir=own) as made:
            yield made


@pytest.fixture
def passed(monkeypatch):
    """The descriptors that were accepted, as paths that the kernel gives them."""
    seen = []

    def accept(descriptor, device, inode):
        seen.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return received_file.accept(descriptor, device, inode)

    monkeypatch.setattr(open_file, "accept", accept)
    return seen


def test_large_files_are_passed_and_small_ones_are_sent(box, passed):
    content = os.urandom(LARGE)
    for path in ("/workspace/large", "/tmp/large"):
        box.write(path, content)
        assert box.read(path) == content
        assert box.read(path, offset=5, limit=LARGE - 10) == content[5:-5]
    assert len(passed) == 4
    assert box.read("/workspace/large", limit=100) == content[:100]
    assert len(passed) == 4


def test_rules_for_paths_hold_for_passed_files(box, passed):
    box.write("/workspace/real", bytes(LARGE))
    box.exec("ln -sf real link; ln -sf /etc/passwd accounts; mkfifo fifo", check=True)
    assert len(box.read("/workspace/link")) == LARGE
    assert len(passed) == 1
    for path, error in (
        ("/workspace/accounts", PolicyDenied),
        ("/workspace/fifo", NotRegular),
        ("/workspace/missing", FileNotFound),
        ("/proc/kcore", PolicyDenied),
    ):
        with pytest.raises(error):
            box.read(path)
    assert len(passed) == 1


def test_many_reads_at_once_get_their_own_files_and_keep_no_descriptor(box, passed):
    contents = {f"/workspace/many-{n}": os.urandom(70_000 + n) for n in range(20)}
    for path, content in contents.items():
        box.write(path, content)
    box.read("/workspace/many-0")
    before = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(10) as threads:
        for path, got in zip(contents, threads.map(box.read, contents), strict=True):
            assert got == contents[path]
    assert len(passed) > 20
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.long("hundreds of reads of a file that a program keeps changing")
def test_file_that_changes_while_it_is_read_is_a_part_of_what_it_was(box, passed):
    box.exec(
        "(while :; do truncate -s 0 race; truncate -s 8000000 race; done) >/dev/null 2>&1 &",
        check=True,
    )
    for _ in range(300):
        data = box.read("/workspace/race")
        assert len(data) <= 8_000_000
        assert not any(data[::4096])
    assert passed
