"""The images of a test cluster, and the backend on it.

`python -m tests.kubernetes.cluster_images DIRECTORY` writes the archives, which a cluster that was
started by hand must have before the suites run on it. TEST_SANDKASTEN_KUBECONFIG names it.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH
from sandkasten_kubernetes.backend import KubernetesBackend
from sandkasten_kubernetes.kubernetes_options import PROGRAMS, KubernetesOptions
from sandkasten_runtime.assembly.backend_registry import read_nested
from sandkasten_runtime.linux.programs import Programs
from tests import imagekit
from tests.cluster.lent_cluster import KUBECONFIG
from tests.cluster.node import SECCOMP_PROFILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.cluster import Cluster

_TARS: dict[str, Callable[[], Path]] = {
    "debian": imagekit.debian_tar,
    "busybox": imagekit.busybox_tar,
}
PROGRAM_IMAGE = "programs"


def reference(name: str) -> str:
    return f"localhost/sandkasten/{name}:test"


def options(kubeconfig: str, reach: str = "") -> KubernetesOptions:
    return KubernetesOptions(
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        runner_image=reference(PROGRAM_IMAGE),
        pull_policy="Never",
        reach="exec" if reach == "exec" else "direct",
        # Two processors have to run a hundred sandboxes.
        overcommit=100.0,
        # No controller of the test cluster enforces a NetworkPolicy.
        network_policy="assumed",
        seccomp_profile=SECCOMP_PROFILE,
    )


def open_on_cluster(data_dir: Path, reach: str) -> KubernetesBackend:
    return KubernetesBackend(data_dir, options(os.environ[KUBECONFIG], reach), read_nested)


def stock(cluster: Cluster, *names: str) -> None:
    """Load images on both nodes: those of these names and the one with our programs."""
    with tempfile.TemporaryDirectory(dir=cluster.folder) as place:
        write(Path(place), *names)
        for archive in sorted(Path(place).iterdir()):
            cluster.load(archive)


def write(directory: Path, *names: str) -> None:
    """Write the archives of images of these names, and of the one with our programs."""
    directory.mkdir(parents=True, exist_ok=True)
    programs = directory / "programs.rootfs"
    with tarfile.open(programs, "w") as tar:
        found = Programs.found(None, None)
        for one in (found.runner, found.egress, found.gate, found.launcher):
            tar.add(one, f"{PROGRAMS.lstrip('/')}/{one.name}")
    for name, made in ((PROGRAM_IMAGE, programs), *((name, _TARS[name]()) for name in names)):
        image = imagekit.rootfs_sketch(
            made, names=(reference(name),), config={"Env": [f"PATH={DEFAULT_PATH}"]}
        )
        imagekit.write_tar(directory / f"{name}.tar", imagekit.docker_members(image))
    programs.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]), *_TARS)
