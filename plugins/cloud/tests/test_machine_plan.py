"""What machines of all providers share: their orders, and which of them are believed to be ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_cloud import machine_plan
from sandkasten_cloud.backend import CloudBackend
from sandkasten_cloud.fly.fly_capabilities import FLY
from sandkasten_cloud.fly.fly_options import FlyOptions
from sandkasten_cloud.machine_plan import KEYS_VARIABLE
from sandkasten_cloud.machine_records import MachineRecords
from sandkasten_runtime.backends.gate import entry_keys

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.promise("P115")


def test_a_request_cannot_give_the_gate_other_keys():
    sandbox_id = new_sandbox_id()
    spec = CellSpec(
        image=Image("debian", kind="engine"), env={KEYS_VARIABLE: "token=AAAA", "MINE": "1"}
    )
    keys = entry_keys.make_keys(sandbox_id, "fly")
    order = machine_plan.order(sandbox_id, spec, FlyOptions(), "me", keys, {})
    assert order.env["MINE"] == "1"
    assert KEYS_VARIABLE not in order.env


async def test_an_id_that_is_none_of_ours_never_becomes_a_path(tmp_path: Path):
    own_id = new_sandbox_id()

    class Odd:
        async def machines(self) -> dict[Any, str]:
            return {own_id: "1", "../owner": "2", "": "3", f"{own_id}/..": "4"}

    records = MachineRecords(tmp_path / "odd")
    backend = CloudBackend(cast("Any", Odd()), records, records.owner(), FlyOptions(), FLY)
    assert list(await backend.owned()) == [own_id]
