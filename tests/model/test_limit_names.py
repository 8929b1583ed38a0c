"""The public names of limits: units, spellings, bounds and ceilings."""

from __future__ import annotations

import math

import pytest

from sandkasten.errors import InvalidRequest, PolicyDenied
from sandkasten.model.sandbox.limit_names import parse_limits, public_limits
from sandkasten.model.sandbox.limits import MIB, Limits


def test_every_spelling_of_a_limit_sets_the_same_number():
    assert parse_limits({"cpu_millicores": 500, "memory_mb": 256}, Limits()) == parse_limits(
        {"cpu_limit": 0.5, "mem_limit_mb": 256}, Limits()
    )


def test_public_limits_equal_the_request():
    asked = {
        "cpu_limit": 0.5,
        "mem_limit_mb": 64,
        "pids_limit": 32,
        "workspace_mb": 10,
        "tmp_mb": 5,
        "max_open_files": 128,
        "exec_timeout_seconds": 7.0,
        "max_exec_timeout_seconds": 60.0,
        "max_stdout_bytes": 1000,
        "max_stderr_bytes": 0,
        "max_artifact_bytes": 5,
        "max_artifacts_count": 3,
        "max_file_size_bytes": 6,
        "max_files": 7,
    }
    assert public_limits(parse_limits(asked, Limits())) == asked


def test_an_unknown_limit_is_refused_with_the_nearest_spelling():
    with pytest.raises(InvalidRequest) as refused:
        parse_limits({"mem_limit": 256}, Limits())
    assert refused.value.hint == "did you mean mem_limit_mb?"


@pytest.mark.parametrize("value", [True, -1, 0, math.nan, math.inf, "256", None, 2**80, 10**400])
def test_a_limit_that_is_not_a_valid_number_is_refused(value):
    with pytest.raises(InvalidRequest) as refused:
        parse_limits({"mem_limit_mb": value}, Limits())
    assert "mem_limit_mb" in refused.value.message


def test_a_fraction_of_a_process_is_refused_and_a_fraction_of_a_cpu_is_not():
    with pytest.raises(InvalidRequest):
        parse_limits({"pids_limit": 10.5}, Limits())
    assert parse_limits({"cpu_limit": 0.25}, Limits()).cpus == 0.25


def test_two_spellings_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidRequest) as refused:
        parse_limits({"mem_limit_mb": 64, "memory_mb": 128}, Limits())
    assert "contradict" in refused.value.message
    same = parse_limits({"mem_limit_mb": 64, "memory_mb": 64}, Limits())
    assert same.memory_bytes == 64 * MIB


def test_a_request_lowers_the_longest_timeout_and_never_raises_it():
    assert parse_limits({"max_exec_timeout_seconds": 60}, Limits()).exec_timeout_s == 60
    with pytest.raises(InvalidRequest) as refused:
        parse_limits({"max_exec_timeout_seconds": 3601}, Limits())
    assert "max_exec_timeout_seconds must be at most 3600" in refused.value.message
    with pytest.raises(InvalidRequest) as refused:
        parse_limits({"exec_timeout_seconds": 3601}, Limits())
    assert "exec_timeout_seconds must be at most 3600" in refused.value.message


@pytest.mark.promise("P27")
def test_a_request_over_the_maximum_is_denied_and_names_the_setting():
    ceiling = {"mem_limit_mb": 1024}
    for name in ("mem_limit_mb", "memory_mb"):
        with pytest.raises(PolicyDenied) as caught:
            parse_limits({name: 1025}, Limits(), ceiling)
        assert caught.value.message == f"{name} is more than policy.max.mem_limit_mb (1024) allows"
        assert caught.value.details["rule"] == "policy.max.mem_limit_mb"
    assert parse_limits({"memory_mb": 1024}, Limits(), ceiling).memory_bytes == 1024 * MIB
    assert parse_limits({"cpu_limit": 64}, Limits(), ceiling).cpus == 64


def test_a_bound_is_formatted_readably():
    with pytest.raises(InvalidRequest) as caught:
        parse_limits({"memory_mb": 9_999_999}, Limits())
    assert caught.value.message == "memory_mb must be from 16 to 1048576, got 9999999"
