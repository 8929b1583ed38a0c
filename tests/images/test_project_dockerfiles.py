"""The Dockerfiles of this repository are built without a Docker Engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import sandkasten
from tests import imagekit

pytestmark = [pytest.mark.root, pytest.mark.promise("P53")]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """A store with the images that a registry would have; their apt-get finds all installed."""
    path = tmp_path_factory.mktemp("store")
    images = sandkasten.Images(data_dir=path)
    images.import_archive(imagekit.debian_tar(), name="debian:bookworm-slim")
    place = tmp_path_factory.mktemp("start")
    (place / "apt-get").write_text("#!/bin/sh\nexit 0\n")
    (place / "Dockerfile").write_text(
        "FROM debian:bookworm-slim\nCOPY --chmod=755 apt-get /usr/local/sbin/\n"
    )
    images.build(place, name="debian:bookworm-slim")
    return path


def test_the_images_of_the_repository_are_built_by_their_files(store):
    images = sandkasten.Images(data_dir=store)
    layers = []
    for name in ("base", "python", "node"):
        built = images.build(ROOT / "images" / name, name=f"sandbox-runtime:{name}")
        assert (built.image.user, built.image.workdir) == ("1000", "/workspace")
        layers.append([layer.id for layer in built.image.layers])
    # The others extend the base image.
    assert [one[: len(layers[0])] for one in layers] == [layers[0]] * 3
    assert len(layers[0]) < min(len(one) for one in layers[1:])
    with sandkasten.Sandbox("sandbox-runtime:python", data_dir=store) as box:
        found = box.exec("pwd; ls -A /var/cache/debs; echo ok > /var/tmp/a && cat /tmp/a")
    assert found.output.splitlines()[0] == "/workspace"
    assert found.output.splitlines()[-1] == "ok"


def test_an_image_may_have_the_same_layer_twice(store, tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "Dockerfile").write_text(
        "FROM debian:bookworm-slim\nCOPY a /srv/\nRUN rm /srv/a\nCOPY a /srv/\n"
    )
    sandkasten.Images(data_dir=store).build(tmp_path, name="twice")
    with sandkasten.Sandbox("twice", data_dir=store) as box:
        assert box.exec("cat /srv/a").output == "1"
