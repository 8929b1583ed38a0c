"""What machines of all providers share: their orders, and which of them are believed to be ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from sandkasten.backends.cloud import machine_plan
from sandkasten.backends.cloud.backend import CloudBackend
from sandkasten.backends.cloud.fly.fly_capabilities import FLY
from sandkasten.backends.cloud.fly.fly_options import FlyOptions
from sandkasten.backends.cloud.machine_plan import KEYS_VARIABLE
from sandkasten.backends.cloud.machine_records import MachineRecords
from sandkasten.backends.gate import entry_keys
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec

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
    ours = new_sandbox_id()

    class Odd:
        async def machines(self) -> dict[Any, str]:
            return {ours: "1", "../owner": "2", "": "3", f"{ours}/..": "4"}

    records = MachineRecords(tmp_path / "odd")
    backend = CloudBackend(cast("Any", Odd()), records, records.owner(), FlyOptions(), FLY)
    assert list(await backend.owned()) == [ours]
