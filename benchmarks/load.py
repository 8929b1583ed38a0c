"""How much gets done in a second, by one caller and by eight at once."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from benchmarks.peers import bwrap, ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers import Peers
    from benchmarks.plan import Plan

Rates = dict[str, dict[str, float]]
"""Per second, by what was done and by whom."""

CALLERS = (1, 8)


def measure(peers: Peers, plan: Plan) -> Rates:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for callers in CALLERS:
        for _ in range(plan.slices):
            for peer, cycle in _cycles(peers).items():
                label = f"create+exec+destroy, {callers} at once"
                found[label][peer].append(_drive(cycle, callers, plan.slice_s))
            for peer, (begin, step, end) in _lives(peers).items():
                label = f"exec in live sessions, {callers} at once"
                rate = _drive_live(begin, step, end, callers, plan.slice_s)
                found[label][peer].append(rate)
    return {
        label: {peer: sum(rates) / len(rates) for peer, rates in by_peer.items()}
        for label, by_peer in found.items()
    }


def _cycles(peers: Peers) -> dict[str, Callable[[], None]]:
    cycles: dict[str, Callable[[], None]] = {}

    def sandkasten() -> None:
        box = ours.create()
        try:
            ours.exec_argv(box)
        finally:
            ours.destroy(box)

    cycles["sandkasten"] = sandkasten
    if peers.docker is not None:
        docker = peers.docker

        def with_docker() -> None:
            container = docker.create()
            docker.exec_true(container)
            docker.destroy(container)

        cycles["docker"] = with_docker
    if peers.runc is not None:
        runc = peers.runc

        def with_runc() -> None:
            name = runc.create()
            runc.exec_true(name)
            runc.destroy(name)

        cycles["runc"] = with_runc
    if peers.bwrap:

        def with_bwrap() -> None:
            bwrap.Box.create().destroy()

        cycles["bwrap (no exec)"] = with_bwrap
    return cycles


Life = tuple["Callable[[], Any]", "Callable[[Any], None]", "Callable[[Any], None]"]


def _lives(peers: Peers) -> dict[str, Life]:
    lives: dict[str, Life] = {"sandkasten": (ours.create, ours.exec_shell, ours.destroy)}
    if peers.docker is not None:
        lives["docker"] = (peers.docker.create, peers.docker.exec_true, peers.docker.destroy)
    if peers.runc is not None:
        lives["runc"] = (peers.runc.create, peers.runc.exec_true, peers.runc.destroy)
    return lives


def _drive_live(
    begin: Callable[[], Any],
    step: Callable[[Any], None],
    end: Callable[[Any], None],
    callers: int,
    seconds: float,
) -> float:
    sessions: list[Any] = []
    try:
        for _ in range(callers):
            sessions.append(begin())
            step(sessions[-1])
        free = list(sessions)
        return _drive(lambda: None, callers, seconds, lambda: _bound(step, free.pop()))
    finally:
        for session in sessions:
            end(session)


def _bound(step: Callable[[Any], None], session: Any) -> Callable[[], None]:
    return lambda: step(session)


def _drive(
    work: Callable[[], None],
    callers: int,
    seconds: float,
    each: Callable[[], Callable[[], None]] | None = None,
) -> float:
    """Work done per second. What is under way at the end is finished and counted in full."""
    counts = [0] * callers
    errors: list[BaseException] = []
    works = [each() if each else work for _ in range(callers)]
    began = time.monotonic()
    until = began + seconds

    def loop(number: int) -> None:
        try:
            while time.monotonic() < until:
                works[number]()
                counts[number] += 1
        except BaseException as exc:  # noqa: BLE001  (handed to the caller below)
            errors.append(exc)

    threads = [threading.Thread(target=loop, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts) / (time.monotonic() - began)
