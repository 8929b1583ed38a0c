"""The SDK's images: every operation, synchronous and asynchronous, on a real store."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from sandkasten import (
    AsyncImages,
    AsyncSandbox,
    Conflict,
    FileTrouble,
    ImageNotFound,
    ImageProgress,
    Images,
    InvalidImage,
)
from tests.imagekit import busybox_tar, docker_members, sketch, write_tar


@pytest.fixture
def archive(tmp_path) -> Path:
    return write_tar(tmp_path / "archive.tar", docker_members(sketch()))


def test_an_image_is_imported_used_and_removed(archive, tmp_path, monkeypatch):
    images = Images(data_dir=tmp_path / "data")
    assert images.list() == []
    [image] = images.import_archive(archive)
    assert image.names == ("sketch:1",)
    assert [one.id for one in images.list()] == [image.id]
    assert images.tag("sketch:1", "other").names == ("other:latest", "sketch:1")
    assert images.inspect("other").env == {"PATH": "/bin", "A": "1"}
    # Paths are the caller's, wherever the engine runs.
    monkeypatch.chdir(tmp_path)
    written = images.export("other", "out.tar", format="oci")
    assert written.path == str(tmp_path / "out.tar")
    assert _tags(images.export("sketch:1", "one.tar").path) == ["sketch:1"]
    assert _tags(images.export("other", "other.tar").path) == ["other:latest"]
    assert _tags(images.export(image.id, "id.tar").path) == []
    assert images.usage().layers == 3
    assert not images.remove("other").deleted
    gone = images.remove("sketch:1")
    assert gone.deleted
    assert images.usage().bytes == 0
    assert images.collect().layers == ()
    [again] = images.import_archive(Path("out.tar"), name="again")
    assert (again.names, again.env["A"]) == (("again:latest",), "1")


def _tags(archive: str) -> list[str]:
    with tarfile.open(archive) as opened:
        contents = opened.extractfile("manifest.json")
        assert contents is not None
        [entry] = json.load(contents)
    return entry["RepoTags"]


async def test_the_asynchronous_client_reports_progress_on_its_loop(archive):
    import asyncio

    loop = asyncio.get_running_loop()
    told: list[ImageProgress] = []

    def heard(progress: ImageProgress) -> None:
        assert asyncio.get_running_loop() is loop
        told.append(progress)

    [image] = await AsyncImages().import_archive(archive, progress=heard)
    await asyncio.sleep(0)
    assert {one.step for one in told} == {"layer 1/3", "layer 2/3", "layer 3/3"}
    assert len(image.layers) == 3


async def test_a_sandbox_keeps_its_image(archive):
    images = AsyncImages()
    await images.import_archive(archive)
    async with AsyncSandbox(image="sketch:1") as box:
        assert (await box.info()).image == "sketch:1"
        assert (await images.inspect("sketch:1")).used_by == (box.id,)
        with pytest.raises(Conflict) as refused:
            await images.remove("sketch:1")
        assert box.id in refused.value.message
    assert (await images.remove("sketch:1")).deleted


def test_image_failures_are_typed_errors(tmp_path):
    images = Images(data_dir=tmp_path / "data")
    with pytest.raises(FileTrouble):
        images.import_archive("/nowhere")
    with pytest.raises(InvalidImage):
        images.import_archive(busybox_tar())
    for operation in (images.inspect, images.remove, lambda n: images.tag(n, "x")):
        with pytest.raises(ImageNotFound):
            operation("nothing")
        with pytest.raises(InvalidImage):
            operation("--privileged")
