"""Variables of the environment: those of Station, and those that name nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sandkasten.client.server import embedded
from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.errors import InvalidConfiguration
from sandkasten_runtime.assembly.settings.resolver import load


def loaded(tmp_path, **environ):
    return load({}, environ, tmp_path)


# As Station's documents write them, and what each sets here.
STATION = [
    ("STATION_SANDBOX_ENABLED", "true", lambda s: s.policy.enabled, True),
    ("STATION_SANDBOX_ENABLED", "false", lambda s: s.policy.enabled, False),
    ("STATION_SANDBOX_CODE_MODE_ENABLED", "true", lambda s: s.policy.code_mode, True),
    ("STATION_SANDBOX_CODE_MODE_ENABLED", "false", lambda s: s.policy.code_mode, False),
    ("STATION_SANDBOX_ENGINE_MODE", "sidecar", lambda s: s.plugins["docker"].mode, "sidecar"),
    (
        "STATION_SANDBOX_ALLOWED_IMAGES",
        "python:3.11-slim,node:20-slim,ubuntu:22.04",
        lambda s: s.named("allowed_images"),
        ("python:3.11-slim", "node:20-slim", "ubuntu:22.04"),
    ),
    (
        "STATION_SANDBOX_DEFAULT_TIMEOUT_SECONDS",
        "90",
        lambda s: s.policy.limits.exec_timeout_s,
        90,
    ),
    ("STATION_SANDBOX_MAX_STDOUT_BYTES", "1000", lambda s: s.policy.limits.stdout_bytes, 1000),
    ("STATION_SANDBOX_MAX_STDERR_BYTES", "1000", lambda s: s.policy.limits.stderr_bytes, 1000),
    ("STATION_SANDBOX_MAX_ARTIFACT_BYTES", "1000", lambda s: s.policy.limits.artifact_bytes, 1000),
    ("STATION_SANDBOX_ALLOW_NETWORK_DEFAULT", "false", lambda s: s.policy.network_default, False),
    ("STATION_SANDBOX_ALLOW_NETWORK_DEFAULT", "true", lambda s: s.policy.network_default, True),
    ("SANDKASTEN_DEFAULTS_NETWORK_MODE", "full", lambda s: s.policy.network_default, True),
    ("STATION_SANDBOX_DIR", "/srv/boxes", lambda s: s.data_dir, Path("/srv/boxes")),
    ("SANDBOX_SESSION_IDLE_TIMEOUT", "30m", lambda s: s.policy.idle_timeout_s, 1800),
    ("SANDBOX_SESSION_MAX_LIFETIME", "4h", lambda s: s.policy.lifetime_s, 14400),
    (
        "DOCKER_HOST",
        "unix:///var/run/docker.sock",
        lambda s: s.plugins["docker"].host,
        "unix:///var/run/docker.sock",
    ),
]


@pytest.mark.parametrize(
    ("name", "value", "effect", "expected"), STATION, ids=[f"{one[0]}={one[1]}" for one in STATION]
)
def test_a_variable_of_station_has_its_effect(tmp_path, name, value, effect, expected):
    settings = loaded(tmp_path, **{name: value})
    assert effect(settings) == expected
    assert settings.warnings == ()


def test_a_network_by_default_is_none_or_full(tmp_path):
    with pytest.raises(InvalidConfiguration) as refused:
        loaded(tmp_path, STATION_SANDBOX_ALLOW_NETWORK_DEFAULT="maybe")
    assert refused.value.message == (
        "STATION_SANDBOX_ALLOW_NETWORK_DEFAULT must be none or full (also false or true), "
        "got 'maybe'"
    )
    assert refused.value.details["setting"] == "STATION_SANDBOX_ALLOW_NETWORK_DEFAULT"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SANDKASTEN_LISTNE", "; did you mean SANDKASTEN_LISTEN?"),
        ("SANDKASTEN_ULR", "; did you mean SANDKASTEN_URL?"),
        ("STATION_SANDBOX_ENABLE", "; did you mean STATION_SANDBOX_ENABLED?"),
        ("STATION_SANDBOX_MAX_STDOUT", "; did you mean STATION_SANDBOX_MAX_STDOUT_BYTES?"),
        ("SANDKASTEN_QQQQ", "; sandkasten config show lists the settings"),
        ("SANDKASTEN_TEST_X", "; sandkasten config show lists the settings"),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_one(tmp_path, name, told):
    settings = loaded(tmp_path, **{name: "x"})
    assert settings.warnings == (f"the environment variable {name} has no effect{told}",)


@pytest.mark.parametrize(
    "name",
    [
        "SANDKASTEN_URL",
        "SANDKASTEN_TENANT",
        # Of the compose files, and of a service with our name in Kubernetes.
        "SANDKASTEN_IMAGE",
        "SANDKASTEN_SERVICE_HOST",
        "SANDKASTEN_PORT_8080_TCP_ADDR",
        "STATION_NAME",
        "TEST_SANDKASTEN_LONG",
    ],
)
def test_a_variable_of_another_purpose_is_not_reported(tmp_path, name):
    assert loaded(tmp_path, **{name: "x"}).warnings == ()


def test_an_empty_variable_is_not_set(tmp_path):
    assert loaded(tmp_path, SANDKASTEN_LISTNE="").warnings == ()


def test_a_program_is_warned_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SANDKASTEN_LISTNE", "x")
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            embedded.settings(ServerAddress(str(tmp_path)))
    assert [one.getMessage() for one in caplog.records] == [
        "the environment variable SANDKASTEN_LISTNE has no effect; did you mean SANDKASTEN_LISTEN?"
    ]
