"""Back-off with jitter, and what a server asks for by Retry-After."""

from __future__ import annotations

import math

import pytest

from sandkasten.model.retries import Backoff, retry_after_s


def test_pause_doubles_up_to_its_bound():
    backoff = Backoff(first_s=0.5, max_s=3.0)
    assert [backoff.pause_s(failures, lambda: 1.0) for failures in (1, 2, 3, 4, 5)] == [
        0.5,
        1.0,
        2.0,
        3.0,
        3.0,
    ]


def test_half_of_a_pause_is_random():
    backoff = Backoff(first_s=1.0, max_s=1.0)
    assert backoff.pause_s(1, lambda: 0.0) == 0.5
    assert backoff.pause_s(1, lambda: 0.5) == 0.75
    assert 0.5 <= backoff.pause_s(1) <= 1.0


def test_any_number_of_failures_has_a_pause():
    assert Backoff(first_s=0.1, max_s=10.0).pause_s(1_000_000, lambda: 1.0) == 10.0
    assert math.isfinite(Backoff(first_s=0.1, max_s=math.inf).pause_s(1_000_000))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After-Ms": "250", "Retry-After": "9"}, 0.25),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:00 GMT"}, 50.0),
        ({"Retry-After": "soon"}, 0.0),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "9" * 400}, 0.0),
    ],
)
def test_the_retry_delay_is_read_in_every_format(headers, seconds):
    assert retry_after_s(headers, 10.0) == seconds
