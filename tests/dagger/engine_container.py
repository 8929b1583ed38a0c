"""A Dagger engine in a container of Docker, from an image with the layout of the released one.

The image is built once per content, see `tests.built_images`. A container here gets the
capabilities that this machine has, one by one, since `--privileged` asks for all.
"""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests import built_images
from tests.dagger import programs
from tests.dagger.engine_process import NO_NETWORK, SETTINGS, NetworkClass
from tests.deploy.capabilities import lacking
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.deploy.engine import Docker

IMAGE = f"sandkasten-test-dagger:{programs.VERSION}"
PACKAGES = ("runc", "iptables", "dnsmasq-base", "ca-certificates", "mount")


def image(docker: Docker) -> str:
    """Put the image of the engine into a Docker Engine; return its name."""
    _RECIPE.ensure(docker)
    return IMAGE


def engine_words(network: NetworkClass) -> list[str]:
    """Return the arguments of the engine."""
    words = ["--oci-cni-pool-size", "4"]
    if network == "none":
        words += ["--oci-cni-config-path", f"/etc/dagger/{NO_NETWORK.name}"]
    return words


def privileges() -> list[str]:
    """Return the options of `docker run` that are `--privileged` as far as this machine has it."""
    if not lacking():
        return ["--privileged"]
    words = ["--cap-add", "ALL", "--security-opt", "seccomp=unconfined"]
    words += ["--security-opt", "systempaths=unconfined", "--device-cgroup-rule", "a *:* rwm"]
    return words + [word for name in lacking() for word in ("--cap-drop", name)]


@contextmanager
def started(docker: Docker, name: str, network: NetworkClass) -> Iterator[str]:
    """Start an engine as container `name`; yield its address for a client that has this docker."""
    run = ["run", "--detach", "--name", name, *privileges()]
    for path in (SETTINGS, NO_NETWORK):
        run += ["--volume", f"{path}:/etc/dagger/{path.name}:ro"]
    docker.docker(*run, image(docker), *engine_words(network))
    try:
        until_it_listens(docker, name)
        yield f"container+docker://{name}"
    finally:
        docker.docker("rm", "--force", "--volumes", name, check=False)


def until_it_listens(docker: Docker, name: str) -> None:
    deadline = time.monotonic() + FAR_TOO_LATE_S
    while True:
        said = docker.docker("logs", name)
        if "running server on" in said.stdout + said.stderr:
            return
        running = docker.docker("inspect", "-f", "{{.State.Running}}", name).stdout.strip()
        if running != "true" or time.monotonic() > deadline:
            raise RuntimeError(f"the Dagger engine did not start:\n{said.stderr[-3000:]}")
        time.sleep(0.1)


def _build(docker: Docker) -> None:
    built_images.base(docker)
    context = built_images.CACHE / "dagger"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(programs.REPOSITORY / "tests" / "dagger" / "image", context)
    shutil.copytree(programs.DAGGER, context / "programs")
    script = str(programs.REPOSITORY / "scripts" / "image_debs.sh")
    fetch = (script, built_images.BASE, str(context / "debs"))
    docker.run(*fetch, *PACKAGES, timeout_s=built_images.PATIENCE_S)
    tagged = ("--network", "none", "--build-arg", f"BASE={built_images.BASE}", "--tag", IMAGE)
    docker.docker("build", "--quiet", *tagged, str(context), timeout_s=built_images.PATIENCE_S)
    shutil.rmtree(context)


_RECIPE = built_images.Recipe(
    "dagger",
    ("tests/dagger/image", "tests/dagger/engine", "scripts/image_debs.sh"),
    (IMAGE,),
    _build,
)
