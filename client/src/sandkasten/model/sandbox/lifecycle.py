"""The states of a sandbox and the transitions between them."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    """Its processes are stopped until it is resumed or destroyed."""
    DESTROYING = "destroying"
    LOST = "lost"


_MOVES: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.DESTROYING, State.LOST}),
    State.RUNNING: frozenset({State.PAUSED, State.DESTROYING, State.LOST}),
    State.PAUSED: frozenset({State.RUNNING, State.DESTROYING, State.LOST}),
    State.LOST: frozenset({State.DESTROYING}),
    State.DESTROYING: frozenset(),
}


def may_move(now: State, then: State) -> bool:
    """Return whether a transition is allowed. A destroyed sandbox has no state: its row is gone."""
    return then in _MOVES[now]


def is_there(state: State) -> bool:
    """Return whether a sandbox in this state has a cell and may be used."""
    return state in (State.RUNNING, State.PAUSED)
