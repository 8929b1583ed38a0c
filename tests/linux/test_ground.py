"""What a backend of this machine refuses before anything is made."""

from __future__ import annotations

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.linux.launch_plan import refuse
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec


@pytest.mark.parametrize("root", [True, False])
def test_an_image_that_only_an_engine_has_cannot_be_shown_by_this_machine(root):
    with pytest.raises(UnsupportedByBackend, match="alpine:3") as refused:
        refuse(CellSpec(image=Image("alpine:3", kind="engine")), root=root)
    assert "image import" in refused.value.hint
