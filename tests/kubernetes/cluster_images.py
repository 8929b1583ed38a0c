"""The images of a test cluster, and the backend on it.

`python -m tests.kubernetes.cluster_images DIRECTORY` writes the archives, which the cluster must
have before the suites run on `--platform kubernetes`. SANDKASTEN_TEST_KUBECONFIG names it.
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.backends.kubernetes.backend import KubernetesBackend
from sandkasten.backends.kubernetes.kubernetes_options import PROGRAMS, KubernetesOptions
from sandkasten.daemon.backend_registry import read_kubeconfig
from sandkasten.linux.programs import Programs
from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH
from tests import imagekit

if TYPE_CHECKING:
    from collections.abc import Callable

KUBECONFIG = "SANDKASTEN_TEST_KUBECONFIG"
_TARS: dict[str, Callable[[], Path]] = {
    "debian": imagekit.debian_tar,
    "busybox": imagekit.busybox_tar,
}
_PROGRAMS = "programs"


def reference(name: str) -> str:
    return f"localhost/sandkasten/{name}:test"


def options(reach: str = "") -> KubernetesOptions:
    return KubernetesOptions(
        kubeconfig=os.environ[KUBECONFIG],
        runner_image=reference(_PROGRAMS),
        pull_policy="Never",
        reach="exec" if reach == "exec" else "direct",
        # Two processors have to run a hundred sandboxes.
        overcommit=100.0,
        # No controller of the test cluster enforces a NetworkPolicy.
        network_policy="assumed",
    )


def open_on_cluster(data_dir: Path, reach: str) -> KubernetesBackend:
    return KubernetesBackend(data_dir, options(reach), read_kubeconfig)


def write(directory: Path) -> None:
    """Write the archives of all images."""
    directory.mkdir(parents=True, exist_ok=True)
    programs = directory / "programs.rootfs"
    with tarfile.open(programs, "w") as tar:
        for one in (Programs.found(None, None).runner, Programs.found(None, None).egress):
            tar.add(one, f"{PROGRAMS.lstrip('/')}/{one.name}")
    for name, made in ((_PROGRAMS, programs), *((name, tar()) for name, tar in _TARS.items())):
        image = imagekit.rootfs_sketch(
            made, names=(reference(name),), config={"Env": [f"PATH={DEFAULT_PATH}"]}
        )
        archive = imagekit.members_tar(imagekit.docker_members(image))
        (directory / f"{name}.tar").write_bytes(archive)
    programs.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
