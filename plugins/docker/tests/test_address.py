"""Engine addresses: every accepted form, and what must be refused."""

from __future__ import annotations

import pytest

from sandkasten.errors import BackendUnavailable, InvalidConfiguration
from sandkasten_docker import container_network, probe
from sandkasten_docker.docker_engine.docker_address import DockerAddress, Tls, address_of
from sandkasten_docker.docker_engine.docker_client import tls_context
from sandkasten_docker.docker_engine.ssh_tunnel import command
from sandkasten_docker.docker_options import DockerOptions

SECURE = DockerOptions(
    host="tcp://engine.example", tls_ca="/c/ca.pem", tls_cert="/c/cert.pem", tls_key="/c/key.pem"
)


def test_a_socket_path_is_a_valid_address():
    assert address_of(DockerOptions(host="unix:///run/x.sock")) == DockerAddress(
        "unix", "/run/x.sock", "/run/x.sock"
    )


def test_an_engine_over_tls_has_the_default_port():
    address = address_of(SECURE)
    assert (address.kind, address.host, address.port) == ("tcp", "engine.example", 2376)
    assert address.tls == Tls("/c/ca.pem", "/c/cert.pem", "/c/key.pem")


def test_plain_tcp_is_allowed_to_loopback_and_a_sidecar():
    assert address_of(DockerOptions(host="tcp://127.0.0.1:2375")).tls is None
    assert address_of(DockerOptions(host="tcp://[::1]:2375")).host == "::1"
    assert address_of(DockerOptions(host="tcp://engine", mode="sidecar")).port == 2375
    assert address_of(DockerOptions(host="tcp://engine:2375", insecure=True)).port == 2375


def test_plain_tcp_to_any_other_host_is_refused():
    with pytest.raises(InvalidConfiguration, match="without TLS"):
        address_of(DockerOptions(host="tcp://engine.example:2375"))


def test_an_incomplete_set_of_certificates_is_refused():
    with pytest.raises(InvalidConfiguration, match="all three"):
        address_of(DockerOptions(host="tcp://engine.example", tls_ca="/c/ca.pem"))


@pytest.mark.parametrize(
    ("backend", "section"),
    [("docker", "backends.docker"), ("docker/west", "backends.docker.engines.west")],
)
def test_hints_name_the_settings_of_the_engine_that_they_are_about(backend, section):
    for options, setting in (
        (DockerOptions(host="tcp://engine.example:2375"), "host"),
        (DockerOptions(host="tcp://engine.example", tls_ca="/c/ca.pem"), "tls_ca"),
    ):
        with pytest.raises(InvalidConfiguration) as caught:
            address_of(options, backend)
        assert f"{section}." in caught.value.hint
        assert caught.value.details["setting"] == f"{section}.{setting}"
    secure = address_of(SECURE, backend)
    assert secure.tls is not None
    with pytest.raises(InvalidConfiguration) as caught:
        tls_context(secure.tls, secure.section)
    assert caught.value.hint.startswith(f"check {section}.tls_ca")
    plain = address_of(DockerOptions(host="tcp://engine:2375", insecure=True), backend)
    refusals = (
        container_network.inspection_refusal(plain),
        container_network.refusal({}, backend, volumes=False),
    )
    for refused in refusals:
        assert refused is not None
        assert f"{section}." in refused.hint
        assert refused.details["backend"] == backend
    assert probe.docker_mode(plain, "docker_socket").remedy.startswith(f"make {section}.engine_")


def test_an_ssh_address_has_user_port_and_socket():
    address = address_of(DockerOptions(host="ssh://deploy@box:2222/run/user/1000/docker.sock"))
    assert address == DockerAddress(
        "ssh", "ssh://deploy@box:2222", "/run/user/1000/docker.sock", "box", 2222, "deploy"
    )
    words = command(address, "/tmp/s")
    assert words[words.index("--") + 1 :] == ["box", "cat"]
    assert words[words.index("-L") + 1] == "/tmp/s:/run/user/1000/docker.sock"
    assert words[words.index("-p") + 1] == "2222"
    assert words[words.index("-l") + 1] == "deploy"


@pytest.mark.parametrize(
    "host",
    [
        "docker",
        "unix://relative",
        "unix://",
        "tcp://",
        "tcp://host:99999",
        "tcp://host:x",
        "tcp://host/path",
        "tcp://user@host",
        "https://host",
        "ssh://-oProxyCommand=x",
        "ssh://-oX@host",
        "ssh://",
        "npipe:////./pipe/docker",
        "fd://3",
        "tcp://host?x=1",
    ],
)
def test_an_invalid_address_is_refused_by_name(host: str):
    with pytest.raises(InvalidConfiguration) as caught:
        address_of(DockerOptions(host=host))
    assert caught.value.hint


def test_a_password_is_refused_and_not_repeated():
    with pytest.raises(InvalidConfiguration) as caught:
        address_of(DockerOptions(host="ssh://me:hunter2@host"))
    assert "hunter2" not in str(caught.value)


def test_without_address_and_socket_the_error_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "sandkasten_docker.docker_engine.docker_address._SOCKET", str(tmp_path / "none")
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(BackendUnavailable) as caught:
        address_of(DockerOptions())
    assert "DOCKER_HOST" in caught.value.hint
