"""The image of the nginx in front of remote engines, with the layout of the official one."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests import built_images
from tests.dagger import programs

if TYPE_CHECKING:
    from tests.deploy.engine import Docker

IMAGE = "sandkasten-test-nginx:latest"


def image(docker: Docker) -> str:
    """Put the image into a Docker Engine; return its name."""
    _RECIPE.ensure(docker)
    return IMAGE


def _build(docker: Docker) -> None:
    built_images.base(docker)
    context = built_images.CACHE / "nginx"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(programs.REPOSITORY / "tests" / "dagger" / "tls_image", context)
    script = str(programs.REPOSITORY / "scripts" / "image_debs.sh")
    fetch = (script, built_images.BASE, str(context / "debs"), "nginx", "libnginx-mod-stream")
    docker.run(*fetch, timeout_s=built_images.PATIENCE_S)
    tagged = ("--network", "none", "--build-arg", f"BASE={built_images.BASE}", "--tag", IMAGE)
    docker.docker("build", "--quiet", *tagged, str(context), timeout_s=built_images.PATIENCE_S)
    shutil.rmtree(context)


_RECIPE = built_images.Recipe(
    "nginx", ("tests/dagger/tls_image", "scripts/image_debs.sh"), (IMAGE,), _build
)
