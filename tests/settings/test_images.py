"""Image settings: aliases, the host image, the allow-list, and invalid names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import ImageNotFound, InvalidImage, PolicyDenied
from sandkasten.model.images.resolved_image import Image
from sandkasten_runtime.images.host_image import HostImages

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def usr(tmp_path) -> Path:
    """A machine with Python and bash, and no node."""
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    for name in ("python3", "bash", "sh"):
        program = tmp_path / "usr" / "bin" / name
        program.write_text("")
        program.chmod(0o755)
    return tmp_path / "usr"


async def test_the_host_image_needs_no_warning(usr):
    assert await HostImages(usr=usr).resolve("host") == Image("host")


@pytest.mark.parametrize("alias", ["python", "linux", "bash", "shell", "base"])
async def test_an_alias_falls_back_to_the_host_image_with_a_warning(usr, alias):
    image = await HostImages(usr=usr).resolve(alias)
    assert (image.name, image.kind) == ("host", "host")
    assert image.warning.startswith(f"alias {alias} (")
    assert image.warning.endswith("resolved to the host image")


async def test_an_alias_whose_program_is_missing_names_the_package_to_install(usr):
    with pytest.raises(InvalidImage) as refused:
        await HostImages(usr=usr).resolve("node")
    assert "no node" in refused.value.message
    assert "apt-get install nodejs" in refused.value.hint
    assert "sandkasten image pull node:20-slim" in refused.value.hint


async def test_a_program_outside_usr_does_not_count(usr, tmp_path):
    elsewhere = tmp_path / "home" / "node"
    elsewhere.parent.mkdir()
    elsewhere.write_text("")
    elsewhere.chmod(0o755)
    (usr / "bin" / "node").symlink_to(elsewhere)
    with pytest.raises(InvalidImage):
        await HostImages(usr=usr).resolve("node")


@pytest.mark.parametrize(
    "name", ["python:3.11-slim", "ubuntu:22.04", "registry.example:5000/a/b:c"]
)
async def test_a_full_name_never_falls_back(usr, name):
    with pytest.raises(InvalidImage) as refused:
        await HostImages(usr=usr).resolve(name)
    assert "not in the store" in refused.value.message


@pytest.mark.parametrize(
    "name",
    [
        "--privileged",
        "-v",
        "../x",
        "/etc",
        "",
        "a b",
        "a\0",
        "a\n",
        "UPPER",
        "x" * 10_000,
        "a:",
        "a@b",
        None,
        7,
    ],
)
async def test_an_invalid_image_name_is_refused(usr, name):
    with pytest.raises(InvalidImage) as refused:
        await HostImages(usr=usr).resolve(name)
    assert len(refused.value.message) < 300


async def test_the_allow_list_is_named_when_it_refuses(usr):
    images = HostImages(usr=usr, allowed=["python"])
    for name in ("bash", "host"):
        with pytest.raises(PolicyDenied) as refused:
            await images.resolve(name)
        assert refused.value.hint == "allowed_images: python"


@pytest.mark.promise("P50")
@pytest.mark.parametrize("allowed", ["python", "python:3.11-slim"])
async def test_an_alias_falls_back_only_to_an_allowed_host_image(usr, allowed):
    with pytest.raises(ImageNotFound) as refused:
        await HostImages(usr=usr, allowed=[allowed]).resolve("python")
    assert refused.value.message == (
        "image python is an alias of python:3.11-slim, which is not in the store, "
        "and allowed_images does not list host"
    )
    assert refused.value.hint == (
        "get it with sandkasten image pull python:3.11-slim or sandkasten image import; "
        f"allowed_images: {allowed}"
    )
    image = await HostImages(usr=usr, allowed=[allowed, "host"]).resolve("python")
    assert (image.kind, bool(image.warning)) == ("host", True)


async def test_the_hint_about_a_missing_image_names_only_images_that_can_be_used(usr):
    asked = ("python:3.12", "node", "sha256:" + "0" * 64)
    for images, usable in (
        (HostImages(usr=usr), "or use one of: host, python, linux, bash, shell, base"),
        (HostImages(usr=usr, strict=True), "or use one of: host"),
        (HostImages(usr=usr, allowed=asked), f"allowed_images: {', '.join(asked)}"),
    ):
        for name in asked:
            with pytest.raises(ImageNotFound) as refused:
                await images.resolve(name)
            assert refused.value.hint.endswith(usable)


@pytest.mark.parametrize("name", ["", "a b", "UPPER"])
async def test_the_hint_about_an_invalid_name_suggests_no_image(usr, name):
    with pytest.raises(InvalidImage) as refused:
        await HostImages(usr=usr, allowed=["debian"]).resolve(name)
    assert "host" not in refused.value.hint
    assert "python" not in refused.value.hint


async def test_strict_forbids_the_fallback_to_the_host_image(usr):
    images = HostImages(usr=usr, strict=True)
    assert await images.resolve("host") == Image("host")
    with pytest.raises(InvalidImage) as refused:
        await images.resolve("python")
    assert "images.strict" in refused.value.message
