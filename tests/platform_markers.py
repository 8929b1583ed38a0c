"""Which tests of a suite run on a platform, which do not and why, and their results.

A test that does not apply to a platform says so with a marker and a reason; it is deselected there,
and the run lists it. `--outcome FILE` writes what passed and what was deselected, by suite and
platform; tests/matrix runs the suites with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

from sandkasten_contract import selection
from tests.platform_choice import (
    CLUSTER_TITLES,
    CONTRACT_ONLY,
    GROUNDS,
    every_platform,
    part,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.platform_choice import Ground, Part, Suite


class Found(TypedDict):
    """What a suite found on one ground. `not_asked` is by reason, with the files it concerns."""

    passed: int
    failed: list[str]
    skipped: list[str]
    not_asked: dict[str, list[str]]
    files: list[str]
    seconds: float


ALL = "all"
CLUSTER = "cluster"
_SETS = {ALL: every_platform(), CLUSTER: [*CLUSTER_TITLES]}
_SELECTED = "selected"
_where = pytest.StashKey[dict[str, tuple[str, str]]]()
_left_out = pytest.StashKey[dict[str, str]]()
_outcome = pytest.StashKey["Outcome"]()


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--platform",
        action="append",
        metavar="NAME",
        help="where tests/conformance and tests/security run (repeatable): a name of "
        "tests/platform_choice.py, package.module:factory for the contract alone, or `all` for "
        "every platform with the part of the suites that `make test` runs there, or `cluster` for "
        "those on Kubernetes",
    )
    parser.addoption(
        "--part",
        metavar="NAME",
        help="only what `make test` runs on the platform of that name, wherever this run is",
    )
    parser.addoption("--outcome", metavar="FILE", help="write what passed and what was left out")


def platforms(config: pytest.Config, *default: str) -> list[str]:
    """Return the platforms of a run; `default` is for one that names none."""
    named = config.getoption("platform", None) or list(default)
    return _SETS[named[0]] if _is_set(named) else named


def _is_set(named: list[str] | None) -> bool:
    """Return whether a run is on several platforms, with a part of the suites on some."""
    return named is not None and len(named) == 1 and named[0] in _SETS


def needs_engines(config: pytest.Config) -> bool:
    """Return whether tests on Docker will run, whose engines all workers share."""
    return config.getoption("platform", None) == [ALL]


def needs_cluster(config: pytest.Config) -> bool:
    """Return whether tests on Kubernetes will run."""
    named = [GROUNDS[name] for name in platforms(config) if name in GROUNDS]
    return not config.option.collectonly and any(one.backend == "kubernetes" for one in named)


def on_platforms(
    metafunc: pytest.Metafunc, suite: Suite, argument: str, *default: str, scope: Any = None
) -> None:
    """Parametrize a test with the platforms of the run; `all` means a part of the suite on some."""
    module, aspects = metafunc.module.__name__.rpartition(".")[2], _aspects(metafunc.definition)
    names = platforms(metafunc.config, *default)
    named = metafunc.config.getoption("platform", None)
    if _is_set(named):
        names = [name for name in names if part(suite, name).has(module, aspects)]
        if named == [ALL] and suite == "contract":
            names += [name for name in CONTRACT_ONLY if part(suite, name).has(module, aspects)]
    metafunc.parametrize(argument, names, scope=scope)


def configure(config: pytest.Config) -> None:
    for marker in selection.MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_where], config.stash[_left_out] = {}, {}
    config.stash[_outcome] = Outcome(config)
    config.pluginmanager.register(config.stash[_outcome], "sandkasten-outcome")


def why_not(item: pytest.Item, ground: Ground) -> str | None:
    """Return why this test does not apply to that platform; None if it does."""
    return selection.why_not(item, ground.traits, ground.image, ground.has)


def select(
    config: pytest.Config,
    items: list[pytest.Item],
    suite: Suite,
    ground_of: Callable[[pytest.Item], str | None],
) -> None:
    """Takes what is not asked of its ground out of `items`; the suite of None is not this one."""
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    chosen = config.getoption("part", None)
    for item in items:
        name = ground_of(item)
        if name is not None and chosen is not None and not _is_in(item, part(suite, chosen)):
            dropped.append(item)
            continue
        why = why_not(item, GROUNDS[name]) if name in GROUNDS else None
        if name is not None:
            config.stash[_where][item.nodeid] = suite, name
        if why is not None:
            config.stash[_left_out][item.nodeid] = why
        (kept if why is None else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _is_in(item: pytest.Item, chosen: Part) -> bool:
    return chosen.has(item.path.stem, _aspects(item))


def _aspects(node: pytest.Item) -> set[str]:
    return {name for marker in node.iter_markers("aspect") for name in marker.args}


def told(config: pytest.Config) -> list[str]:
    """For the head of a run."""
    found = config.stash[_left_out].items()
    lines = sorted(f"  {name.rpartition('::')[2]}: {why}" for name, why in found)
    return ["not asked:", *lines] if lines else []


def outcome(config: pytest.Config) -> Outcome:
    return config.stash[_outcome]


class Outcome:
    """Counts the tests of a run, and writes them down at its end when it was asked to."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ended: dict[str, str] = {}
        self._took: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] = self._took.get(report.nodeid, 0.0) + report.duration
        # A test that failed in one of its three phases has failed.
        told = report.when == "call" or report.outcome != "passed"
        if told and self._ended.get(report.nodeid) != "failed":
            self._ended[report.nodeid] = report.outcome

    def found(self, suite: str, ground: str) -> Found:
        """So far."""
        where = self._config.stash[_where]
        ours = [name for name, place in where.items() if place == (suite, ground)]
        by_end: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
        not_asked: dict[str, set[str]] = {}
        for name in ours:
            if name in self._ended:
                by_end[self._ended[name]].append(name)
            elif (why := self._config.stash[_left_out].get(name)) is not None:
                not_asked.setdefault(why, set()).add(_file(name))
        return {
            "passed": len(by_end["passed"]),
            "failed": by_end["failed"],
            "skipped": by_end["skipped"],
            "not_asked": {why: sorted(files) for why, files in sorted(not_asked.items())},
            "files": sorted({_file(name) for name in ours}),
            "seconds": round(sum(self._took.get(name, 0.0) for name in ours), 1),
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of pytest-xdist selected; all of them collect the same."""
        selected = getattr(node, "workeroutput", {}).get(_SELECTED)
        if selected is not None:
            where = {name: (suite, ground) for name, (suite, ground) in selected["where"].items()}
            self._config.stash[_where].update(where)
            self._config.stash[_left_out].update(selected["left_out"])

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            where, left_out = self._config.stash[_where], self._config.stash[_left_out]
            self._config.workeroutput[_SELECTED] = {"where": where, "left_out": left_out}
            return
        target = self._config.getoption("--outcome", None)
        if target is not None:
            places = sorted(set(self._config.stash[_where].values()))
            found = {f"{suite} {ground}": self.found(suite, ground) for suite, ground in places}
            Path(target).write_text(json.dumps(found))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0].rpartition("/")[2]
