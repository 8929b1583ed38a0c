"""Id ranges: never two sandboxes in one, never host id 0, given back by their owner only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten.linux import idranges

if TYPE_CHECKING:
    from pathlib import Path


def test_two_leases_never_share_a_slot(tmp_path: Path) -> None:
    slots = [idranges.lease(tmp_path, f"sbx_{i}") for i in range(50)]
    assert len(set(slots)) == 50
    assert dict(idranges.leases(tmp_path)) == {s: f"sbx_{i}" for i, s in enumerate(slots)}


def test_only_the_owner_gives_a_slot_back(tmp_path: Path) -> None:
    slot = idranges.lease(tmp_path, "sbx_a")
    idranges.release(tmp_path, slot, "sbx_b")
    assert list(idranges.leases(tmp_path)) == [(slot, "sbx_a")]
    idranges.release(tmp_path, slot, "sbx_a")
    idranges.release(tmp_path, slot, "sbx_a")
    assert list(idranges.leases(tmp_path)) == []


def test_all_ranges_taken_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idranges, "SLOTS", 3)
    for owner in "abc":
        idranges.lease(tmp_path, owner)
    with pytest.raises(BackendUnavailable, match="all 3 id ranges"):
        idranges.lease(tmp_path, "d")


def test_ranges_stay_where_nobody_else_allocates() -> None:
    assert idranges.base_of(0) == 0x70000000
    assert idranges.base_of(idranges.SLOTS - 1) + idranges.COUNT - 1 <= 0x7FFDFFFF
