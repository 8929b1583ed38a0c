"""The Dockerfiles of this repository and of its plan are built without a Docker Engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sandkasten
from sandkasten_build.builder.known_definitions import DEFINITIONS
from sandkasten_runtime.images.image_names import OWN_IMAGES
from tests import imagekit
from tests.seeds.documents import block

pytestmark = [pytest.mark.root, pytest.mark.promise("P53")]

ROOT = Path(__file__).resolve().parents[3]


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


def test_known_images_have_the_packages_of_the_dockerfiles():
    def packages(name: str) -> set[str]:
        """Return the packages of a Dockerfile and of the one that it is built from."""
        text = (ROOT / "images" / name / "Dockerfile").read_text()
        (line,) = re.findall(r'^ARG PACKAGES="(.*)"$', text, re.MULTILINE)
        return {*line.split(), *(() if name == "base" else packages("base"))}

    for image in OWN_IMAGES:
        assert set(DEFINITIONS[image].packages) == packages(image.partition(":")[2]), image


def test_the_images_of_the_repository_are_built_by_their_files(store):
    images = sandkasten.Images(data_dir=store)
    layers = []
    for name in ("base", "python", "node"):
        built = images.build(ROOT / "images" / name, name=f"sandbox-runtime:{name}")
        assert (built.image.user, built.image.workdir) == ("1000", "/workspace")
        layers.append([layer.id for layer in built.image.layers])
    # The others extend the base image.
    assert [digests[: len(layers[0])] for digests in layers] == [layers[0]] * 3
    assert len(layers[0]) < min(len(digests) for digests in layers[1:])
    with sandkasten.Sandbox("sandbox-runtime:python", data_dir=store) as box:
        result = box.exec("pwd; ls -A /var/cache/debs; echo ok > /var/tmp/a && cat /tmp/a")
    assert result.output.splitlines()[0] == "/workspace"
    assert result.output.splitlines()[-1] == "ok"


@pytest.mark.parametrize(
    ("base", "user"),
    [("", "sandbox"), ("RUN useradd -m ubuntu\n", "ubuntu")],
    ids=["1000 is free", "1000 is taken"],
)
def test_the_dockerfile_of_the_plan_is_built_as_written(store, tmp_path, base, user):
    images = sandkasten.Images(data_dir=store)
    (tmp_path / "Dockerfile").write_text(f"FROM debian:bookworm-slim\n{base}")
    images.build(tmp_path, name="ubuntu:24.04")
    (tmp_path / "Dockerfile").write_text(block("004-4").text)
    (tmp_path / "runner").write_text("#!/bin/sh\necho ran\n")
    image = images.build(tmp_path, name="plan").image
    assert (image.user, image.workdir) == ("sandbox", "/workspace")
    assert image.entrypoint == ("/usr/local/bin/runner",)
    with sandkasten.Sandbox("plan", data_dir=store) as box:
        result = box.exec("whoami; pwd; runner; grep -c ^sandbox: /etc/passwd; touch a && ls")
    assert result.output.split() == [user, "/workspace", "ran", "1", "a"]


def test_a_sandbox_runs_as_the_account_that_the_image_has_made(store, tmp_path):
    (tmp_path / "Dockerfile").write_text(
        "FROM debian:bookworm-slim\n"
        "RUN useradd -u 1000 -m app && useradd -r runner && mkdir /workspace\n"
        "USER app\nRUN id -un > ~/who\n"
    )
    sandkasten.Images(data_dir=store).build(tmp_path, name="own")
    with sandkasten.Sandbox("own", data_dir=store) as box:
        result = box.exec("id -un; cat ~app/who; getent passwd sandbox; touch /workspace/a")
    assert (result.output.split(), result.exit_code) == (["app", "app"], 0)


def test_an_image_may_have_the_same_layer_twice(store, tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "Dockerfile").write_text(
        "FROM debian:bookworm-slim\nCOPY a /srv/\nRUN rm /srv/a\nCOPY a /srv/\n"
    )
    sandkasten.Images(data_dir=store).build(tmp_path, name="twice")
    with sandkasten.Sandbox("twice", data_dir=store) as box:
        assert box.exec("cat /srv/a").output == "1"
