"""Settings of the dagger backend: engines by network class, their mode, and contradictions."""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.sandbox.network_limits import NetworkLimits
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkPolicy
from sandkasten_dagger.dagger_options import DaggerOptions, network_refusal
from sandkasten_runtime.assembly.settings.resolver import load

pytestmark = pytest.mark.promise("P114")

NONE = "unix:///run/dagger/none.sock"
EGRESS = "tls://far:8443"


def options(tmp_path, **environ) -> DaggerOptions:
    return load({}, {"HOME": "/h", **environ}, tmp_path).plugins["dagger"]


def refused(tmp_path, **environ) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as error:
        options(tmp_path, SANDKASTEN_BACKEND="dagger", **environ)
    assert error.value.hint
    return error.value


def test_engines_are_named_by_their_network_class(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(
        f"backend: dagger\nbackends:\n  dagger:\n    cli: /opt/dagger\n    engines:\n"
        f"      none: {NONE}\n      egress: {EGRESS}\n"
    )
    section = options(tmp_path)
    assert section.dagger_engines == {"none": NONE, "egress": EGRESS}
    assert section.cli == "/opt/dagger"


def test_without_a_dagger_setting_no_engine_is_known(tmp_path):
    assert options(tmp_path) == DaggerOptions()


@pytest.mark.parametrize(
    ("mode", "address"),
    [
        ("docker_socket", "container+docker://dagger-engine"),
        ("docker_socket", "image+docker://engine:v1"),
        ("sidecar", "tcp://dagger-engine:8080"),
        ("sidecar", NONE),
        ("remote", "ssh://me@far"),
        ("remote", "kube-pod://engine-0?namespace=dagger"),
        ("remote", "tls://far:8443"),
        ("auto", "container://dagger-engine"),
    ],
)
def test_a_mode_of_station_accepts_the_addresses_of_its_place(tmp_path, mode, address):
    variables = {"STATION_SANDBOX_ENGINE_MODE": mode, "SANDKASTEN_DAGGER_ENGINES_NONE": address}
    section = options(tmp_path, SANDKASTEN_BACKEND="dagger", **variables)
    assert (section.mode, section.dagger_engines) == (mode, {"none": address})


@pytest.mark.parametrize(
    ("mode", "address"),
    [
        ("docker_socket", NONE),
        ("docker_socket", "tcp://localhost:8080"),
        ("sidecar", "ssh://far"),
        ("sidecar", "container://dagger-engine"),
        ("remote", NONE),
        ("remote", "image+docker://engine:v1"),
    ],
)
def test_a_mode_that_contradicts_the_address_is_refused(tmp_path, mode, address):
    variables = {"STATION_SANDBOX_ENGINE_MODE": mode, "SANDKASTEN_DAGGER_ENGINES_NONE": address}
    error = refused(tmp_path, **variables)
    assert f"engine_mode is {mode}" in error.message
    assert error.details["setting"] == "backends.dagger"


def test_dagger_as_the_default_backend_requires_an_engine(tmp_path):
    assert "no Dagger Engine is configured" in refused(tmp_path).message


def test_the_docker_socket_alone_means_the_engine_that_the_cli_starts(tmp_path):
    variables = {"SANDKASTEN_BACKEND": "dagger", "STATION_SANDBOX_ENGINE_MODE": "docker_socket"}
    section = options(tmp_path, **variables)
    assert list(section.dagger_engines) == ["egress"]
    assert section.egress.startswith("image+docker://")


def test_the_variable_of_a_sidecar_is_used_by_this_backend_alone(tmp_path):
    variables = {
        "DAGGER_HOST": "tcp://dagger-engine:8080",
        "STATION_SANDBOX_ENGINE_MODE": "sidecar",
    }
    section = options(tmp_path, SANDKASTEN_BACKEND="dagger", **variables)
    assert section.dagger_engines == {"none": "tcp://dagger-engine:8080"}
    assert options(tmp_path, DAGGER_HOST="tcp://far:1").dagger_engines == {}
    assert options(tmp_path, DAGGER_HOST="nonsense").dagger_engines == {}
    assert "nonsense" in refused(tmp_path, DAGGER_HOST="nonsense").message


def test_plain_tcp_to_another_host_requires_insecure(tmp_path):
    far = {"SANDKASTEN_DAGGER_ENGINES_NONE": "tcp://far:8080"}
    assert "plain tcp" in refused(tmp_path, **far).message
    assert options(tmp_path, SANDKASTEN_DAGGER_INSECURE="1", **far).dagger_engines
    near = {"SANDKASTEN_DAGGER_ENGINES_NONE": "tcp://127.0.0.1:8080"}
    assert options(tmp_path, **near).dagger_engines


def test_one_engine_cannot_have_two_network_classes(tmp_path):
    variables = {"SANDKASTEN_DAGGER_ENGINES_NONE": NONE, "SANDKASTEN_DAGGER_ENGINES_EGRESS": NONE}
    assert "same engine" in refused(tmp_path, **variables).message


@pytest.mark.parametrize(
    "address",
    ["/run/engine.sock", "http://far:1", "unix://", "tcp://", "ssh://me:secret@far", "tcp://a b"],
)
def test_an_invalid_engine_address_is_refused(tmp_path, address):
    error = refused(tmp_path, SANDKASTEN_DAGGER_ENGINES_NONE=address)
    assert "secret" not in error.message


def test_a_network_gets_the_engine_of_its_class_or_is_refused():
    both = DaggerOptions(none=NONE, egress=EGRESS)
    full = NetworkPolicy(full=True)
    assert network_refusal(CLOSED, both) is None
    assert network_refusal(full, both) is None
    only_egress = DaggerOptions(egress=EGRESS)
    error = network_refusal(CLOSED, only_egress)
    assert error is not None
    assert "backends.dagger.engines.none" in error.hint
    only_none = DaggerOptions(none=NONE)
    error = network_refusal(full, only_none)
    assert error is not None
    assert "backends.dagger.engines.egress" in error.hint


@pytest.mark.parametrize(
    "policy",
    [
        NetworkPolicy(allow=("example.org",)),
        NetworkPolicy(full=True, deny=("example.org",)),
        NetworkPolicy(full=True, inspect=True),
        NetworkPolicy(full=True, dry_run=True),
        NetworkPolicy(full=True, limits=NetworkLimits(connections=1)),
    ],
)
def test_a_network_by_rule_is_refused(policy):
    both = DaggerOptions(none=NONE, egress=EGRESS)
    assert network_refusal(policy, both) is not None
