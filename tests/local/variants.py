"""The local backend on other images than the host image, for suites that know only a backend.

Each is a factory for `--backend package.module:factory`: a request for the host image gets the
image of the variant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten_runtime.backends.local.backend import LocalBackend
from tests.local import trees

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec, Profile
    from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell


class OnImage(LocalBackend):
    def __init__(self, data_dir: Path, image: Image, profile: Profile = "hardened") -> None:
        super().__init__(data_dir)
        self._variant = (image, profile)

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> LaunchedCell:
        image, profile = self._variant
        if spec.image.kind == "host":
            spec = replace(spec, image=image, profile=profile)
        return await super().create(sandbox_id, spec)


def _trees(data_dir: Path) -> Path:
    at = data_dir / "trees"
    at.mkdir(mode=0o755, parents=True, exist_ok=True)
    return at


def busybox(data_dir: Path) -> OnImage:
    at = _trees(data_dir)
    image = trees.image("busybox", trees.busybox(at / "busybox"), trees.skeleton(at / "skeleton"))
    return OnImage(data_dir, image)


def debian(data_dir: Path) -> OnImage:
    skeleton = trees.debian_skeleton(_trees(data_dir) / "skeleton")
    return OnImage(data_dir, trees.image("debian", trees.debian(), skeleton))


def dev(data_dir: Path) -> OnImage:
    skeleton = trees.debian_skeleton(_trees(data_dir) / "skeleton")
    return OnImage(data_dir, trees.image("debian", trees.debian(), skeleton), "dev")
