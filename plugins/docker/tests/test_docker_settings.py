"""Settings of the docker backend: every spelling, and contradictions refused before the start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.backends.named_backends import NamedBackendRules
from sandkasten.settings.setting_fields import Origin
from sandkasten_docker import docker_options
from sandkasten_docker.docker_options import DockerOptions
from sandkasten_runtime.assembly.settings.resolver import load

FILE = """\
backend: docker
backends:
  docker:
    host: tcp://engine.example:2376
    engine_mode: remote
    workspace_mode: volume
    shared_volume: ours
    tls_ca: /c/ca.pem
    tls_cert: /c/me.pem
    tls_key: /c/me.key
    pull: missing
    timeout_seconds: 2m
"""


@pytest.fixture(autouse=True)
def _on_a_plain_machine(monkeypatch):
    monkeypatch.setattr(docker_options, "_CONTAINER_MARKS", ())


def origin(settings, key: str) -> Origin:
    return next(entry for entry in settings.origins() if entry.name == f"backends.docker.{key}")


def options(tmp_path, **environ: str) -> DockerOptions:
    settings = load({"backend": "docker"}, {"HOME": "/h", **environ}, tmp_path)
    assert settings.plugins["docker"].trouble is None
    return settings.plugins["docker"]


def refused(tmp_path, **environ: str) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as error:
        load({"backend": "docker"}, {"HOME": "/h", **environ}, tmp_path)
    assert error.value.hint
    return error.value


def test_without_settings_the_docker_backend_has_its_defaults(tmp_path):
    settings = load({}, {"HOME": "/h"}, tmp_path)
    assert settings.plugins["docker"] == DockerOptions()
    assert origin(settings, "engine_mode") == Origin(
        "backends.docker.engine_mode", "auto", "default"
    )


def test_every_docker_setting_can_come_from_the_file(tmp_path):
    path = tmp_path / "sandkasten.yaml"
    path.write_text(FILE)
    settings = load({}, {"HOME": "/h"}, tmp_path)
    assert settings.named("backend") == "docker"
    assert settings.plugins["docker"] == DockerOptions(
        host="tcp://engine.example:2376",
        mode="remote",
        workspace="volume",
        shared_volume="ours",
        tls_ca="/c/ca.pem",
        tls_cert="/c/me.pem",
        tls_key="/c/me.key",
        pull="missing",
        timeout_s=120.0,
    )
    assert origin(settings, "host").origin == f"file {path}"


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("SANDKASTEN_DOCKER_HOST", "unix:///r/d.sock", "host", "unix:///r/d.sock"),
        ("DOCKER_HOST", "ssh://me@far", "host", "ssh://me@far"),
        ("SANDKASTEN_DOCKER_ENGINE_MODE", "docker_socket", "mode", "docker_socket"),
        ("STATION_SANDBOX_ENGINE_MODE", "docker_socket", "mode", "docker_socket"),
        ("SANDKASTEN_DOCKER_WORKSPACE_MODE", "shared", "workspace", "shared"),
        ("SANDKASTEN_DOCKER_SHARED_VOLUME", "mine", "shared_volume", "mine"),
        ("SANDKASTEN_DOCKER_PULL", "always", "pull", "always"),
        ("SANDKASTEN_DOCKER_TIMEOUT_SECONDS", "90", "timeout_s", 90.0),
        ("SANDKASTEN_DOCKER_INSECURE", "yes", "insecure", True),
    ],
)
def test_every_environment_spelling_is_understood(tmp_path, variable, text, field, value):
    assert getattr(options(tmp_path, **{variable: text}), field) == value


def test_our_own_variable_overrides_dockers(tmp_path):
    variables = {"SANDKASTEN_DOCKER_HOST": "unix:///ours", "DOCKER_HOST": "unix:///theirs"}
    assert options(tmp_path, **variables).host == "unix:///ours"


def test_the_tls_variables_of_docker_are_read(tmp_path):
    far = {"DOCKER_HOST": "tcp://far:2376"}
    section = options(tmp_path, **far, DOCKER_TLS_VERIFY="1", DOCKER_CERT_PATH="/c")
    assert (section.tls_ca, section.tls_cert, section.tls_key) == (
        "/c/ca.pem",
        "/c/cert.pem",
        "/c/key.pem",
    )
    # As Docker's own client does it.
    assert options(tmp_path, **far, DOCKER_TLS_VERIFY="0").tls_ca == "/h/.docker/ca.pem"
    second = options(tmp_path, **far, DOCKER_CERT_PATH="/c", SANDKASTEN_DOCKER_TLS_CA="/other.pem")
    assert (second.tls_ca, second.tls_key) == ("/other.pem", "/c/key.pem")


def test_tls_variables_are_ignored_for_a_socket(tmp_path):
    section = options(tmp_path, DOCKER_HOST="unix:///d.sock", DOCKER_TLS_VERIFY="1")
    assert (section.tls_ca, section.tls_cert, section.tls_key) == ("", "", "")


@pytest.mark.promise("P60")
@pytest.mark.parametrize(
    ("host", "mode", "word"),
    [
        ("tcp://127.0.0.1:2375", "docker_socket", "docker_socket"),
        ("ssh://far", "docker_socket", "docker_socket"),
        ("unix:///run/docker.sock", "remote", "remote"),
        ("", "remote", "remote"),
        ("unix:///run/docker.sock", "sidecar", "sidecar"),
        ("", "sidecar", "sidecar"),
        ("ssh://far", "sidecar", "sidecar"),
    ],
)
def test_a_mode_that_contradicts_the_address_is_refused(tmp_path, host, mode, word):
    variables = {"SANDKASTEN_DOCKER_HOST": host, "SANDKASTEN_DOCKER_ENGINE_MODE": mode}
    error = refused(tmp_path, **variables)
    assert word in error.message
    assert error.details["setting"] == "backends.docker"


def test_a_daemon_in_a_container_can_share_a_socket_with_its_sidecar(tmp_path):
    variables = {
        "DOCKER_HOST": "unix:///shared/docker.sock",
        "STATION_SANDBOX_ENGINE_MODE": "sidecar",
    }
    assert options(tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1", **variables).mode == "sidecar"


@pytest.mark.promise("P60")
def test_plain_tcp_to_another_host_requires_insecure(tmp_path):
    assert "plain tcp" in refused(tmp_path, DOCKER_HOST="tcp://far:2375").message
    assert options(tmp_path, DOCKER_HOST="tcp://far:2375", SANDKASTEN_DOCKER_INSECURE="1").insecure
    for near in ("tcp://localhost:2375", "tcp://127.0.0.1:2375", "tcp://[::1]:2375"):
        assert options(tmp_path, DOCKER_HOST=near).host == near
    sidecar = {"DOCKER_HOST": "tcp://docker:2375", "STATION_SANDBOX_ENGINE_MODE": "sidecar"}
    assert options(tmp_path, **sidecar).mode == "sidecar"


def test_an_incomplete_certificate_and_an_unnecessary_insecure_are_refused(tmp_path):
    far = {"DOCKER_HOST": "tcp://far:2376"}
    for name in ("TLS_CA", "TLS_CERT", "TLS_KEY"):
        variables = {f"SANDKASTEN_DOCKER_{name}": "/c.pem"}
        assert "require each other" in refused(tmp_path, **far, **variables).message
    both = {"SANDKASTEN_DOCKER_INSECURE": "1", "DOCKER_CERT_PATH": "/c"}
    assert "insecure" in refused(tmp_path, **far, **both).message


@pytest.mark.parametrize(
    "host",
    [
        "npipe:////./pipe/docker_engine",
        "/run/docker.sock",
        "http://far:2375",
        "tcp://far:0",
        "tcp://:2375",
        "tcp://far:2375/path",
        "tcp://far:99999",
        "unix://run/docker.sock",
        "unix://",
        "ssh://",
        "ssh://me:secret@far",
        "tcp://far:1 2",
    ],
)
def test_an_invalid_engine_address_is_refused(tmp_path, host):
    error = refused(tmp_path, SANDKASTEN_DOCKER_HOST=host)
    assert "backends.docker.host" in error.message
    assert "secret" not in error.message


@pytest.mark.promise("P60")
def test_docker_variables_do_not_affect_other_backends(tmp_path):
    settings = load({}, {"HOME": "/h", "DOCKER_HOST": "tcp://far:2375"}, tmp_path)
    assert settings.plugins["docker"].trouble is not None
    assert "plain tcp" in settings.plugins["docker"].trouble.message
    assert origin(settings, "host").origin == "env DOCKER_HOST"
    with pytest.raises(InvalidConfiguration):
        load({}, {"HOME": "/h", "SANDKASTEN_DOCKER_HOST": "tcp://far:2375"}, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "backends: docker\n",
        "backends:\n  docker: unix:///x\n",
        "backends:\n  dokcer:\n    host: unix:///x\n",
        "backends:\n  docker:\n    hots: unix:///x\n",
        "backends:\n  docker:\n    engine_mode: dind\n",
        "backends:\n  docker:\n    shared_volume: a/b\n",
    ],
)
def test_an_invalid_docker_setting_in_the_file_is_refused(tmp_path, text):
    (tmp_path / "sandkasten.yaml").write_text(text)
    with pytest.raises(InvalidConfiguration) as error:
        load({}, {"HOME": "/h"}, tmp_path)
    assert error.value.hint


@pytest.mark.promise("P42")
def test_the_docker_client_is_imported_only_when_docker_is_used(tmp_path):
    """Also not for showing settings, opening an engine or sweeping."""
    program = """
