"""The layer store: content stored once, references, garbage collection, no partial layers."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sandkasten.disk.tree_removal import remove_tree
from sandkasten.errors import Busy, Conflict, InvalidImage
from sandkasten_runtime.images.image_config import parse_config
from sandkasten_runtime.images.layers.image_records import image_id
from sandkasten_runtime.images.layers.image_store import ImageConfig, LayerStore
from sandkasten_runtime.images.layers.store_locks import StoreLocks
from tests.imagekit import digest, layer, tree_of

ONE = layer({"a": b"1", "etc": None, "etc/passwd": b"root:x:0:0::/root:/bin/sh\n"})
TWO = layer({"b": b"22"})
THREE = layer({"c": b"333"})


def add(store: LayerStore, data: bytes) -> str:
    return store.add_layer(io.BytesIO(data)).diff_id


def put(store: LayerStore, *layers: bytes, names: tuple[str, ...] = ("x",)):
    return store.put_image([add(store, one) for one in layers], ImageConfig(), names)


def leftovers(store: LayerStore) -> list[str]:
    return os.listdir(store.root / "making")


def test_a_missing_store_is_empty_and_is_not_created(store):
    assert store.list() == []
    assert store.find("x") is None
    assert store.collect(set()).layers == ()
    assert not store.root.exists()


@pytest.mark.promise("P48")
def test_a_layer_is_identified_by_the_digest_of_its_uncompressed_tar(store):
    plain = store.add_layer(io.BytesIO(ONE))
    packed = gzip.compress(ONE)
    again = store.add_layer(io.BytesIO(packed), expect_digest=digest(packed))
    assert plain == again
    assert plain.diff_id == digest(ONE)
    assert os.listdir(store.root / "layers") == [digest(ONE)[7:]]
    assert store.known_blob(digest(packed)) == digest(ONE)
    assert store.known_blob(digest(TWO)) is None
    assert leftovers(store) == []


def test_a_stored_layer_is_not_read_again(store):
    add(store, ONE)

    class Untouchable(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise AssertionError("it was read")

    again = store.add_layer(Untouchable(), expect_diff_id=digest(ONE))
    assert again.diff_id == digest(ONE)


def test_a_layer_stored_by_another_import_meanwhile_is_not_read(store):
    add(store, TWO)
    found = []

    class Untouchable(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise AssertionError("it was read")

    def wait() -> None:
        found.append(store.add_layer(Untouchable(), expect_diff_id=digest(ONE)))

    with StoreLocks(store.root).alone(digest(ONE)[7:]):
        waiter = threading.Thread(target=wait)
        waiter.start()
        add(store, ONE)
    waiter.join()
    assert [one.diff_id for one in found] == [digest(ONE)]


@pytest.mark.promise("P49")
@pytest.mark.parametrize("what", ["expect_digest", "expect_diff_id"])
def test_a_digest_that_does_not_match_leaves_nothing(store, what):
    with pytest.raises(InvalidImage) as refused:
        store.add_layer(io.BytesIO(ONE), **{what: digest(TWO)})
    assert digest(TWO) in refused.value.message
    assert digest(ONE) in refused.value.message
    assert os.listdir(store.root / "layers") == []
    assert os.listdir(store.root / "blobs") == []
    assert leftovers(store) == []


@pytest.mark.parametrize("bad", ["", "sha256:../../x", "sha512:" + "0" * 64, "sha256:" + "g" * 64])
def test_an_invalid_digest_never_becomes_a_path(store, bad):
    assert not store.has_layer(bad)
    assert store.known_blob(bad) is None
    with pytest.raises(InvalidImage):
        store.add_layer(io.BytesIO(ONE), expect_diff_id=bad)


def test_the_same_content_is_the_same_image_at_any_build_time(store):
    config = ImageConfig(architecture="amd64", env={"A": "1"}, created="2020-01-01T00:00:00Z")
    first = store.put_image([add(store, ONE)], config, ["a"])
    again = store.put_image([digest(ONE)], replace(config, created="2024"), ["b"])
    other = store.put_image([digest(ONE)], replace(config, env={"A": "2"}), ["c"])
    assert first.id == again.id == image_id([digest(ONE)], config)
    assert again.names == ("a:latest", "b:latest")
    assert other.id != first.id


@pytest.mark.promise("P52")
def test_the_configuration_of_an_image_is_kept(store):
    config = ImageConfig(
        architecture="arm64",
        variant="v8",
        env={"PATH": "/bin", "A": "x=y"},
        user="nobody",
        entrypoint=("/init", "--"),
        cmd=("a b",),
        workdir="/srv",
        labels={"k": "v"},
        created="2020-01-01T00:00:00Z",
    )
    store.put_image([add(store, ONE)], config, ["x"])
    found = LayerStore(store.root).find("x")
    assert found is not None
    assert found.config == config


def test_an_image_is_found_by_name_by_id_and_by_the_beginning_of_its_id(store):
    image = put(store, ONE, names=("debian", "my.host:5000/a/b:1"))
    for name in ("debian", "debian:latest", "my.host:5000/a/b:1", image.id, image.id[:20]):
        found = store.find(name)
        assert found is not None, name
        assert found == image, name
    assert store.find(image.id[7:17]) == image
    for name in ("debian:1", "my.host:5000/a/b", image.id[7:11], "sha256:" + "0" * 64):
        assert store.find(name) is None, name


def test_a_digest_in_a_name_overrides_its_tag(store):
    pinned = "repo@sha256:" + "1" * 64
    image = put(store, ONE, names=(f"repo:tag@sha256:{'1' * 64}",))
    assert image.names == (pinned,)
    assert store.find(pinned) == image
    assert store.find(f"repo:other@sha256:{'1' * 64}") == image
    assert store.find("repo:tag") is None


@pytest.mark.parametrize(
    "name",
    [
        *("--privileged", "../x", "x" * 10_000, "", "a b", "host", "host:1", "sha256:" + "0" * 64),
        *("0" * 64, "a" * 64 + ":1"),
    ],
)
def test_an_invalid_or_reserved_name_is_refused(store, name):
    diff_id = add(store, ONE)
    with pytest.raises(InvalidImage):
        store.put_image([diff_id], ImageConfig(), [name])
    put(store, ONE)
    with pytest.raises(InvalidImage):
        store.tag("x", name)
    assert [image.names for image in store.list()] == [("x:latest",)]


def test_a_name_moves_to_the_image_that_takes_it(store):
    old = put(store, ONE, names=("x", "y"))
    new = put(store, TWO, names=("x",))
    assert store.find("x") == new
    assert store.find("y").id == old.id
    assert store.tag(new.id, "y").names == ("x:latest", "y:latest")
    assert store.collect(set()).images == (old.id,)


def test_an_image_is_removed_with_its_last_name(store):
    image = put(store, ONE, names=("x", "y"))
    assert store.remove("x", in_use={image.id}).names == ("x:latest",)
    with pytest.raises(Conflict) as refused:
        store.remove("y", in_use={image.id})
    assert refused.value.details["image"] == image.id
    assert store.find("y") is not None
    store.remove("y", in_use=set())
    assert store.list() == []
    with pytest.raises(InvalidImage):
        store.remove("y", in_use=set())


def test_removing_an_id_removes_every_name_of_the_image(store):
    image = put(store, ONE, names=("x", "y"))
    assert store.remove(image.id, in_use=set()).names == ("x:latest", "y:latest")
    assert store.list() == []


def test_only_layers_without_a_name_or_sandbox_are_garbage(store):
    kept = put(store, ONE, TWO, names=("kept",))
    gone = put(store, ONE, THREE, names=("gone",))
    store.remove("gone", in_use=set())
    done = store.collect(set())
    assert (done.images, done.layers, done.bytes) == ((gone.id,), (digest(THREE),), 3)
    assert all(Path(tree).is_dir() for tree in store.trees(kept))
    assert sorted(os.listdir(store.root / "skeletons")) == [kept.id[7:]]
    assert store.known_blob(digest(THREE)) is None
    assert leftovers(store) == []
    assert store.collect(set()).layers == ()


def test_layers_that_a_sandbox_uses_outlive_name_and_record(store):
    image = put(store, ONE)
    trees = store.trees(image)
    put(store, TWO, names=("y",))
    store.remove("x", in_use=set())
    store.remove("y", in_use=set())
    # A sandbox that began just before the name went is in the ledger by now.
    assert store.collect({image.id}).layers == (digest(TWO),)
    assert all(Path(tree).is_dir() for tree in trees)
    assert not store.there(image.id)
    assert store.collect(set()).layers == (digest(ONE),)
    assert not any(Path(tree).exists() for tree in trees)


def test_a_removed_image_that_is_imported_again_is_complete(store):
    image = put(store, ONE)
    store.remove("x", in_use=set())
    assert put(store, ONE).id == image.id
    assert store.collect(set()).layers == ()
    assert store.find("x").names == ("x:latest",)


def test_a_record_in_use_that_cannot_be_read_keeps_every_layer(store):
    image = put(store, ONE)
    put(store, TWO, names=("y",))
    (store.root / "records" / f"{image.id[7:]}.json").write_text("{")
    store.remove("y", in_use=set())
    assert store.collect({image.id}).layers == ()
    assert len(os.listdir(store.root / "layers")) == 2


@pytest.mark.promise("P49")
def test_an_unused_damaged_record_is_garbage_with_its_name(store):
    image = put(store, ONE)
    put(store, TWO, names=("y",))
    (store.root / "records" / f"{image.id[7:]}.json").write_text("{")
    assert store.find("x") is None
    found = store.collect(set())
    assert (found.images, len(found.layers)) == ((image.id,), 1)
    assert len(os.listdir(store.root / "names")) == 1
    assert store.find("y") is not None


@pytest.mark.promise("P49")
def test_an_image_whose_record_could_not_be_read_back_is_refused(store):
    # Twice in its record, and each of these characters is six there.
    config = parse_config({"config": {"Labels": {"a": "é" * 1_900_000}}})
    with pytest.raises(InvalidImage, match="too large"):
        store.put_image([add(store, ONE)], config, ["x"])
    assert store.list() == []
    assert len(store.collect(set()).layers) == 1


def test_layers_are_not_collected_during_an_import(store):
    with store.working():
        add(store, ONE)
        with pytest.raises(Busy):
            store.collect(set(), wait_s=0.05)
        image = store.put_image([digest(ONE)], ImageConfig(), ["x"])
    store.collect(set())
    assert store.trees(image)


def test_an_image_with_a_missing_layer_is_refused(store):
    with pytest.raises(Busy, match="not in the store"):
        store.put_image([digest(ONE)], ImageConfig(), ["x"])
    assert store.list() == []


@pytest.mark.promise("P49")
def test_leftovers_of_dead_processes_are_swept_and_live_imports_kept(store):
    hold = (
        "import sys; from pathlib import Path\n"
        "from sandkasten_runtime.images.layers.image_store import LayerStore\n"
        "with LayerStore(Path(sys.argv[1])).place() as place:\n"
        "    (place / 'half').mkdir(); print(place, flush=True); sys.stdin.read()\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", hold, store.root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    places = [Path(one.stdout.readline().strip()) for one in processes if one.stdout]
    processes[0].kill()
    processes[0].communicate()
    # Any new user of the store sweeps.
    LayerStore(store.root).add_layer(io.BytesIO(ONE))
    assert [place.exists() for place in places] == [False, True]
    processes[1].communicate("")
    assert leftovers(store) == []


def test_one_layer_added_by_many_threads_is_stored_once(store):
    found, threads = [], []
    for _ in range(8):
        threads.append(threading.Thread(target=lambda: found.append(put(store, ONE, TWO))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({image.id for image in found}) == 1
    assert len(os.listdir(store.root / "layers")) == 2
    assert leftovers(store) == []


def test_too_many_layers_are_refused(store):
    with pytest.raises(InvalidImage, match="too deep"):
        store.put_image([digest(ONE)] * 129, ImageConfig(), ["x"])


def test_a_tree_of_any_depth_and_mode_is_removed(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    (top / "closed").mkdir()
    (top / "closed" / "file").touch()
    (top / "closed").chmod(0)
    (top / "link").symlink_to("/etc")
    remove_tree(top)
    assert not top.exists()
    assert Path("/etc/passwd").exists()


def test_layers_overlay_in_the_right_order(store):
    """With the kernel's overlayfs, in a mount namespace of one process."""
    upper = layer({".wh.a": b"", "d": None, "d/.wh..wh..opq": b"", "d/new": b"n", "e": b"e"})
    lower = layer({"a": b"1", "d": None, "d/old": b"o", "keep": b"k"})
    image = put(store, lower, upper)
    where = store.root / "merged"
    where.mkdir()
    option = ":".join(reversed(store.trees(image)))
    script = (
        f"mount -t overlay none {where} -o ro,lowerdir={option} && cd {where} && find . -type f"
    )
    told = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=True
    ).stdout
    files = {line for line in told.splitlines() if not line.startswith("./etc/")}
    assert files == {"./d/new", "./e", "./keep"}


def test_the_tree_of_a_layer_has_no_devices_and_no_setuid_bits(store):
    image = put(store, ONE, TWO)
    for tree in store.trees(image):
        for path in Path(tree).rglob("*"):
            mode = path.lstat().st_mode
            assert not stat.S_ISBLK(mode)
            assert not stat.S_ISCHR(mode)
            if not stat.S_ISLNK(mode):
                assert not mode & 0o6000, path


def test_two_stores_give_equal_trees_for_equal_content(store, tmp_path):
    other = LayerStore(tmp_path / "other")
    add(store, ONE)
    add(other, gzip.compress(ONE))
    assert tree_of(Path(store.tree(digest(ONE)))) == tree_of(Path(other.tree(digest(ONE))))
