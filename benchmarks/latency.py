"""How long one thing takes: create, exec, destroy, one-shot; every peer once in every round."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.peers import bare, bwrap, ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers import Peers
    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

SHELL, ARGV = "exec true (shell)", "exec true (argv)"
FIRST = "first exec (starts the shell)"
ONESHOT = "one-shot python"
CLI = "one-shot python (CLI)"


def sessions(samples: Samples, peers: Peers, plan: Plan) -> None:
    lives: list[Callable[[], None]] = [lambda: _ours(samples, plan), lambda: _bare(samples, plan)]
    if peers.docker is not None:
        lives.append(lambda: _docker(samples, peers, plan))
    if peers.runc is not None:
        lives.append(lambda: _runc(samples, peers, plan))
    if peers.bwrap:
        lives.append(lambda: _bwrap(samples))
    _interleaved(lives, plan)


def oneshots(samples: Samples, peers: Peers, plan: Plan) -> None:
    verbs: list[tuple[str, str, Callable[[], None]]] = [
        (ONESHOT, "sandkasten", ours.oneshot),
        (ONESHOT, "bare", bare.oneshot),
        (CLI, "sandkasten", ours.oneshot_cli),
    ]
    if peers.docker is not None:
        verbs.append((ONESHOT, "docker", peers.docker.oneshot))
    if peers.runc is not None:
        verbs.append((ONESHOT, "runc", peers.runc.oneshot))
    if peers.bwrap:
        verbs.append((ONESHOT, "bwrap", bwrap.oneshot))

    def once(operation: str, peer: str, verb: Callable[[], None]) -> None:
        with samples.timed(operation, peer):
            verb()

    for _, _, verb in verbs:
        verb()  # the first of each pays for files that no cache holds yet
    _interleaved([lambda v=v: once(*v) for v in verbs], plan)  # type: ignore[misc]


def _interleaved(turns: list[Callable[[], None]], plan: Plan) -> None:
    """Whoever went first goes last in the next round, so that no one always follows the same."""
    deadline = time.monotonic() + plan.section_s
    for number in range(plan.rounds):
        shift = number % len(turns)
        for turn in turns[shift:] + turns[:shift]:
            turn()
        if time.monotonic() > deadline:
            return


def _ours(samples: Samples, plan: Plan) -> None:
    with samples.timed("create", "sandkasten"):
        box = ours.create()
    try:
        with samples.timed(FIRST, "sandkasten"):
            ours.exec_shell(box)
        for _ in range(plan.execs):
            with samples.timed(SHELL, "sandkasten"):
                ours.exec_shell(box)
            with samples.timed(ARGV, "sandkasten"):
                ours.exec_argv(box)
    finally:
        with samples.timed("destroy", "sandkasten"):
            ours.destroy(box)


def _bare(samples: Samples, plan: Plan) -> None:
    for _ in range(plan.execs):
        with samples.timed(ARGV, "bare"):
            bare.exec_true()


def _docker(samples: Samples, peers: Peers, plan: Plan) -> None:
    assert peers.docker is not None
    with samples.timed("create", "docker"):
        container = peers.docker.create()
    for _ in range(plan.execs):
        began = time.perf_counter()
        peers.docker.exec_true(container)
        took = (time.perf_counter() - began) * 1000
        # It has one way to run a command; both of ours are held against it.
        samples.add(SHELL, "docker", took)
        samples.add(ARGV, "docker", took)
    with samples.timed("destroy", "docker"):
        peers.docker.destroy(container)


def _runc(samples: Samples, peers: Peers, plan: Plan) -> None:
    assert peers.runc is not None
    with samples.timed("create", "runc"):
        name = peers.runc.create()
    for _ in range(plan.execs):
        with samples.timed(ARGV, "runc"):
            peers.runc.exec_true(name)
    with samples.timed("destroy", "runc"):
        peers.runc.destroy(name)


def _bwrap(samples: Samples) -> None:
    with samples.timed("create", "bwrap"):
        box = bwrap.Box.create()
    with samples.timed("destroy", "bwrap"):
        box.destroy()
