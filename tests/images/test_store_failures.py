"""The store under failures: kills, full disks, concurrent imports, no root."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.layers.image_store import LayerStore
from tests import imagekit
from tests.imagekit import docker_members, layer, sketch, tree_of, write_tar
from tests.ordinary_user import OrdinaryUser
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

pytestmark = pytest.mark.promise("P49")

NOBODY = 65534
# A process of its own that imports one file: store, file, name.
IMPORT = (
    "import sys; from pathlib import Path\n"
    "from sandkasten.errors import SandkastenError\n"
    "from sandkasten_runtime.images.archives.archive_import import Import, import_file\n"
    "from sandkasten_runtime.images.layers.image_store import LayerStore\n"
    "print('ready', flush=True)\n"
    "try:\n"
    "    [image] = import_file(LayerStore(Path(sys.argv[1])), Import(Path(sys.argv[2]),"
    " name=sys.argv[3]))\n"
    "    print(image.id)\n"
    "except SandkastenError as exc:\n"
    "    print(exc.code, exc.message)\n"
)


def importer(store: Path, path: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", IMPORT, str(store), str(path), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def medium(tmp_path: Path) -> Path:
    """An image of four layers that takes long enough to be interrupted."""
    layers = [
        layer({f"d{n}": None, **{f"d{n}/f{i}": os.urandom(400) * 20 for i in range(300)}})
        for n in range(4)
    ]
    return write_tar(tmp_path / "medium.tar", docker_members(sketch(layers=layers)))


@pytest.mark.timeout(600)
def test_leftovers_of_a_killed_import_are_cleared_by_the_next_one(store, tmp_path):
    path = medium(tmp_path)
    whole = importer(tmp_path / "calm", path, "n")
    assert whole.stdout is not None
    whole.stdout.readline()
    began = time.monotonic()
    the_id = whole.communicate()[0].strip()
    took = time.monotonic() - began
    calm = LayerStore(tmp_path / "calm")
    image = calm.find("n")
    assert image is not None
    assert image.id == the_id

    generator = random.Random(3)
    rounds = killed = 0
    looked_at: set[int] = set()
    # A machine that was busy at first and is so no more lets the first few come to their end.
    while rounds < 20 or (killed < 5 and rounds < 60):
        rounds += 1
        anew = not any((store.root / "layers").glob("*"))
        process = importer(store.root, path, "n")
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        try:
            process.wait(generator.random() * took)
        except subprocess.TimeoutExpired:
            process.kill()
        else:
            took = time.monotonic() - began if anew else took
        out, _ = process.communicate()
        killed += not out.strip()
        # Whatever is visible is whole, and what is whole is right.
        seen = LayerStore(store.root)
        for one in seen.layers():
            tree = Path(seen.tree(one.diff_id))
            if tree.stat().st_ino not in looked_at:
                assert tree_of(tree) == tree_of(Path(calm.tree(one.diff_id)))
                looked_at.add(tree.stat().st_ino)
        # Begin from nothing now and then, or the later kills have nothing to hit.
        if generator.random() < 0.5:
            shutil.rmtree(store.root, ignore_errors=True)
            looked_at.clear()
    assert killed >= 5

    [found] = import_file(LayerStore(store.root), Import(path, name="n"))
    assert found.id == the_id
    # The unpacker of a killed import ends by itself when nobody feeds it any more.
    deadline = time.monotonic() + PATIENCE_S
    while os.listdir(store.root / "making") and time.monotonic() < deadline:
        LayerStore(store.root).tag("n", "n")
        time.sleep(0.05)
    assert os.listdir(store.root / "making") == []
    assert [tree_of(Path(one)) for one in store.trees(found)] == [
        tree_of(Path(one)) for one in calm.trees(image)
    ]
    store.collect(set())
    assert store.trees(found)


@pytest.mark.parametrize("kind", ["docker", "rootfs"])
def test_concurrent_imports_of_one_image_give_one_image(store, tmp_path, kind):
    path = medium(tmp_path)
    if kind == "rootfs":
        path = imagekit.busybox_tar()
    processes = [importer(store.root, path, f"n{number % 2}") for number in range(4)]
    told = [process.communicate(timeout=100) for process in processes]
    ids = {out.splitlines()[-1] for out, _ in told}
    assert [err for _, err in told] == [""] * 4
    assert len(ids) == 1
    assert next(iter(ids)).startswith("sha256:")
    [image] = store.list()
    assert image.names == ("n0:latest", "n1:latest")
    assert len(os.listdir(store.root / "layers")) == len(image.layers)
    assert os.listdir(store.root / "making") == []


def test_a_disk_that_fills_while_unpacking_keeps_nothing_half_made(tmp_path):
    """On a separate file system, in a mount namespace of one process."""
    small, large = imagekit.busybox_tar(), tmp_path / "large.tar"
    large.write_bytes(layer({"etc": None, **{f"etc/{n}": os.urandom(1 << 20) for n in range(12)}}))
    where = tmp_path / "small"
    where.mkdir()
    script = f"""
set -e
mount -t tmpfs -o size=8m none {where}
run() {{ {sys.executable} -c "$CODE" {where}/images "$@"; }}
run {large} large
find {where}/images/making {where}/images/layers -mindepth 1 -maxdepth 1 | wc -l
run {small} small
find {where}/images/making -mindepth 1 | wc -l
ls {where}/images/layers | wc -l
"""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "CODE": IMPORT},
        check=True,
    )
    ready, refused, left, again, the_id, making, layers = done.stdout.splitlines()
    assert (ready, again) == ("ready", "ready")
    assert refused.startswith("QUOTA_EXCEEDED ")
    assert left == "0"
    assert the_id.startswith("sha256:")
    assert (making, layers) == ("0", "1")


def test_an_ordinary_user_has_a_store_too():
    """Everything belongs to the user, and opaque directories are marked by user attributes."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from sandkasten_runtime.images.archives.archive_import import Import, import_file\n"
        "from sandkasten_runtime.images.layers.image_store import LayerStore\n"
        "store = LayerStore(Path(sys.argv[1]))\n"
        "[image] = import_file(store, Import(Path(sys.argv[2])))\n"
        "trees = store.trees(image)\n"
        "owners = {p.lstat().st_uid for t in trees for p in Path(t).rglob('*')}\n"
        "print(sorted(owners), os.getxattr(trees[1] + '/d', 'user.overlay.opaque'))\n"
        "Path(trees[0], 'etc').chmod(0)\n"
        "store.remove('sketch:1', in_use=set())\n"
        "print(len(store.collect(set()).layers), os.listdir(store.root / 'making'))\n"
    )
    with OrdinaryUser() as user:
        archive = write_tar(user.home / "x.tar", docker_members(sketch()))
        words = ("-c", code, str(user.home / "images"), str(archive))
        done = user.python(*words, timeout_s=FAR_TOO_LATE_S)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"[{user.id}] b'y'", "3 []"]
