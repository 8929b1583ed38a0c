"""Signatures on the backend docker: the Docker Engine checks none, so only the store is used."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from plugins.docker.tests.site import FAR, IMAGE, nothing_left, opened, sh
from sandkasten.errors import ImageNotFound, UntrustedImage
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests import imagekit
from tests.images import registries, signing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engines.reached import Reached
    from tests.images.registries import Running

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P76")]


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> Iterator[Running]:
    with registries.docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def push(running: Running, image: registries.Made) -> None:

    registries.push(running.base, "team/app", "1", image)


@pytest.mark.long(reason="`make test` has it for our own store")
async def test_an_image_of_the_engine_is_not_used_and_a_signed_one_of_a_registry_is(
    docker_engine: Reached, data: Path, registry: Running, tmp_path: Path
):
    layer = imagekit.busybox_tar().read_bytes()
    image = await asyncio.to_thread(
        registries.image, layer, architecture=registries.HERE, env=("PATH=/bin",)
    )
    await asyncio.to_thread(push, registry, image)
    name = f"{registry.host}/team/app:1"
    private = signing.key()
    rule = {"key": signing.written(tmp_path / "cosign.pub", signing.public(private))}
    rules = {"policy_images_signatures": json.dumps([rule])}
    requested = CreateRequest(SandboxOptions(backend="docker", image=name))
    # The twin: without rules, the engine's own image is used.
    async with opened(data, docker_engine) as sand:
        assert (await sand.create(FAR)).image == IMAGE
    async with opened(data, docker_engine, images_pull="never", **rules) as sand:
        with pytest.raises(ImageNotFound, match="of the Docker Engine are not used") as missing:
            await sand.create(FAR)
        assert f"sandkasten image pull {IMAGE}" in missing.value.hint
    async with opened(data, docker_engine, allowed_images=name, **rules) as sand:
        with pytest.raises(UntrustedImage, match="has no signature"):
            await sand.create(requested)
        assert await sand.list(all=True) == []
        assert await nothing_left(docker_engine, data) == []
        await asyncio.to_thread(signing.sign, registry, "team/app", image.digest, private)
        info = await sand.create(requested)
        assert (await sh(sand, info.id, "echo ran")).stdout == b"ran\n"
    assert await nothing_left(docker_engine, data) == []
    # The engine has it now, and another key is required.
    rule["key"] = signing.written(tmp_path / "new.pub", signing.public(signing.key()))
    rules = {"policy_images_signatures": json.dumps([rule])}
    async with opened(
        data, docker_engine, allowed_images=name, images_pull="never", **rules
    ) as sand:
        with pytest.raises(UntrustedImage, match="not made by this key"):
            await sand.create(requested)
        assert await sand.list(all=True) == []
    assert await nothing_left(docker_engine, data) == []
