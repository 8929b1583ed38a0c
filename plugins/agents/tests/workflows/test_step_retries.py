"""Which failures of a step are tried again, how often, and after what wait."""

from __future__ import annotations

import pytest

from sandkasten.errors import (
    Cancelled,
    CommandTimeout,
    InvalidRequest,
    ModelUnavailable,
    PolicyDenied,
    RunFailed,
    SessionNotFound,
)
from sandkasten_agents.workflows.step_retries import MOST_WAIT_S, Retry, wait_before_retry

UNAVAILABLE = ModelUnavailable("no answer")
INNER_TIMEOUT = RunFailed("an inner step failed", cause="COMMAND_TIMEOUT")


def waits(retry, error=UNAVAILABLE):
    """Return the waits after the first failures, until the step gives up."""
    waited_s: list[float] = []
    while (wait_s := wait_before_retry(retry, len(waited_s) + 1, error)) is not None:
        waited_s.append(wait_s)
    return waited_s


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (Retry(), []),
        (Retry(attempts=3), [0.0, 0.0]),
        (Retry(attempts=5, backoff_s=2.0), [2.0, 4.0, 8.0, 16.0]),
        (Retry(attempts=4, backoff_s=2.0, grows=False), [2.0, 2.0, 2.0]),
        (Retry(attempts=5, backoff_s=100.0), [100.0, 200.0, MOST_WAIT_S, MOST_WAIT_S]),
        (Retry(attempts=2, backoff_s=1000.0, grows=False), [MOST_WAIT_S]),
    ],
)
def test_waits_grow_up_to_a_maximum_and_end_with_the_attempts(retry, expected):
    assert waits(retry) == expected


@pytest.mark.parametrize(
    ("error", "codes", "expected"),
    [
        # Without codes: what another attempt might not have.
        (UNAVAILABLE, (), True),
        (CommandTimeout("too slow"), (), True),
        (INNER_TIMEOUT, (), True),
        (PolicyDenied("not allowed"), (), False),
        (InvalidRequest("not valid"), (), False),
        (SessionNotFound("gone"), (), False),
        (Cancelled("ended"), (), False),
        # With codes: only those, whatever they are.
        (UNAVAILABLE, ("BUSY",), False),
        (UNAVAILABLE, ("BUSY", "MODEL_UNAVAILABLE"), True),
        (PolicyDenied("not allowed"), ("FORBIDDEN",), True),
        (Cancelled("ended"), ("*",), True),
        # A block has its own code and that of the step inside.
        (INNER_TIMEOUT, ("COMMAND_TIMEOUT",), True),
        (INNER_TIMEOUT, ("RUN_FAILED",), True),
        (INNER_TIMEOUT, ("BUSY",), False),
        # `timeout` is another name of one code.
        (CommandTimeout("too slow"), ("Timeout",), True),
        (INNER_TIMEOUT, ("timeout",), True),
        (UNAVAILABLE, ("timeout",), False),
    ],
)
def test_the_failures_that_are_tried_again(error, codes, expected):
    assert (waits(Retry(attempts=2, retry_on=codes), error) == [0.0]) is expected
