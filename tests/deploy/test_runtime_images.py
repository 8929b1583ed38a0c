"""The runtime images for sandboxes: their programs and their user."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import built_images

if TYPE_CHECKING:
    from tests.deploy.engine import Docker

pytestmark = [
    pytest.mark.timeout(built_images.PATIENCE_S),
    pytest.mark.promise("P60"),
    pytest.mark.long(reason="building the images takes a minute"),
]
PROGRAMS = {
    "base": ("bash --version | head -c 8", "ps --version | head -c 4"),
    "python": ("python3 -c 'print(1 + 1)'", "python3 -m pip --version"),
    "node": ("node -e 'console.log(1 + 1)'",),
}
SAID = {"base": "GNU bashps f", "python": "2\npip", "node": "2\n"}


def inside(engine: Docker, image: str, script: str) -> str:
    """Run a command restricted like a sandbox: no network, read-only root, no capabilities."""
    hard = ("--network", "none", "--read-only", "--tmpfs", "/tmp:exec", "--cap-drop", "ALL")
    return engine.docker("run", "--rm", *hard, image, "/bin/bash", "-c", script).stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_a_runtime_image_work_in_a_confined_container(
    engine: Docker, runtime_images: tuple[str, ...], name: str
) -> None:
    said = inside(engine, f"sandbox-runtime:{name}", " && ".join(PROGRAMS[name]))
    assert said.startswith(SAID[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_runtime_image_has_an_ordinary_user_and_no_runner(
    engine: Docker, runtime_images: tuple[str, ...], name: str
) -> None:
    image = f"sandbox-runtime:{name}"
    (found,) = json.loads(engine.docker("image", "inspect", image).stdout)
    config = found["Config"]
    assert (config["User"], config["WorkingDir"], config["Entrypoint"]) == (
        "1000",
        "/workspace",
        None,
    )
    places = "/var/cache/debs /var/lib/apt/lists /workspace"
    script = f"id -u; stat -c %u /workspace; ls -A {places} 2>/dev/null"
    said = inside(engine, image, f"{script}; find / -xdev -path '*sandkasten*' 2>/dev/null; true")
    assert said == "1000\n1000\n/var/lib/apt/lists:\n\n/workspace:\n"


def test_the_python_and_node_images_share_the_base_layers(
    engine: Docker, runtime_images: tuple[str, ...]
) -> None:
    shown = [
        json.loads(engine.docker("image", "inspect", image).stdout)[0]["RootFS"]["Layers"]
        for image in runtime_images
    ]
    base = shown[0]
    assert [layers[: len(base)] for layers in shown] == [base, base, base]
