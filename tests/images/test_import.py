"""Import from files: format detection, digest checks, and no leftovers of invalid archives."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import FileTrouble, InvalidImage, InvalidRequest
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.layers.image_store import LayerStore
from tests import imagekit
from tests.imagekit import (
    FOREIGN,
    MACHINE,
    digest,
    docker_members,
    layer,
    oci_members,
    oci_platforms,
    sketch,
    tree_of,
    write_directory,
    write_tar,
)

if TYPE_CHECKING:
    from sandkasten.model.images.image_info import ImageProgress


def bring(store: LayerStore, path: Path, **how):
    return import_file(store, Import(path, **how))


def nothing_came(store: LayerStore) -> bool:
    """Check that no name exists and nothing half-made is left."""
    return store.list() == [] and os.listdir(store.root / "making") == []


def trees(store: LayerStore, name: str) -> list[dict[str, tuple]]:
    image = store.find(name)
    assert image is not None
    return [tree_of(Path(one)) for one in store.trees(image)]


# ---- kinds


@pytest.mark.promise("P48")
def test_a_docker_archive_an_oci_layout_and_a_tar_of_one_are_the_same_image(store, tmp_path):
    image = sketch(config={"User": "1", "Entrypoint": ["/init"], "WorkingDir": "/srv"})
    docker = bring(store, write_tar(tmp_path / "docker", docker_members(image)))
    tar = bring(store, write_tar(tmp_path / "oci", oci_members(image)))
    directory = bring(store, write_directory(tmp_path / "layout", oci_members(image)))
    assert [one.id for one in (*docker, *tar, *directory)] == [docker[0].id] * 3
    assert docker[0].layers == tuple(image.diff_ids)
    assert docker[0].names == ("sketch:1",)
    config = docker[0].config
    assert dict(config.env) == {"PATH": "/bin", "A": "1"}
    assert (config.user, config.entrypoint, config.cmd) == ("1", ("/init",), ("sh",))
    assert (config.workdir, config.architecture) == ("/srv", MACHINE)


@pytest.mark.promise("P48")
def test_skopeos_conversion_of_a_docker_archive_gives_the_same_tree(tmp_path):
    """Another tool in between: gzipped layers, and its own configuration."""
    archive = write_tar(tmp_path / "docker.tar", docker_members(sketch()))
    layout = tmp_path / "layout"
    imagekit.skopeo("copy", "-q", f"docker-archive:{archive}", f"oci:{layout}:sketch:2")
    one, other = LayerStore(tmp_path / "one"), LayerStore(tmp_path / "other")
    [first], [second] = bring(one, archive), bring(other, layout)
    assert second.names == ("sketch:2",)
    assert first.layers == second.layers
    assert trees(one, "sketch:1") == trees(other, "sketch:2")


@pytest.mark.promise("P48")
@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_an_archive_may_be_compressed_as_a_whole_under_any_file_name(store, tmp_path, kind):
    docker = write_tar(tmp_path / "docker", docker_members(sketch()))
    packed = imagekit.compressed(docker, kind).rename(tmp_path / "docker.tar.lies")
    [image] = bring(store, packed)
    root = tmp_path / "root"
    root.write_bytes(layer({"etc": None, "etc/x": b"1"}))
    [rootfs] = bring(store, imagekit.compressed(root, kind), name="root")
    assert image.source == "docker-archive"
    assert (rootfs.source, rootfs.layers) == ("rootfs", (digest(root.read_bytes()),))
    assert os.listdir(store.root / "making") == []


@pytest.mark.promise("P48")
@pytest.mark.parametrize(
    "entries",
    [
        {"./": None, "./etc": None, "./etc/x": b""},
        {"bin": "usr/bin", "usr": None},
        {"prog": b"x"},
        # Files that look like another kind, in a root file system.
        {"etc": None, "manifest.json": b"[]", "index.json": b"{}", "oci-layout": b"{}"},
    ],
)
def test_any_other_tar_is_read_as_a_root_file_system(store, tmp_path, entries):
    path = tmp_path / "x"
    path.write_bytes(layer(entries))
    [image] = bring(store, path, name="root")
    assert (image.source, len(image.layers)) == ("rootfs", 1)
    assert image.config.architecture == MACHINE


@pytest.mark.promise("P48")
def test_layers_are_shared_between_images_and_unpacked_once(store, tmp_path):
    base = sketch()
    more = sketch(layers=[*base.layers, layer({"more": b"5"})], names=("more:1",))
    bring(store, write_tar(tmp_path / "a", docker_members(base)))
    before = {name: os.stat(store.root / "layers" / name).st_ino
              for name in os.listdir(store.root / "layers")}  # fmt: skip
    [image] = bring(store, write_tar(tmp_path / "b", oci_members(more)))
    after = {name: os.stat(store.root / "layers" / name).st_ino
             for name in os.listdir(store.root / "layers")}  # fmt: skip
    assert after == {**before, image.layers[3][7:]: after[image.layers[3][7:]]}


def test_equal_layers_may_be_links_inside_the_archive(store, tmp_path):
    """Old versions of docker write them so."""
    image = sketch()
    names = [f"{one[7:]}/layer.tar" for one in image.diff_ids]
    members: dict[str, bytes | str | None] = {**docker_members(image)}
    members["twin/layer.tar"] = f"../{names[0]}"
    manifest = json.loads(docker_members(image)["manifest.json"])
    manifest[0]["Layers"][0] = "twin/layer.tar"
    members["manifest.json"] = json.dumps(manifest).encode()
    path = tmp_path / "x"
    path.write_bytes(layer(members))
    [found] = bring(store, path)
    assert found.layers == tuple(image.diff_ids)


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../../../../../etc/passwd", "layer.tar", "../nothing", "../loop"]
)
def test_a_link_out_of_the_archive_is_not_followed(store, tmp_path, target):
    members: dict[str, bytes | str | None] = {**docker_members(sketch())}
    first = next(name for name in members if name.endswith("layer.tar"))
    members[first] = target
    members["loop"] = "loop"
    path = tmp_path / "x"
    path.write_bytes(layer(members))
    with pytest.raises(InvalidImage, match="no file"):
        bring(store, path)
    assert nothing_came(store)


# ---- names


def test_an_image_with_two_names_gets_both(store, tmp_path):
    image = sketch(names=("a:1", "host.example:5000/b/c:2"))
    for members in (docker_members(image), oci_members(image)):
        [found] = bring(store, write_tar(tmp_path / "x", members))
        assert found.names == ("a:1", "host.example:5000/b/c:2")


def test_a_given_name_replaces_those_in_the_archive(store, tmp_path):
    [found] = bring(store, write_tar(tmp_path / "x", docker_members(sketch())), name="mine")
    assert found.names == ("mine:latest",)


def test_an_image_without_a_name_needs_one(store, tmp_path):
    docker = write_tar(tmp_path / "docker", docker_members(sketch(names=())))
    oci = write_tar(tmp_path / "oci", oci_members(sketch(names=("latest",))))
    root = tmp_path / "root"
    root.write_bytes(layer({"etc": None}))
    for path in (docker, oci, root):
        with pytest.raises(InvalidImage) as refused:
            bring(store, path)
        assert "--name" in refused.value.hint
        assert nothing_came(store)
    # Said before anything was unpacked.
    assert os.listdir(store.root / "layers") == []
    assert bring(store, docker, name="n")[0].names == ("n:latest",)


@pytest.mark.promise("P50")
@pytest.mark.parametrize("name", ["--privileged", "../x", "x" * 10_000, "host", "A B"])
def test_a_hostile_name_is_refused_wherever_it_comes_from(store, tmp_path, name):
    good = write_tar(tmp_path / "good", docker_members(sketch()))
    with pytest.raises(InvalidImage) as refused:
        bring(store, good, name=name)
    assert len(refused.value.message) < 300
    with pytest.raises(InvalidImage):
        bring(store, write_tar(tmp_path / "bad", docker_members(sketch(names=(name,)))))
    assert nothing_came(store) if store.root.exists() else True


def test_an_archive_with_thousands_of_names_is_refused(store, tmp_path):
    names = tuple(f"n{number}:1" for number in range(1001))
    path = write_tar(tmp_path / "many", docker_members(sketch(names=names)))
    with pytest.raises(InvalidImage, match="more than 1000"):
        bring(store, path)
    assert nothing_came(store)
    assert bring(store, path, name="n")[0].names == ("n:latest",)


def test_several_images_come_with_their_own_names(store, tmp_path):
    one, two = sketch(names=("one:1",)), sketch(layers=[layer({"z": b"z"})], names=("two:1",))
    members = {**docker_members(one), **docker_members(two)}
    manifests = [json.loads(docker_members(image)["manifest.json"])[0] for image in (one, two)]
    members["manifest.json"] = json.dumps(manifests).encode()
    path = write_tar(tmp_path / "x", members)
    assert [image.names for image in bring(store, path)] == [("one:1",), ("two:1",)]
    with pytest.raises(InvalidImage, match="2 images"):
        bring(store, path, name="n")


# ---- platforms


@pytest.mark.parametrize("nested", [True, False])
def test_of_several_platforms_that_of_the_host_is_imported(store, tmp_path, nested):
    here = sketch()
    other = sketch(architecture=FOREIGN, layers=[layer({"other": b""})])
    path = write_tar(tmp_path / "x", oci_platforms(other, here, nested=nested))
    [found] = bring(store, path, name="n")
    assert found.config.architecture == MACHINE
    assert found.layers == tuple(here.diff_ids)
    [asked] = bring(store, path, name="o", platform=f"linux/{FOREIGN}")
    assert asked.config.architecture == FOREIGN


def test_available_platforms_are_listed_when_none_fits(store, tmp_path):
    images = [sketch(architecture=FOREIGN), sketch(architecture="s390x")]
    path = write_tar(tmp_path / "x", oci_platforms(*images))
    with pytest.raises(InvalidImage) as refused:
        bring(store, path, name="n")
    for word in (f"linux/{FOREIGN}", "linux/s390x", f"linux/{MACHINE}"):
        assert word in refused.value.message
    with pytest.raises(InvalidRequest, match="not a platform"):
        bring(store, path, name="n", platform="--x")


def test_a_single_image_is_imported_for_any_platform(store):
    [image] = bring(store, imagekit.foreign_archive())
    assert image.config.architecture == FOREIGN


# ---- damage


def _changed(members: dict[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    return {**members, name: data}


def damaged() -> dict[str, dict[str, bytes]]:
    docker, oci = docker_members(sketch()), oci_members(sketch())
    layer_name = next(name for name in docker if name.endswith("layer.tar"))
    config_name = next(
        name for name in docker if name.endswith(".json") and name != "manifest.json"
    )
    blobs = sorted((name for name in oci if name.startswith("blobs/")), key=lambda n: len(oci[n]))
    config_blob = next(name for name in blobs if b"diff_ids" in oci[name])
    manifest_blob = next(name for name in blobs if b'"layers"' in oci[name] and name != config_blob)
    config = json.loads(docker[config_name])
    fewer = {**config, "rootfs": {"diff_ids": config["rootfs"]["diff_ids"][:1]}}
    manifest = json.loads(docker["manifest.json"])
    index = json.loads(oci["index.json"])
    deep, padding = b"[" * 200_000, b" " * (5 << 20)
    return {
        "another layer": _changed(docker, layer_name, layer({"x": b"y"})),
        "a layer that is no tar": _changed(docker, layer_name, b"x" * 2000),
        "another configuration": _changed(docker, config_name, json.dumps(fewer).encode()),
        "a configuration that says more": _changed(
            docker, config_name, docker[config_name].replace(b"A=1", b"A=2")
        ),
        "a changed blob of a configuration": _changed(
            oci, config_blob, oci[config_blob].replace(b"A=1", b"A=2")
        ),
        "a changed blob of a manifest": _changed(oci, manifest_blob, oci[manifest_blob] + b" "),
        "a missing layer": {k: v for k, v in docker.items() if k != layer_name},
        "a missing configuration": {k: v for k, v in docker.items() if k != config_name},
        "fewer layers": _changed(
            docker, "manifest.json",
            json.dumps([{**manifest[0], "Layers": manifest[0]["Layers"][:1]}]).encode(),
        ),
        "no images": _changed(docker, "manifest.json", b"[]"),
        "a manifest of nonsense": _changed(docker, "manifest.json", b'[{"Config": 1}]'),
        "a manifest of numbers": _changed(docker, "manifest.json", b"[1]"),
        "a manifest that is no json": _changed(docker, "manifest.json", b"{"),
        "a manifest that is too deep": _changed(docker, "manifest.json", deep),
        "a huge manifest": _changed(docker, "manifest.json", padding + docker["manifest.json"]),
        "a blob that was changed": _changed(oci, blobs[0], oci[blobs[0]] + b" "),
        "a blob that is missing": {k: v for k, v in oci.items() if k != blobs[1]},
        "an index of nonsense": _changed(oci, "index.json", b'{"manifests": [{"digest": "x"}]}'),
        "an index of nothing": _changed(oci, "index.json", b'{"manifests": []}'),
        "an index that leads out": _changed(
            oci, "index.json",
            json.dumps({"manifests": [{**index["manifests"][0],
                                       "digest": "sha256:../../x"}]}).encode(),
        ),
    }  # fmt: skip


@pytest.mark.promise("P49")
@pytest.mark.parametrize("what", sorted(damaged()))
def test_a_damaged_archive_is_refused_and_leaves_nothing(store, tmp_path, what):
    path = write_tar(tmp_path / "x", damaged()[what])
    with pytest.raises(InvalidImage) as refused:
        bring(store, path, name="n")
    assert refused.value.hint
    assert len(refused.value.message) < 400
    assert nothing_came(store)


@pytest.mark.promise("P49")
@pytest.mark.parametrize("kind", ["plain", "gzip"])
def test_an_archive_truncated_anywhere_is_refused_and_leaves_nothing(store, tmp_path, kind):
    whole = write_tar(tmp_path / "x", docker_members(sketch())).read_bytes().rstrip(b"\0")
    whole = whole if kind == "plain" else gzip.compress(whole + bytes(2048))
    for part in range(1, 16):
        path = tmp_path / f"cut{part}"
        path.write_bytes(whole[: len(whole) * part // 16])
        with pytest.raises(InvalidImage):
            bring(store, path, name="n")
        assert nothing_came(store) or not store.root.exists()


@pytest.mark.promise("P49")
@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_a_compressed_archive_with_a_wrong_byte_is_refused(store, tmp_path, kind):
    docker = write_tar(tmp_path / "x", docker_members(sketch()))
    data = bytearray(imagekit.compressed(docker, kind).read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 8):
        data[at] ^= 0xFF
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(InvalidImage):
        bring(store, tmp_path / "bad", name="n")
    assert nothing_came(store)


@pytest.mark.parametrize("content", [b"", b"\0" * 10240, b"hello", os.urandom(4096)])
def test_a_file_that_is_not_an_archive_is_refused(store, tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InvalidImage):
        bring(store, tmp_path / "x", name="n")
    assert nothing_came(store)


def test_only_files_and_layouts_are_read(store, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path / "empty"):
        with pytest.raises(InvalidImage):
            bring(store, path, name="n")
    for path in (tmp_path / "nothing", tmp_path / ("x" * 300), Path("a\0b")):
        with pytest.raises(FileTrouble):
            bring(store, path, name="n")


def test_a_layout_with_a_link_for_a_blob_is_refused(store, tmp_path):
    secret = tmp_path / "secret"
    members = oci_members(sketch())
    layout = write_directory(tmp_path / "layout", members)
    blob = next(name for name in members if name.startswith("blobs/"))
    secret.write_bytes(members[blob])
    (layout / blob).unlink()
    (layout / blob).symlink_to(secret)
    with pytest.raises(InvalidImage, match="no file"):
        bring(store, layout)
    assert nothing_came(store)


def test_indexes_that_reference_each_other_are_read_once(store, tmp_path):
    blobs: dict[str, bytes] = {}
    members = oci_members(sketch())
    inner = json.loads(members["index.json"])["manifests"]
    for _ in range(6):
        data = json.dumps({"schemaVersion": 2, "manifests": inner * 100}).encode()
        blobs[f"blobs/sha256/{digest(data)[7:]}"] = data
        inner = [{"digest": digest(data), "size": len(data)}]
    index = json.dumps({"manifests": inner}).encode()
    path = write_tar(tmp_path / "x", {**members, **blobs, "index.json": index})
    # Read whenever it is named, it would not end while anybody waits.
    assert bring(store, path, name="n")


def test_an_extended_header_of_any_size_takes_no_memory(store, tmp_path):
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    header.size = 1 << 40
    (tmp_path / "x").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(InvalidImage, match="too large"):
        bring(store, tmp_path / "x", name="n")


# ---- again


@pytest.mark.promise("P48")
@pytest.mark.parametrize("kind", ["docker", "oci", "directory", "rootfs", "gzip"])
def test_a_second_import_unpacks_nothing_and_takes_its_name(store, tmp_path, kind, monkeypatch):
    image = sketch()
    path = {
        "docker": lambda: write_tar(tmp_path / "x", docker_members(image)),
        "oci": lambda: write_tar(tmp_path / "x", oci_members(image)),
        "directory": lambda: write_directory(tmp_path / "x", oci_members(image)),
        "rootfs": lambda: imagekit.busybox_tar(),
        "gzip": lambda: imagekit.compressed(
            write_tar(tmp_path / "x", docker_members(image)), "gzip"
        ),
    }[kind]()
    [first] = bring(store, path, name="first")

    def unpack(*_: object, **__: object) -> None:
        raise AssertionError("it was unpacked again")

    monkeypatch.setattr("sandkasten_runtime.images.layers.layer_unpack.unpack_layer", unpack)
    [second] = bring(store, path, name="second")
    assert second.id == first.id
    assert second.names == ("first:latest", "second:latest")
    # Gone from the store, it is needed again.
    store.remove(first.id, in_use=set())
    store.collect(set())
    assert os.listdir(store.root / "recent") == []
    with pytest.raises(AssertionError):
        bring(store, path, name="third")


def test_a_changed_file_is_read_again(store, tmp_path):
    path, much = tmp_path / "x", b"x" * 200_000
    path.write_bytes(layer({"etc": None, "etc/x": much + b"1"}))
    [first] = bring(store, path, name="n")
    # In place, of the same size, behind what is looked at.
    path.write_bytes(layer({"etc": None, "etc/x": much + b"2"}))
    [second] = bring(store, path, name="n")
    assert first.id != second.id
    assert store.find("n") == second


def bytes_read() -> int:
    """Return bytes read by this process and its ended children, from files and pipes."""
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(told["rchar"])


@pytest.mark.promise("P48")
@pytest.mark.timeout(300)
@pytest.mark.long(reason="`make test` imports a small image twice")
@pytest.mark.parametrize("archive", ["debian_tar", "docker"])
def test_a_second_import_of_a_large_image_does_not_read_it_again(store, archive):
    path = imagekit.debian_tar()
    if archive == "docker":
        path = imagekit.docker_archive(path)
    assert path.stat().st_size > 150_000_000
    before = bytes_read()
    bring(store, path, name="big")
    between = bytes_read()
    bring(store, path, name="big")
    # What is not read again takes no time, however busy the machine.
    assert bytes_read() - between < 10_000_000 < path.stat().st_size < between - before


# ---- progress


def test_progress_is_reported_per_layer_and_ends_at_its_size(store, tmp_path):
    told: list[ImageProgress] = []
    bring(store, write_tar(tmp_path / "x", docker_members(sketch())), progress=told.append)
    assert list(dict.fromkeys(one.step for one in told)) == ["layer 1/3", "layer 2/3", "layer 3/3"]
    last = {one.step: one for one in told}
    assert all(one.done == one.total for one in last.values())


def test_a_progress_callback_can_stop_the_import(store):

    class Enough(Exception):
        pass

    def enough(_: object) -> None:
        raise Enough

    with pytest.raises(Enough):
        bring(store, imagekit.busybox_tar(), name="n", progress=enough)
    assert nothing_came(store)
    assert os.listdir(store.root / "layers") == []


def test_a_layer_written_by_gnu_tar_with_long_names_is_found(store, tmp_path):
    """Names beyond a hundred bytes take extended headers, in two dialects."""
    image = sketch()
    members = docker_members(image)
    long = "d" * 150
    manifest = json.loads(members.pop("manifest.json"))
    first = manifest[0]["Layers"][0]
    members[f"{long}/layer.tar"] = members.pop(first)
    manifest[0]["Layers"][0] = f"{long}/layer.tar"
    members["manifest.json"] = json.dumps(manifest).encode()
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=format) as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(f"./{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        (tmp_path / "x").write_bytes(out.getvalue())
        [found] = bring(LayerStore(tmp_path / f"store{format}"), tmp_path / "x")
        assert found.layers == tuple(image.diff_ids)
