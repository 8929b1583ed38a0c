"""Many sessions and several replicas on a simulated cluster: the short form of the benchmark."""

from __future__ import annotations

import pytest

from benchmarks.scale.__main__ import QUICK, measure
from benchmarks.scale.replicas import open_replicas


@pytest.mark.timeout(600)
@pytest.mark.slow_loop
@pytest.mark.long(reason="starts three daemons with 200 sessions; it takes a minute")
async def test_two_hundred_sessions_at_three_replicas():
    async with open_replicas() as replicas:
        found = await measure(replicas, QUICK)
    for burst in found["rates"].values():
        # A Secret and a Pod for each, and no further call.
        assert burst["calls"]["create pods"] == QUICK.creates
        assert burst["calls"]["create secrets"] == QUICK.creates
        assert burst["calls"]["watch pods"] == QUICK.creates
    # Sixteen statements are more than a create needs; what grows with the replicas is more.
    assert found["rates"]["3"]["statements"] < 16 * QUICK.creates
    assert found["restart"]["recovered_s"] is not None
    assert found["periodic"]["list of objects"]["calls"]["list pods"] == 1
    assert "trouble" not in found["periodic"]["reaper"]
