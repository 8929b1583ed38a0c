"""What a backend of this host refuses before anything is created."""

from __future__ import annotations

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.linux.launch_plan import refuse
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec


@pytest.mark.parametrize("root", [True, False])
def test_an_engine_image_cannot_be_mounted_by_the_host(root):
    with pytest.raises(UnsupportedByBackend, match="alpine:3") as refused:
        refuse(CellSpec(image=Image("alpine:3", kind="engine")), root=root)
    assert "image import" in refused.value.hint
