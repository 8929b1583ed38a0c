"""GPUs in a request: spellings, the operator's maximum, and backends."""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidRequest, PolicyDenied, UnsupportedByBackend
from sandkasten.model.field_patterns import GPUS, form
from sandkasten.model.request_spellings import sandbox_options
from sandkasten.model.sandbox.gpus import (
    ALL,
    GpuRequest,
    check_gpus,
    check_gpus_on,
    parse_gpus,
    requested_gpus,
    without_gpus,
)
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_runtime.backends.backend_catalog import capabilities_of


@pytest.mark.parametrize(
    ("value", "request_", "text"),
    [
        (2, GpuRequest(2), "2"),
        ("2", GpuRequest(2), "2"),
        ("all", GpuRequest(ALL), "all"),
        ("GPU-3a", GpuRequest(ids=("GPU-3a",)), "GPU-3a"),
        (["0", "1", "0"], GpuRequest(ids=("0", "1")), "0,1"),
        (("nvidia.com/gpu=0",), GpuRequest(ids=("nvidia.com/gpu=0",)), "nvidia.com/gpu=0"),
    ],
)
def test_a_number_all_and_ids_are_understood(value, request_, text):
    assert parse_gpus(value) == request_
    assert str(request_) == text


@pytest.mark.parametrize(
    "value",
    [
        -1,
        65,
        "65",
        "01",
        "0000000001",
        "\u0661",
        True,
        1.5,
        "",
        "--privileged",
        [],
        ["a b"],
        [1],
        {"count": 1},
        ["x" * 200],
    ],
)
def test_an_invalid_request_is_refused_and_says_what_to_give(value):
    with pytest.raises(InvalidRequest) as refused:
        parse_gpus(value)
    assert "a number" in refused.value.hint
    if isinstance(value, str):
        assert not form(GPUS).match(value)


def test_a_device_that_is_not_a_gpu_is_refused():
    with pytest.raises(InvalidRequest, match="not a GPU") as refused:
        parse_gpus(["nvidia.com/gpu=0", "vendor.example/net=0"])
    assert "nvidia.com/gpu=0" in refused.value.hint


def test_none_and_zero_ask_for_nothing():
    assert parse_gpus(None) is None
    assert parse_gpus(0) is None


def test_limits_may_say_the_number_and_must_not_contradict():
    options = sandbox_options({"limits": {"gpus": 1, "memory_mb": 64}})
    assert requested_gpus(options) == GpuRequest(1)
    assert without_gpus(options.limits) == {"memory_mb": 64}
    assert requested_gpus(SandboxOptions(gpus="1", limits={"gpus": 1})) == GpuRequest(1)
    with pytest.raises(InvalidRequest, match="contradict"):
        requested_gpus(SandboxOptions(gpus="all", limits={"gpus": 1}))
    assert sandbox_options({"gpus": ["0"]}).gpus == ("0",)


@pytest.mark.parametrize(
    ("request_", "allowed", "fine"),
    [
        (GpuRequest(1), 0, False),
        (GpuRequest(2), 2, True),
        (GpuRequest(3), 2, False),
        (GpuRequest(ids=("a", "b", "c")), 2, False),
        (GpuRequest(ids=("a",)), 1, True),
        (GpuRequest(ALL), 64, False),
        (GpuRequest(ALL), ALL, True),
        (GpuRequest(ids=("all",)), 1, False),
        (GpuRequest(ids=("nvidia.com/gpu=all",)), 1, False),
        (GpuRequest(ids=("nvidia.com/gpu=all",)), ALL, True),
    ],
)
def test_the_operators_setting_wins(request_, allowed, fine):
    if fine:
        check_gpus(request_, allowed)
        return
    with pytest.raises(PolicyDenied) as refused:
        check_gpus(request_, allowed)
    assert refused.value.details["rule"] == "policy.gpus"


def test_a_backend_without_gpus_is_named():
    for backend in ("local", "gvisor", "unisolated"):
        with pytest.raises(UnsupportedByBackend, match=f"backend {backend}"):
            check_gpus_on(backend, capabilities_of(backend))
    check_gpus_on("docker", capabilities_of("docker"))
    check_gpus_on("oci", capabilities_of("oci"))
