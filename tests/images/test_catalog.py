"""Resolving image names: the store, aliases, the allow-list, strict mode and the host image."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import ImageNotFound, InvalidConfiguration, InvalidImage, PolicyDenied
from sandkasten.model.images.image_info import ExportRequest, ImportRequest
from sandkasten.model.images.known_images import KNOWN_IMAGES
from sandkasten.model.images.resolved_image import Image
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.image_names import all_aliases, canonical_name, chain
from tests import imagekit
from tests.imagekit import FOREIGN, MACHINE, docker_members, sketch, write_tar
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def usr(tmp_path) -> Path:
    """A machine with Python and no node."""
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    for name in ("python3", "bash", "sh"):
        program = tmp_path / "usr" / "bin" / name
        program.write_text("")
        program.chmod(0o755)
    return tmp_path / "usr"


@pytest.fixture
def put(store, tmp_path):
    """Import the sketch under a name; return its id."""

    def put(name: str, **changes) -> str:
        path = write_tar(tmp_path / "archive", docker_members(sketch(**changes)))
        return import_file(store, Import(path, name=name))[0].id

    return put


async def test_a_stored_image_resolves_to_trees_and_environment(store, usr, put):
    the_id = put("debian")
    image = await Images(store, usr=usr).resolve("debian")
    assert (image.name, image.kind, image.id) == ("debian:latest", "layers", the_id)
    assert len(image.layers) == 4
    assert image.layers == store.trees(store.find("debian"))
    assert image.layers[-1].endswith(f"skeletons/{the_id[7:]}/tree")
    assert dict(image.env) == {"PATH": "/bin", "A": "1"}
    assert image.warning == ""
    assert (await Images(store, usr=usr).resolve(the_id)).id == the_id


async def test_an_alias_resolves_to_its_target_in_the_store(store, usr, put):
    the_id = put("python:3.11-slim")
    image = await Images(store, usr=usr, strict=True).resolve("python")
    assert (image.name, image.id, image.warning) == ("python:3.11-slim", the_id, "")


@pytest.mark.promise("P50")
async def test_an_alias_without_a_target_falls_back_and_a_full_name_never(store, usr):
    images = Images(store, usr=usr)
    image = await images.resolve("python")
    assert (image.name, image.kind) == ("host", "host")
    assert image.warning == "alias python (python:3.11-slim) resolved to the host image"
    for name in ("python:3.11-slim", "python:latest", "python@sha256:" + "0" * 64):
        with pytest.raises(InvalidImage, match="not in the store"):
            await images.resolve(name)
    with pytest.raises(InvalidImage, match="no node"):
        await images.resolve("node")
    with pytest.raises(InvalidImage) as refused:
        await Images(store, usr=usr, strict=True).resolve("python")
    assert "images.strict" in refused.value.message
    assert await images.resolve("host") == Image("host")


@pytest.mark.parametrize("name", [*KNOWN_IMAGES, "datascience:latest", "base"])
async def test_the_hint_for_an_image_that_no_registry_has_says_how_to_build_it(store, usr, name):
    images = Images(store, usr=usr, strict=True, pull="missing")
    with pytest.raises(ImageNotFound) as refused:
        await images.resolve(name)
    built = name.removesuffix(":latest")
    if name == "base":
        built = "sandbox-runtime:base"
    assert f"build it with sandkasten image build {built};" in refused.value.hint
    assert "image pull" not in refused.value.hint


@pytest.mark.parametrize("pull", ["never", "named"])
async def test_the_names_of_the_store_are_read_in_a_thread(store, usr, monkeypatch, pull):
    threads = []

    def noted():
        threads.append(threading.get_ident())
        return []

    monkeypatch.setattr(store, "list", noted)
    images = Images(store, usr=usr, pull=pull)
    for name in ("unknown", "node"):
        with pytest.raises(ImageNotFound):
            await images.resolve(name)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_a_misspelt_image_is_compared_with_known_ones_and_with_the_store(store, usr, put):
    put("mine/tool:2")
    images = Images(store, usr=usr, pull="named")
    with pytest.raises(ImageNotFound) as refused:
        await images.resolve("datascienc")
    assert "did you mean datascience?" in refused.value.hint
    assert "; in the store: mine/tool:2; " in refused.value.hint
    with pytest.raises(ImageNotFound) as refused:
        await images.resolve("mine/tol")
    assert "did you mean mine/tool:2?" in refused.value.hint


async def test_an_image_named_like_a_default_alias_is_used_itself(store, usr, put):
    the_id = put("python")
    put("python:3.11-slim", layers=[])
    image = await Images(store, usr=usr).resolve("python")
    assert (image.name, image.id) == ("python:latest", the_id)


async def test_the_operators_alias_takes_precedence_over_an_image_of_that_name(store, usr, put):
    put("python", layers=[])
    the_id = put("my/python:1")
    images = Images(store, usr=usr, aliases={"python": "my/python:1", "py": "python"})
    for name in ("python", "py"):
        image = await images.resolve(name)
        assert (image.name, image.id) == ("my/python:1", the_id)
    hosted = Images(store, usr=usr, aliases={"mine": "host"}, strict=True)
    assert await hosted.resolve("mine") == Image("host")


async def test_an_operators_alias_falls_back_only_for_a_known_program(store, usr):
    images = Images(store, usr=usr, aliases={"py": "python", "ml": "my/ml:1"})
    assert (await images.resolve("py")).warning.startswith("alias py (python:3.11-slim)")
    with pytest.raises(InvalidImage, match="is an alias of my/ml:1"):
        await images.resolve("ml")


@pytest.mark.parametrize(
    ("aliases", "loop"),
    [
        ({"a": "a"}, "a → a"),
        ({"a": "b", "b": "c", "c": "a"}, "a → b → c → a"),
        ({"python": "node", "node": "python"}, "python → node → python"),
        ({"x": "y", "y": "z", "z": "y"}, "y → z → y"),
    ],
)
def test_circular_aliases_are_reported(store, aliases, loop):
    with pytest.raises(InvalidConfiguration) as refused:
        Images(store, aliases=aliases)
    assert loop in refused.value.message
    assert refused.value.details["setting"] == "images.aliases"


@pytest.mark.parametrize("aliases", [{"--x": "y"}, {"x": "../y"}, {"x": ""}, {"X": "y"}])
def test_an_invalid_alias_name_is_refused(aliases):
    with pytest.raises(InvalidImage):
        all_aliases(aliases)


def test_the_name_host_cannot_be_redefined():
    with pytest.raises(InvalidConfiguration):
        all_aliases({"host": "evil:1"})
    assert chain("python", all_aliases({})) == ("python", "python:3.11-slim")


@pytest.mark.promise("P50")
async def test_the_allow_list_comes_before_the_store(store, usr, put):
    put("debian")
    put("python:3.11-slim")
    images = Images(store, usr=usr, allowed=["python:3.11-slim", "debian:latest"])
    assert (await images.resolve("python")).id
    assert (await images.resolve("debian")).id
    for name in ("host", "bash", "nothing:1", store.find("debian").id):
        with pytest.raises(PolicyDenied) as refused:
            await images.resolve(name)
        assert refused.value.hint == "allowed_images: python:3.11-slim, debian:latest"


@pytest.mark.promise("P50")
async def test_allowing_an_aliass_target_does_not_allow_an_image_named_like_the_alias(
    store, usr, put
):
    put("bash", layers=[imagekit.layer({"x": b"not allowed"})])
    images = Images(store, usr=usr, allowed=["ubuntu:22.04"])
    with pytest.raises(ImageNotFound):
        await images.resolve("bash")
    the_id = put("ubuntu:22.04")
    assert (await images.resolve("bash")).id == the_id
    with pytest.raises(PolicyDenied):
        await images.resolve("bash:latest")


@pytest.mark.promise("P52")
async def test_an_image_for_another_architecture_names_both_architectures(store, usr):
    import_file(store, Import(imagekit.foreign_archive()))
    with pytest.raises(InvalidImage) as refused:
        await Images(store, usr=usr).resolve("foreign:1")
    assert f"linux/{FOREIGN}" in refused.value.message
    assert f"linux/{MACHINE}" in refused.value.message


@pytest.mark.promise("P50")
@pytest.mark.parametrize(
    "name", ["--privileged", "-v", "../x", "/etc", "", "a b", "a\0", "a\n", "x" * 10_000, None, 7]
)
async def test_an_invalid_name_is_refused_by_every_operation(store, usr, name):
    images = Images(store, usr=usr)
    for refuse in (
        lambda: images.resolve(name),
        lambda: images.inspect(name),
        lambda: images.tag(name, "x"),
        lambda: images.remove(name, in_use=set()),
        lambda: images.export(ExportRequest(name, "/nowhere")),
    ):
        with pytest.raises(InvalidImage) as refused:
            await refuse()
        assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("a", "a:latest"),
        ("LOCALHOST:5000/a", "localhost:5000/a:latest"),
        ("Docker.IO/library/a:V1", "a:V1"),
        ("a:1", "a:1"),
        ("h:5000/a", "h:5000/a:latest"),
        ("h:5000/a/b:c", "h:5000/a/b:c"),
        (f"a:1@sha256:{'0' * 64}", f"a@sha256:{'0' * 64}"),
    ],
)
def test_names_have_one_spelling(name, canonical):
    assert canonical_name(name) == canonical
    assert canonical_name(canonical) == canonical


@pytest.mark.promise("P49")
async def test_an_import_that_is_cancelled_ends_and_leaves_nothing(store, usr):
    """The work is done in a thread, which must end soon after the cancellation."""
    images = Images(store, usr=usr)
    started = asyncio.Event()

    def heard(_: object) -> None:
        started.set()

    path = str(imagekit.debian_tar())
    task = asyncio.create_task(images.import_archive(path, ImportRequest("n"), progress=heard))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    deadline = time.monotonic() + PATIENCE_S
    while left := list((store.root / "making").iterdir()):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.05)
    assert list((store.root / "layers").iterdir()) == []
    assert await images.list() == []


async def test_inspecting_an_image_counts_the_images_that_share_its_layers(store, usr, put):
    put("a")
    put("b", config={"User": "x"})
    put("c", layers=[])
    found = {image.names[0]: image for image in await Images(store, usr=usr).list()}
    assert [layer.shared for layer in found["a:latest"].layers] == [2, 2, 2]
    assert found["c:latest"].layers == ()
    usage = await Images(store, usr=usr).usage(in_use=set())
    assert (usage.images, usage.layers) == (3, 3)
    assert usage.separate_bytes == 2 * usage.bytes
    assert usage.reclaimable_bytes == 0


async def test_an_image_that_was_removed_is_no_longer_present(store, usr, put):
    put("a")
    images = Images(store, usr=usr)
    image = await images.resolve("a")
    assert await images.present(image)
    assert await images.present(Image("host"))
    await images.remove("a", in_use=set())
    assert not await images.present(image)


@pytest.mark.promise("P50")
@pytest.mark.parametrize(
    ("asked", "sought"),
    [
        ("registry-1.docker.io/debian", "debian:latest"),
        ("DOCKER.IO/library/debian", "debian:latest"),
        ("index.docker.io/library/debian:12", "debian:12"),
        # An engine would take it for the beginning of an id.
        ("ada", "ada:latest"),
        (f"debian:12@sha256:{'0' * 64}", f"debian@sha256:{'0' * 64}"),
        (f"sha256:{'0' * 64}", f"sha256:{'0' * 64}"),
    ],
)
async def test_an_engine_is_asked_for_the_exact_name_the_allow_list_compared(
    store, usr, asked, sought
):
    images = Images(store, usr=usr, allowed=[sought])
    assert (await images.look_up(asked)).names == (sought,)


@pytest.mark.promise("P118")
def test_spellings_are_all_names_under_which_an_image_is_known(store, usr, put):
    images = Images(store, usr=usr, aliases={"ours": "registry.example:5000/ml/base:2"})
    assert set(images.spellings("python")) == {
        "python",
        "python:latest",
        "docker.io/library/python",
        "docker.io/library/python:latest",
        "python:3.11-slim",
        "docker.io/library/python:3.11-slim",
    }
    assert {"ours", "registry.example:5000/ml/base"} <= set(images.spellings("ours"))
    digest = "sha256:" + "a" * 64
    assert "untrusted/app" in images.spellings(f"DOCKER.IO/untrusted/app@{digest}")
    assert images.spellings("host") == ("host",)
    the_id = put("untrusted/app:1")
    for name in (the_id, the_id.removeprefix("sha256:")[:12]):
        assert {name, "untrusted/app", "untrusted/app:1"} <= set(images.spellings(name))
    with pytest.raises(InvalidImage):
        images.spellings("no such name")
