"""What a backend of this host refuses before anything is created, and what it says of limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_runtime.linux.cgroup.cgroups import SOCKET_LIMIT, Hierarchies
from sandkasten_runtime.linux.host_requirements import socket_memory
from sandkasten_runtime.linux.launch_plan import refuse

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("root", [True, False])
def test_an_engine_image_cannot_be_mounted_by_the_host(root):
    with pytest.raises(UnsupportedByBackend, match="alpine:3") as refused:
        refuse(CellSpec(image=Image("alpine:3", kind="engine")), root=root)
    assert "image import" in refused.value.hint


V2 = Hierarchies({}, "/sys/fs/cgroup", frozenset({"memory"}))


@pytest.mark.parametrize(
    ("options", "ok"),
    [
        ("quiet", True),
        ("cgroup.memory=nokmem", True),
        ("cgroup.memory=nokmem,nosocket quiet", False),
    ],
)
def test_socket_memory_counts_on_v2_unless_the_kernel_was_told_not_to(options, ok):
    assert socket_memory(V2, True, options).ok == ok


def test_socket_memory_needs_its_own_limit_on_v1(tmp_path: Path):
    on = Hierarchies({"memory": str(tmp_path)}, "/sys/fs/cgroup/unified")
    line = socket_memory(on, True, "")
    assert (line.ok, line.required) == (False, False)
    assert SOCKET_LIMIT in line.state
    (tmp_path / SOCKET_LIMIT).touch()
    assert socket_memory(on, True, "").ok


def test_socket_memory_is_not_limited_for_an_ordinary_user():
    assert not socket_memory(V2, False, "").ok
