"""The benchmark's pure parts: values, verdicts, turns, the page and the plots."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import (
    agents,
    cluster,
    code,
    compare,
    comparison,
    contained,
    expressions,
    network,
    ondocker,
    packages,
    plot,
    report,
    results,
    rows,
    run,
    traces,
)
from benchmarks.peers import worker
from benchmarks.peers.contestants import BARE, CLI, COLD, CONTESTANTS, DOCKER, OURS, WARM
from benchmarks.plan import QUICK
from benchmarks.results import Entrant, Part, Results
from benchmarks.rows import Goal, Row, goal_text, judge, peers_ahead, verdicts
from benchmarks.samples import Samples, Summary, percentile
from benchmarks.turns import in_turns
from tests.repo import tree


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


def test_a_failed_operation_has_no_duration():
    samples = Samples()
    with pytest.raises(RuntimeError), samples.timed("create", "docker"):
        raise RuntimeError
    assert samples.summaries() == {}


def test_failures_are_counted_beside_the_values():
    samples = Samples()
    for value in (2.0, 2.0, 2.0):
        samples.add("create", "docker", value)
    samples.fail("create", "docker", "no space")
    samples.fail("create", "runc", "gone")
    summary = samples.summaries()["create"]
    assert summary["docker"] == Summary(3, 2.0, 2.0, 2.0, 1, "no space")
    assert summary["docker"].success == 0.75
    assert summary["runc"] == Summary(0, None, None, None, 1, "gone")


# ---- goals


def _measured(operation: str = "create", **values: float) -> dict[str, dict[str, Summary]]:
    named = {name.replace("_", " "): value for name, value in values.items()}
    return {operation: {name: Summary(1, v, v, v) for name, v in named.items()}}


@pytest.mark.parametrize(("ours", "ok"), [(10.0, True), (9.0, True), (10.1, False)])
def test_a_ratio_is_judged_by_the_median_of_the_same_run(ours, ok):
    goal = Goal(1 / 12, "docker")
    found = judge(Row("create", "x", (goal,)), goal, _measured(sandkasten=ours, docker=120.0))
    assert (found.ok, found.goal) == (ok, "sandkasten: ≤ 1/12 of docker")


@pytest.mark.parametrize(("raw", "ok"), [(2.9, True), (3.1, False)])
def test_the_cost_of_http_is_the_difference_of_the_medians(raw, ok):
    row = next(row for row in rows.ALONE if row.section == "http")
    measured = _measured(row.operation, sandkasten=2.0, raw_HTTP=raw, SDK_over_HTTP=9.0)
    found = judge(row, row.goals[0], measured)
    assert found.ok is ok
    assert found.measured == f"{raw - 2:.2f} ms ({raw:.2f} ms and 2.00 ms)"


@pytest.mark.parametrize(("slow", "ok"), [(500.0, True), (500.1, False)])
def test_an_absolute_bound_applies_to_every_operation_and_peer(slow, ok):
    held = [row for row in rows.ALONE if row.section == "contained"]
    assert [row.operation for row in held] == list(contained.FILES)
    for row in held:
        assert {goal.of for goal in row.goals} == set(contained.MODES.values())
        one = Summary(9, 1.0, slow, slow)
        measured = {row.operation: dict.fromkeys(contained.MODES.values(), one)}
        assert [judge(row, goal, measured).ok for goal in row.goals] == [ok, ok]


@pytest.mark.parametrize(("ours", "ok"), [(50.0, True), (49.9, False)])
def test_more_commands_per_second_are_better(ours, ok):
    goal = Goal(50, "docker")
    row = Row("rate", "x", (goal,), unit="/s")
    assert judge(row, goal, _measured("rate", sandkasten=ours, docker=1.0)).ok is ok
    assert goal_text(goal, "/s") == "≥ 50 × docker"


def test_an_unmeasured_goal_does_not_pass():
    judged = verdicts({}, set(run.SECTIONS))
    assert len(judged) == sum(len(row.goals) for row in rows.ROWS)
    assert {one.ok for one in judged} == {None}
    assert verdicts({}, set()) == []


def test_every_row_belongs_to_a_section_that_can_be_run():
    assert {row.section for row in rows.ROWS} <= set(run.SECTIONS)
    operations = [row.operation for row in rows.ROWS]
    assert len(operations) == len(set(operations))


def test_every_row_without_contestants_is_measured_by_its_module():
    one_each = (ondocker.create, ondocker.destroy, ondocker.shell, ondocker.argv)
    measured = {named(mode) for mode in ondocker.MODES for named in one_each}
    for size in ondocker.SIZES:
        for mode in ondocker.MODES:
            measured |= {ondocker.write(size, mode), ondocker.read(size, mode)}
    measured |= {network.CONNECT, network.DOWNLOAD, network.CREATE, rows.NETWORKED}
    measured |= {agents.TOOL, agents.MCP, agents.HTTP, agents.RUN, agents.STEP, packages.CREATE}
    measured |= {cluster.CREATE, cluster.DESTROY, cluster.SHELL, cluster.ARGV}
    measured |= {cluster.BURST, cluster.LAST}
    measured |= {code.WARM, code.FIRST, traces.EXEC, *contained.FILES}
    measured |= {expressions.operation(one) for one in expressions.KILOBYTES}
    checked = {"cluster", "docker", "network", "agents", "packages", "code", "traces", "contained"}
    wanted = {row.operation for row in rows.ALONE if row.section in checked | {"expressions"}}
    assert wanted == measured


# ---- the comparison


class _Peer:
    """A contestant whose every second sandbox cannot be created."""

    def __init__(self) -> None:
        self.live: list[int] = []
        self.made = 0

    def create(self) -> int:
        self.made += 1
        if self.made % 2 == 0:
            raise OSError("no room\nfor more")
        self.live.append(self.made)
        return self.made

    def exec_true(self, box: int) -> None:
        assert box in self.live

    def destroy(self, box: int) -> None:
        self.live.remove(box)


def test_a_turn_answers_values_and_failures_and_leaves_nothing():
    peer = _Peer()
    assert worker.has(peer) == ["create", "exec_true", "destroy"]
    answer = worker.turn(peer, {"turn": "first", "count": 4, "gap_s": 0.0, "label": "burst"})
    assert len(answer["values"]["burst"]) == 2
    assert answer["failures"] == {"burst": ["OSError: no room"] * 2}
    assert peer.live == []


def test_a_warm_contestant_is_asked_once_before_it_is_counted():
    peer = _Peer()
    peer.made = -1
    answer = worker.turn(peer, {"turn": "session", "execs": 2, "warm_s": 0.001})
    # The throw-away failed, and only the second is counted.
    assert (peer.made, answer["failures"]) == (1, {})
    assert len(answer["values"]["exec"]) == 2


def test_a_session_counts_each_command_and_the_time_to_the_first():
    answer = worker.turn(_Peer(), {"turn": "session", "execs": 3})
    assert {name: len(values) for name, values in answer["values"].items()} == {
        "create": 1,
        "exec": 3,
        "first": 1,
        "destroy": 1,
    }


class _Scripted:
    """A worker that takes as long as it is told to, without any process."""

    def __init__(
        self, name: str, seconds: float, clock: list[float], order: list[str], first: float = 0.0
    ) -> None:
        self._first = first
        self.contestant = replace(CONTESTANTS[0], name=name, warm_s=0.0)
        self.gone = ""
        self.has = frozenset({"exec_true"})
        self._seconds, self._clock, self._order = seconds, clock, order

    def take(self, _: dict[str, object]) -> dict[str, object]:
        self._clock[0] += max(self._seconds, self._first)
        self._first = 0.0
        self._order.append(self.contestant.name)
        return {"values": {"exec": [self._seconds]}, "failures": {}}


def test_a_slow_contestant_takes_fewer_turns_and_a_slow_start_is_forgiven(monkeypatch):
    clock: list[float] = [0.0]
    order: list[str] = []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    workers = [
        _Scripted("fast", 0.01, clock, order),
        _Scripted("slow", 30.0, clock, order),
        _Scripted("middle", 1.0, clock, order),
        _Scripted("surprised", 0.01, clock, order, first=5.0),
    ]
    samples = Samples()
    plan = replace(QUICK, contestant_s=10.0, comparison_s=1000.0)
    comparison.Contest(workers, {}).turns(  # type: ignore[arg-type]
        samples, plan, {"turn": "session"}, {"exec_true"}, rounds=30, names=lambda _, op: (op,)
    )
    counted = {name: one.n for name, one in samples.summaries()["exec"].items()}
    # The first turn of a fast one is not counted.
    assert counted["fast"] == 30
    assert counted["slow"] == 2
    assert 8 <= counted["middle"] <= 12
    assert order.index("slow") < 3
    assert counted["surprised"] == 30
    assert order[-1] != "slow"


def test_a_contestant_that_is_gone_fails_in_every_later_row():
    worker = _Scripted("gone", 0.0, [0.0], [])
    worker.gone = "no answer within 90 s"
    samples = Samples()
    comparison.Contest([worker], {}).turns(  # type: ignore[list-item]
        samples, QUICK, {"turn": "rate"}, {"exec_true"}, rounds=1, names=lambda _, op: (op,)
    )
    assert samples.summaries()["rate"]["gone"].reason == "no answer within 90 s"


def test_a_bare_one_shot_is_the_floor_of_both_rows():
    assert comparison.oneshot_rows(BARE, "oneshot") == (rows.ONESHOT, rows.COMMAND_LINE)
    assert comparison.oneshot_rows(CLI, "oneshot") == (rows.COMMAND_LINE,)
    assert comparison.oneshot_rows(DOCKER, "oneshot") == (rows.ONESHOT,)


# ---- the page


def _results() -> Results:
    samples = Samples()
    for name, value in ((WARM, 2.0), (COLD, 20.0), (DOCKER, 400.0), ("bwrap", 1.0)):
        samples.add(rows.CREATE, name, value)
    samples.fail(rows.CREATE, "AutoGen (docker)", "a | b")
    part = Part("2026-01-02T03:04:05+00:00", "abc", 9.0, 3.0, 4.0, True, samples.summaries())
    machine = {
        "processors": 2,
        "processor": "one",
        "memory_bytes": 8_000_000_000,
        "kernel": "6.1",
        "python": "3.11",
    }
    entrants = {WARM: Entrant("ours"), "runc": Entrant("raw", absent="runc is not installed")}
    return Results(machine, entrants, {"sessions": part})


def test_results_survive_their_file(tmp_path):
    found = _results()
    report.write(found, tmp_path)
    assert asdict(results.loaded(tmp_path / report.RESULTS)) == asdict(found)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md",
        "create.svg",
        "results.json",
    ]
    assert results.loaded(tmp_path / "missing.json") == Results()


def test_a_missed_goal_says_what_takes_the_time():
    page = report.page(_results())
    assert "20.0 ms | **missed**: a launcher, bubblewrap and the runner start" in page
    assert "| create | sandkasten: ≤ 2 ms | 2.00 ms | met |" in page


def test_a_page_has_ratios_goals_reasons_and_the_absent():
    page = report.page(_results())
    assert "| docker SDK | 200 × |" in page
    assert (
        "| create | sandkasten: ≤ 1/100 of docker SDK | 1/200 (2.00 ms and 400 ms) | met |" in page
    )
    assert "| AutoGen (docker) |  | – | – | – | 0 | 0% (a \\| b) |" in page
    assert "| create | bwrap (0.50 ×) | – |" in page
    assert "- Ahead: bwrap: it creates a directory" in page
    assert "| runc | raw | did not take part: runc is not installed |" in page
    assert "The machine had other work" in page
    assert "Small sizes" in page
    assert report.text(_results()).count("MISSED") == 1


def test_a_peer_that_is_ahead_without_a_reason_is_shown():
    row = next(row for row in rows.COMPARISON if row.operation == rows.CREATE)
    measured = _measured("create", sandkasten=2.0, docker_SDK=1.0, bwrap=3.0)
    assert peers_ahead(row, measured, OURS) == {DOCKER: ""}
    faster = _results()
    faster.parts["sessions"].measured[rows.CREATE][DOCKER] = Summary(1, 1.0, 1.0, 1.0)
    assert f"- Ahead: docker SDK: {report.NO_REASON}" in report.page(faster)


def test_a_plot_names_every_bar_and_keeps_them_inside():
    bars = [
        plot.Bar("ours & co", 0.04, "0.04 ms", "ours"),
        plot.Bar("slow", 11_000.0, "11000 ms", "open"),
        plot.Bar("gone", None, "failed", "peer"),
    ]
    picture = ElementTree.fromstring(plot.chart("create <b>", "ms", "less is better", bars))
    width = float(picture.attrib["width"])
    texts = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"create <b>", "ours & co", "slow", "gone", "failed", "0.01 ms", "100000 ms"} <= set(
        texts
    )
    drawn = list(picture.iter("{http://www.w3.org/2000/svg}rect"))
    assert [one.attrib["class"] for one in drawn] == ["ours", "open"]
    assert all(float(o.attrib["x"]) + float(o.attrib["width"]) < width for o in drawn)
    assert "prefers-color-scheme: dark" in plot.chart("x", "ms", "", bars)


def test_the_page_in_the_repository_is_made_from_its_results():
    found = results.loaded(report.PLACE / report.RESULTS)
    made = report.rendered(found)
    kept = {
        path.name: path.read_text()
        for path in tree.files()
        if path.parent == report.PLACE and path.name != report.RESULTS
    }
    assert kept == made, "run python -m benchmarks.report"
    assert report.NO_REASON not in made[report.PAGE]


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


def test_two_revisions_are_compared_round_by_round():
    # The machine was three times slower in the second round, for both.
    rounds = [({"exec": 1.0}, {"exec": 2.0}), ({"exec": 3.0}, {"exec": 6.0})] * 3
    figures = compare.figures(rounds)["exec"]
    assert (figures["ratio"], figures["low"], figures["high"]) == (0.5, 0.5, 0.5)
    assert (figures["this_ms"], figures["other_ms"]) == (2.0, 4.0)


def test_compare_refuses_an_unknown_revision_without_a_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", "no-such-revision"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: git has no revision no-such-revision\n"


@pytest.mark.slow
def test_a_run_needs_no_package_of_the_tests():
    without = "import sys; sys.modules['pytest'] = None; "
    used = (
        "from benchmarks import run; from benchmarks.peers import pods; pods.missing(); "
        "from tests.cluster import cluster; from tests.engines import engine; "
        "from tests.kubernetes import cluster_images"
    )
    subprocess.run([sys.executable, "-c", without + used], cwd=tree.ROOT, check=True)