import asyncio, sys
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.assembly.engine_assembly import open_engine

async def main():
    engine = await open_engine(load({"data_dir": sys.argv[1]}, {}))
    await engine.sweep()
    await engine.aclose()

asyncio.run(main())
print([name for name in ("aiodocker", "sandkasten_docker.backend") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


STATION = """sandbox:
  docker_host: "tcp://sandbox-docker-host:2375"
  workspace_base_dir: "/sandboxes"  # Path on REMOTE host
"""


def test_the_keys_of_a_station_configuration_select_the_engine(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(STATION + "backends: {docker: {insecure: true}}\n")
    settings = load({}, {"HOME": "/h"}, tmp_path)
    assert settings.plugins["docker"] == DockerOptions(
        host="tcp://sandbox-docker-host:2375", workspace_dir="/sandboxes", insecure=True
    )
    # Such a file is about Docker only, so it selects the backend too.
    assert settings.named("backend") == "docker"
    where = f"file {tmp_path / 'sandkasten.yaml'}"
    assert origin(settings, "host").origin == f"{where} (sandbox.docker_host)"
    assert load({"backend": "local"}, {"HOME": "/h"}, tmp_path).named("backend") == "local"


def test_a_plain_connection_of_a_station_configuration_is_refused_by_its_name(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(STATION)
    with pytest.raises(InvalidConfiguration) as error:
        load({}, {"HOME": "/h"}, tmp_path)
    assert "sandbox.docker_host" in error.value.message
    assert "plain tcp to sandbox-docker-host is not allowed" in error.value.message
    assert "backends.docker.insecure: true" in error.value.hint


def test_two_names_of_one_setting_must_agree(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(
        "sandbox: {docker_host: 'unix:///a'}\nbackends: {docker: {host: 'unix:///b'}}\n"
    )
    with pytest.raises(InvalidConfiguration, match="sandbox.docker_host and backends.docker.host"):
        load({}, {"HOME": "/h"}, tmp_path)


DOCKER_ENGINES = """\
backend: docker/west
backends:
  docker:
    engines:
      west:
        host: tcp://192.0.2.7:2376
        cert_path: /c
        pull: never
        timeout_seconds: 2m
        labels: {zone: eu, disk: ssd}
        max_sandboxes: 20
      rack-2: {host: "unix:///run/two.sock", workspace_mode: volume}
"""


@pytest.mark.promise("P119")
def test_named_engines_have_the_options_of_the_one_without_a_name(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(DOCKER_ENGINES)
    settings = load({}, {"HOME": "/h", "DOCKER_HOST": "tcp://elsewhere"}, tmp_path)
    assert settings.named("backend") == "docker/west"
    docker_engines = settings.plugins["docker"].docker_engines
    assert {name: named.options for name, named in docker_engines.items()} == {
        "west": DockerOptions(
            host="tcp://192.0.2.7:2376",
            tls_ca="/c/ca.pem",
            tls_cert="/c/cert.pem",
            tls_key="/c/key.pem",
            pull="never",
            timeout_s=120,
        ),
        "rack-2": DockerOptions(host="unix:///run/two.sock", workspace="volume"),
    }
    rules = settings.policy.named_backends
    assert [*rules] == ["docker/west", "docker/rack-2"]
    assert rules["docker/west"] == NamedBackendRules({"zone": "eu", "disk": "ssd"}, 20)
    assert rules["docker/rack-2"] == NamedBackendRules()
    assert origin(settings, "engines").value == [
        "west (tcp://192.0.2.7:2376)",
        "rack-2 (unix:///run/two.sock)",
    ]


@pytest.mark.promise("P119")
@pytest.mark.parametrize(
    ("docker_engines", "message", "hint"),
    [
        ("{", "must be valid JSON", "write west:"),
        ("[]", "must be a mapping of names", "write west:"),
        ('{"West": {"host": "unix:///s"}}', "a mapping of valid names", "write up to 32"),
        ('{"../x": {"host": "unix:///s"}}', "a mapping of valid names", "write up to 32"),
        ('{"west": "unix:///s"}', ".west must be a mapping", "write west:"),
        ('{"west": {}}', ".west requires host", "write unix://"),
        ('{"west": {"hots": "unix:///s"}}', "has an unknown key 'hots'", "did you mean host?"),
        ('{"west": {"host": "tcp://192.0.2.7"}}', "engines.west: plain tcp", "use TLS"),
        ('{"west": {"host": "ftp://x"}}', "engines.west.host must be the address", "write unix"),
        ('{"west": {"host": "unix:///s", "labels": {"zone": true}}}', "west.labels.zone", "quotes"),
        ('{"west": {"host": "unix:///s", "labels": {"a=b": "c"}}}', "west.labels must", "quotes"),
        ('{"west": {"host": "unix:///s", "max_sandboxes": 0}}', "west.max_sandboxes", ""),
    ],
)
def test_a_malformed_engine_is_refused_with_its_place(tmp_path, docker_engines, message, hint):
    error = refused(tmp_path, SANDKASTEN_DOCKER_ENGINES=docker_engines)
    assert message in error.message
    assert hint in error.hint


@pytest.mark.promise("P119")
def test_a_default_engine_that_is_not_in_the_settings_is_refused(tmp_path):
    docker_engines = '{"west": {"host": "unix:///s"}}'
    for backend, hint in (
        ("docker/wets", "did you mean docker/west?"),
        ("docker/zone=eu", "backends.docker.engines"),
    ):
        environ = {"HOME": "/h", "SANDKASTEN_DOCKER_ENGINES": docker_engines}
        with pytest.raises(InvalidConfiguration) as error:
            load({"backend": backend}, environ, tmp_path)
        assert hint in error.value.hint
