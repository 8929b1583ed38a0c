"""Export: files that other tools and Sandkasten read, with the same bytes each time."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from sandkasten.errors import FileTrouble, InvalidRequest
from sandkasten_runtime.images.archives.archive_export import export_file
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.layers.image_store import LayerStore
from tests import imagekit
from tests.imagekit import docker_members, layer, sketch, skopeo, tree_of, write_tar

FORMATS = ["docker", "oci"]
RICH = {"User": "7", "Entrypoint": ["/e"], "WorkingDir": "/w", "Labels": {"k": "v"}, "Env": ["Z=1"]}


def export(store: LayerStore, name: str, path: Path, format: str = "docker"):
    image = store.find(name)
    assert image is not None
    return export_file(store, image, path, format, lambda _: None)


@pytest.fixture
def filled_store(store, tmp_path) -> LayerStore:
    image = sketch(config=RICH, names=("a:1", "b:2"))
    import_file(store, Import(write_tar(tmp_path / "in", docker_members(image))))
    return store


@pytest.mark.promise("P48")
@pytest.mark.parametrize("format", FORMATS)
def test_an_exported_image_is_imported_with_the_same_trees_and_configuration(
    filled_store, tmp_path, format
):
    export(filled_store, "a:1", tmp_path / "out", format)
    other = LayerStore(tmp_path / "other")
    [image] = import_file(other, Import(tmp_path / "out"))
    before = filled_store.find("a:1")
    assert before is not None
    assert image.names == ("a:1", "b:2")
    assert image.config == before.config
    for one, two in zip(filled_store.trees(before), other.trees(image), strict=True):
        assert tree_of(Path(one)) == tree_of(Path(two))


@pytest.mark.promise("P48")
@pytest.mark.parametrize("format", FORMATS)
def test_an_export_of_an_export_is_the_same_file(filled_store, tmp_path, format):
    first = export(filled_store, "a:1", tmp_path / "one", format)
    other = LayerStore(tmp_path / "other")
    import_file(other, Import(tmp_path / "one"))
    second = export(other, "a:1", tmp_path / "two", format)
    assert first.digest == second.digest
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert first.bytes == (tmp_path / "one").stat().st_size


@pytest.mark.promise("P48")
@pytest.mark.parametrize(("format", "kind"), [("docker", "docker-archive"), ("oci", "oci-archive")])
def test_skopeo_reads_and_copies_an_exported_image(filled_store, tmp_path, format, kind):
    filled_store.remove("b:2", in_use=set())
    export(filled_store, "a:1", tmp_path / "out.tar", format)
    told = json.loads(skopeo("inspect", "--config", f"{kind}:{tmp_path}/out.tar"))
    assert told["config"]["Env"] == ["Z=1"]
    assert told["config"]["Entrypoint"] == ["/e"]
    assert len(told["rootfs"]["diff_ids"]) == 3
    skopeo("copy", "-q", f"{kind}:{tmp_path}/out.tar", f"dir:{tmp_path}/copy")


def test_whiteouts_and_opaque_directories_are_exported_as_the_formats_require(
    filled_store, tmp_path
):
    export(filled_store, "a:1", tmp_path / "out")
    with tarfile.open(tmp_path / "out") as outer:
        manifest = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        inner = outer.extractfile(manifest[0]["Layers"][1])
        with tarfile.open(fileobj=inner) as tar:
            names = tar.getnames()
    assert names == ["d", "d/.wh..wh..opq", ".wh.old", "d/above"]


def test_entries_have_a_stable_order(store, tmp_path):
    names = [f"{n * 7919 % 1000:03}" for n in range(200)]
    data = layer({"etc": None, **{f"etc/{name}": b"" for name in names}})
    import_file(store, Import(write_tar(tmp_path / "in", docker_members(sketch(layers=[data])))))
    export(store, "sketch:1", tmp_path / "out")
    with tarfile.open(tmp_path / "out") as outer:
        manifest = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        with tarfile.open(fileobj=outer.extractfile(manifest[0]["Layers"][0])) as tar:
            found = tar.getnames()
    assert found == ["etc", *sorted(f"etc/{name}" for name in names)]


def test_links_owners_modes_and_attributes_survive(store, tmp_path):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "one").write_bytes(b"x" * 5000)
    os.link(root / "etc" / "one", root / "etc" / "two")
    (root / "etc" / "long").symlink_to("t" * 300)
    (root / "etc" / ("n" * 200)).touch(mode=0o640)
    os.chown(root / "etc" / "one", 12, 60_000)
    os.setxattr(root / "etc" / "one", "user.note", b"\xff\x00y")
    (root / os.fsdecode(b"bytes\xff")).touch()
    subprocess.run(
        ["tar", "--xattrs", "--xattrs-include=*", "-C", root, "-cf", tmp_path / "in.tar", "."],
        check=True,
    )
    import_file(store, Import(tmp_path / "in.tar", name="a"))
    export(store, "a", tmp_path / "out")
    other = LayerStore(tmp_path / "other")
    import_file(other, Import(tmp_path / "out"))
    one, two = store.find("a"), other.find("a")
    assert one is not None
    assert two is not None
    first, second = Path(store.trees(one)[0]), Path(other.trees(two)[0])
    assert tree_of(first) == tree_of(second)
    assert (second / "etc" / "one").stat().st_ino == (second / "etc" / "two").stat().st_ino
    assert (second / "etc" / "one").stat().st_gid == 60_000
    assert os.getxattr(second / "etc" / "one", "user.note") == b"\xff\x00y"


@pytest.mark.long(reason="`make test` exports small images")
@pytest.mark.timeout(300)
def test_a_complete_debian_survives_export_and_import(store, tmp_path):
    import_file(store, Import(imagekit.debian_tar(), name="debian"))
    export(store, "debian", tmp_path / "out")
    other = LayerStore(tmp_path / "other")
    import_file(other, Import(tmp_path / "out"))
    one, two = store.find("debian"), other.find("debian")
    assert one is not None
    assert two is not None
    assert tree_of(Path(store.trees(one)[0])) == tree_of(Path(other.trees(two)[0]))


def test_a_layer_that_an_image_has_twice_is_written_once(store, tmp_path):
    twice = layer({"x": b"y" * 100_000})
    import_file(
        store, Import(write_tar(tmp_path / "in", docker_members(sketch(layers=[twice, twice]))))
    )
    export(store, "sketch:1", tmp_path / "out")
    assert (tmp_path / "out").stat().st_size < 150_000
    [image] = import_file(LayerStore(tmp_path / "other"), Import(tmp_path / "out"))
    assert len(image.layers) == 2


def test_a_failed_export_leaves_only_the_old_file(filled_store, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "out").write_text("old")

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    image = filled_store.find("a:1")
    assert image is not None
    with pytest.raises(KeyboardInterrupt):
        export_file(filled_store, image, folder / "out", "docker", stop)
    assert os.listdir(folder) == ["out"]
    assert (folder / "out").read_text() == "old"
    with pytest.raises(FileTrouble):
        export(filled_store, "a:1", tmp_path / "no" / "where")
    with pytest.raises(FileTrouble):
        export(filled_store, "a:1", folder)
    with pytest.raises(InvalidRequest, match="format"):
        export(filled_store, "a:1", folder / "x", "zip")
    assert sorted(os.listdir(tmp_path)) == ["folder", "images", "in"]


def test_an_export_onto_a_link_keeps_it(filled_store, tmp_path):
    plain = export(filled_store, "a:1", tmp_path / "plain.tar")
    (tmp_path / "link.tar").symlink_to("target.tar")
    linked = export(filled_store, "a:1", tmp_path / "link.tar")
    assert (tmp_path / "link.tar").is_symlink()
    assert (tmp_path / "target.tar").read_bytes() == (tmp_path / "plain.tar").read_bytes()
    assert linked.digest == plain.digest


def test_an_export_onto_a_fifo_writes_the_archive_into_it(filled_store, tmp_path):
    plain = export(filled_store, "a:1", tmp_path / "plain.tar")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()), daemon=True)
    reader.start()
    piped = export(filled_store, "a:1", fifo)
    assert fifo.is_fifo()
    reader.join()
    assert received == [(tmp_path / "plain.tar").read_bytes()]
    assert (piped.digest, piped.bytes) == (plain.digest, plain.bytes)
