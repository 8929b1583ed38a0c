"""Both runtimes on image layers and with the dev profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import SandkastenError
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.sandbox.cell_spec import CellSpec, Profile
from sandkasten_contract.box import Box
from tests.local import trees

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.model.images.resolved_image import Image
    from sandkasten_runtime.backends.oci.backend import OciBackend

pytestmark = pytest.mark.promise("P07")


def debian(scratch: Path) -> Image:
    return trees.image("debian", trees.debian(), trees.debian_skeleton(scratch / "skeleton"))


def busybox(scratch: Path) -> Image:
    return trees.image(
        "busybox", trees.busybox(scratch / "busybox"), trees.skeleton(scratch / "bare")
    )


@pytest.fixture(params=["hardened", "dev"])
async def on_debian(
    request: pytest.FixtureRequest, backend: OciBackend, scratch: Path
) -> AsyncIterator[tuple[Profile, Box]]:
    spec = CellSpec(image=debian(scratch), profile=request.param)
    cell = await backend.create(new_sandbox_id(), spec)
    box = await Box.open(cell)
    yield request.param, box
    await box.aclose()
    await cell.destroy()


async def test_a_debian_image_runs_programs_and_keeps_its_root(on_debian):
    profile, box = on_debian
    who = "0" if profile == "dev" else "1000"
    assert (await box.run(["id", "-u"])).stdout.decode().strip() == who
    assert (await box.run("echo hello | tr a-z A-Z; pwd")).stdout == b"HELLO\n/workspace\n"
    await box.write("a.py", b"print(6 * 7)")
    assert (await box.run(["python3", "/workspace/a.py"])).stdout == b"42\n"
    assert (await box.run(["stat", "-c", "%u", "/usr/bin/env"])).stdout == b"0\n"
    written = await box.run(["touch", "/usr/new"])
    assert (written.exit_code == 0) == (profile == "dev")


async def test_dev_is_root_inside_and_can_chown_and_add_users(on_debian):
    profile, box = on_debian
    if profile != "dev":
        assert (await box.run(["chown", "5:5", "/workspace"])).exit_code != 0
        return
    ran = await box.run("useradd -m alice && su alice -c 'id -un' && chown 5:6 /usr && echo $HOME")
    assert ran.stdout == b"alice\n/root\n", ran.stderr
    assert (await box.run(["stat", "-c", "%u:%g", "/usr"])).stdout == b"5:6\n"


async def test_a_busybox_image_has_a_posix_shell(backend: OciBackend, scratch: Path):
    cell = await backend.create(new_sandbox_id(), CellSpec(image=busybox(scratch)))
    box = await Box.open(cell)
    assert (await box.run("x=1; echo $((x + 1))")).stdout == b"2\n"
    assert (await box.run("echo $x")).stdout == b"1\n"
    assert (await box.run(["sh", "-c", "echo a > /tmp/f && cat /tmp/f"])).stdout == b"a\n"
    await box.aclose()
    await cell.destroy()


async def test_a_missing_layer_leaves_nothing(backend: OciBackend):
    missing = trees.image("gone", trees.CACHE / "nothing-here")
    with pytest.raises(SandkastenError):
        await backend.create(new_sandbox_id(), CellSpec(image=missing))
    assert list(await backend.owned()) == []
