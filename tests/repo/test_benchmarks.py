"""The benchmark's verdicts: at the bound passes, above it fails, unmeasured does not pass."""

from __future__ import annotations

import pytest

from benchmarks import (
    agents,
    code,
    compare,
    contained,
    expressions,
    network,
    ondocker,
    packages,
    traces,
)
from benchmarks.footprint import Idle
from benchmarks.plan import QUICK
from benchmarks.report import Findings, document, judgement, table, verdicts
from benchmarks.samples import Samples, percentile
from benchmarks.thresholds import (
    ADDED,
    MIB,
    RATIOS,
    WITHIN,
    Ratio,
    Within,
    at_most,
    judge,
    judge_added,
    judge_within,
)
from benchmarks.turns import in_turns


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7.0], 0.95, 7.0),
        ([1.0, 3.0], 0.5, 2.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([float(n) for n in range(101)], 0.95, 95.0),
    ],
)
def test_a_percentile_lies_between_its_neighbours(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected)


def test_no_values_have_no_percentile():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_every_bound_of_networks_is_measured():
    judged = {(one.operation, one.peer) for one in RATIOS if "network" in one.operation}
    assert judged == {
        *((network.CONNECT, peer) for peer in ("direct", "pasta")),
        *((network.DOWNLOAD, peer) for peer in ("direct", *network.PEERS)),
        (network.CREATE, network.CLOSED),
    }


@pytest.mark.parametrize(("ours", "ok"), [(10.0, True), (9.0, True), (10.1, False)])
def test_a_ratio_is_judged_by_the_median_of_the_same_run(ours, ok):
    samples = Samples()
    for value in (1.0, ours, 500.0):
        samples.add("create", "sandkasten", value)
    samples.add("create", "docker", 120.0)
    assert judge(Ratio("create", "docker", 1 / 12, "create"), samples).ok is ok


@pytest.mark.parametrize(("raw", "ok"), [(2.9, True), (3.1, False)])
def test_the_cost_of_http_is_the_difference_of_the_medians(raw, ok):
    samples = Samples()
    samples.add(ADDED[0].operation, "sandkasten", 2.0)
    samples.add(ADDED[0].operation, "raw HTTP", raw)
    samples.add(ADDED[0].operation, "SDK over HTTP", 9.0)
    told = [judge_added(one, samples) for one in ADDED]
    assert [one.ok for one in told] == [ok, True]
    assert told[1].measured == "7.00 ms (9.00 ms, 2.00 ms)"


@pytest.mark.parametrize(("slowest", "ok"), [(500.0, True), (500.1, False)])
def test_an_absolute_bound_applies_to_the_slowest_operation_and_peer(slowest, ok):
    within = Within(("write", "read"), ("near", "far"), 500.0, "files")
    samples = Samples()
    for operation in within.operations:
        for peer in within.peers:
            samples.add(operation, peer, 2.0)
    del samples._values["read"]["far"]
    assert judge_within(within, samples).ok is None
    samples.add("read", "far", slowest)
    assert judge_within(within, samples).ok is ok


def test_every_docker_bound_is_measured():
    judged = {ratio.operation for ratio in RATIOS if "on docker" in ratio.operation}
    one_each = (ondocker.create, ondocker.destroy, ondocker.shell, ondocker.argv)
    measured = {named(mode) for mode in ondocker.MODES for named in one_each}
    for size in ondocker.SIZES:
        for mode in ondocker.MODES:
            measured |= {ondocker.write(size, mode), ondocker.read(size, mode)}
    assert judged == measured
    assert [within.operations for within in WITHIN] == [contained.FILES]
    assert [within.peers for within in WITHIN] == [tuple(contained.MODES.values())]


def test_every_agent_bound_is_measured():
    measured = {
        (agents.TOOL, agents.ENGINE),
        (agents.MCP, agents.ENGINE),
        (agents.HTTP, agents.HTTP_EXEC),
        (agents.RUN, agents.ENGINE),
        (agents.RUN, "docker"),
        (agents.STEP, agents.ALONE),
        (packages.CREATE, packages.WITHOUT),
        (code.WARM, code.BARE),
        (code.FIRST, code.BARE),
        (traces.EXEC, traces.PLAIN),
        *((expressions.operation(one), expressions.LIBRARY) for one in expressions.KILOBYTES),
    }
    judged = [(ratio.operation, ratio.peer) for ratio in RATIOS]
    assert set(judged[-len(measured) :]) == measured


async def _turns_taken() -> tuple[Samples, list[str]]:
    samples, done = Samples(), []

    def doing(what: str):
        async def one() -> None:
            done.append(what)

        return one

    turns = {peer: doing(peer) for peer in ("a", "b", "c")}
    await in_turns(samples, "x", turns, rounds=20, plan=QUICK, after=doing("-"))
    return samples, done


@pytest.mark.anyio
async def test_each_peer_runs_once_per_round_in_shuffled_order():
    samples, done = await _turns_taken()
    assert [samples.count("x", peer) for peer in "abc"] == [20, 20, 20]
    assert done[1::2] == ["-"] * (len(done) // 2)
    order = done[::2]
    rounds = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    followed = {pair for one in rounds for pair in zip(one, one[1:], strict=False)}
    assert followed == {(x, y) for x in "abc" for y in "abc" if x != y}
    assert (await _turns_taken())[1] == done


def test_an_unmeasured_bound_does_not_pass():
    assert [judge_within(one, Samples()).ok for one in WITHIN] == [None] * len(WITHIN)
    assert [judge_added(one, Samples()).ok for one in ADDED] == [None, None]
    assert [judge(ratio, Samples()).ok for ratio in RATIOS] == [None] * len(RATIOS)
    assert at_most("idle", None, 1).ok is None
    assert at_most("idle", 2 * MIB, 2 * MIB).ok is True
    assert at_most("idle", 2 * MIB + 1, 2 * MIB).ok is False


def test_a_failed_operation_has_no_duration():
    samples = Samples()
    with pytest.raises(RuntimeError), samples.timed("create", "docker"):
        raise RuntimeError
    assert samples.p50("create", "docker") is None


def test_a_report_shows_every_number_and_verdict():
    samples = Samples()
    samples.add("create", "sandkasten", 10)
    samples.add("create", "docker", 200)
    found = Findings(
        samples,
        rates={"cycles, 8 at once": {"sandkasten": 50.0, "docker": 5.0}},
        idle=[Idle("sandkasten", 200, 1.5 * MIB, 1.0 * MIB)],
        growth={"exec": 3 * MIB},
        output_bytes=1 << 30,
    )
    shown = table(found)
    for part in ("create", "20.00 x", "50.0/s", "1.50 MiB", "3.00 MiB"):
        assert part in shown
    said = judgement(found)
    assert "pass  create <= 1/12 of docker" in said
    assert "----  destroy <= 1/20 of docker" in said
    assert [v.ok for v in verdicts(found)].count(True) == 3
    assert document(found)["output_bytes"] == 1 << 30


def test_two_revisions_are_compared_round_by_round():
    # The machine was three times slower in the second round, for both.
    rounds = [({"exec": 1.0}, {"exec": 2.0}), ({"exec": 3.0}, {"exec": 6.0})] * 3
    figures = compare.figures(rounds)["exec"]
    assert (figures["ratio"], figures["low"], figures["high"]) == (0.5, 0.5, 0.5)
    assert (figures["this_ms"], figures["other_ms"]) == (2.0, 4.0)
