"""Id ranges: one sandbox each, never host id 0, released by their owner only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten_runtime.linux.confinement import id_ranges

if TYPE_CHECKING:
    from pathlib import Path


def test_two_leases_never_share_a_slot(tmp_path: Path) -> None:
    slots = [id_ranges.lease(tmp_path, f"sbx_{i}") for i in range(50)]
    assert len(set(slots)) == 50
    assert dict(id_ranges.leases(tmp_path)) == {s: f"sbx_{i}" for i, s in enumerate(slots)}


def test_only_the_owner_can_release_a_slot(tmp_path: Path) -> None:
    slot = id_ranges.lease(tmp_path, "sbx_a")
    id_ranges.release(tmp_path, slot, "sbx_b")
    assert list(id_ranges.leases(tmp_path)) == [(slot, "sbx_a")]
    id_ranges.release(tmp_path, slot, "sbx_a")
    id_ranges.release(tmp_path, slot, "sbx_a")
    assert list(id_ranges.leases(tmp_path)) == []


def test_all_ranges_taken_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_ranges, "SLOTS", 3)
    for owner in "abc":
        id_ranges.lease(tmp_path, owner)
    with pytest.raises(BackendUnavailable, match="all 3 id ranges"):
        id_ranges.lease(tmp_path, "d")


def test_id_ranges_stay_within_the_reserved_range() -> None:
    assert id_ranges.base_of(0) == 0x70000000
    assert id_ranges.base_of(id_ranges.SLOTS - 1) + id_ranges.COUNT - 1 <= 0x7FFDFFFF
