"""The settings of the source documents, read as written: files, and environment variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandkasten.errors import InvalidConfiguration, PolicyDenied
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.daemon.settings.http_settings import HttpSettings
from tests.seeds.documents import Block, block, run_as

# An engine that is reached without TLS is refused unless the operator says so.
PLAIN_TCP = {"SANDKASTEN_DOCKER_INSECURE": "true"}
CHOICES = re.compile(r"^(STATION_SANDBOX_ENGINE_MODE)=(\S+\|\S+)$", re.MULTILINE)


def variables(source: Block) -> list[dict[str, str]]:
    """Return the variables; a value that lists choices is one environment for each."""
    choices = CHOICES.search(source.text)
    values = choices[2].split("|") if choices else [""]
    found = []
    for value in values:
        lines = [one for one in source.text.splitlines() if "=" in one and one[0] != "#"]
        given = dict(one.split("=", 1) for one in lines)
        given |= {choices[1]: value} if choices else {}
        # A remote engine has an address; the document says so in its text.
        given |= {"DOCKER_HOST": "ssh://user@engine"} if value == "remote" else {}
        found.append(given)
    return found


@pytest.mark.parametrize("source", run_as("environment"), ids=lambda one: one.id)
def test_every_variable_is_known_and_has_its_value(tmp_path, source):
    for environ in variables(source):
        settings = load({}, environ, tmp_path)
        assert settings.warnings == ()
        origins = {one.origin for one in settings.origins()}
        assert {name for name in environ if f"env {name}" not in origins} == set()


def test_the_variables_of_compute_mode_have_the_values_of_the_document(tmp_path):
    modes = []
    for environ in variables(block("000-9")):
        settings = load({}, environ, tmp_path)
        limits = settings.policy.limits
        modes.append(settings.plugins["docker"].mode)
        assert settings.policy.enabled is True
        assert settings.named("allowed_images") == (
            "python:3.11-slim",
            "node:20-slim",
            "ubuntu:22.04",
        )
        assert (limits.exec_timeout_s, limits.stdout_bytes, limits.stderr_bytes) == (
            120,
            200_000,
            200_000,
        )
        assert limits.artifact_bytes == 10_000_000
        assert settings.policy.allow_network is False
    assert modes == ["docker_socket", "sidecar", "remote"]


def test_the_variables_of_code_mode_have_the_values_of_the_document(tmp_path):
    [environ] = variables(block("003-13"))
    settings = load({}, environ, tmp_path)
    assert settings.policy.code_mode is True
    assert settings.plugins["docker"].host == "unix:///var/run/docker.sock"
    assert (settings.policy.idle_timeout_s, settings.policy.lifetime_s) == (1800, 14_400)


@pytest.mark.parametrize("source", run_as("settings"), ids=lambda one: one.id)
def test_a_settings_file_is_read_without_a_warning(tmp_path, source):
    (tmp_path / "sandkasten.yaml").write_text(source.text)
    settings = load({}, PLAIN_TCP, tmp_path)
    assert settings.warnings == ()
    read = {one.name for one in settings.origins() if one.origin.startswith("file ")}
    assert len(read) >= len(_names(yaml.safe_load(source.text)))


def _names(value: Any, prefix: str = "") -> list[str]:
    if not isinstance(value, dict):
        return [prefix]
    return [one for key, inner in value.items() for one in _names(inner, f"{prefix}.{key}")]


def test_the_settings_of_the_plan_have_their_values(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(block("004-5").text)
    settings = load({}, {}, tmp_path)
    limits = settings.policy.limits
    images = tuple(f"sandbox-runtime:{one}" for one in ("base", "python", "node"))
    http = settings.of(HttpSettings)
    assert (str(http.listen), http.api_key) == ("127.0.0.1:8080", "sk-sandbox-...")
    assert http.db_file == Path.cwd() / "sandkasten.db"
    assert (settings.policy.default_image, settings.named("allowed_images")) == (images[0], images)
    assert settings.policy.ttl_s == 1800
    assert (limits.cpus, limits.memory_bytes, limits.pids) == (1.0, 512 << 20, 256)
    assert limits.max_exec_timeout_s == 120


async def test_the_settings_of_the_plan_create_sandboxes(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(block("004-5").text)
    environ = {"SANDKASTEN_IMAGES_PULL": "never"}
    settings = load({"data_dir": str(tmp_path / "data")}, environ, tmp_path)
    prepare_data_dir(settings.data_dir)
    engine = await open_engine(settings)
    try:
        for image in (None, *(settings.named("allowed_images") or ())):
            info = await engine.create(CreateRequest(SandboxOptions(image=image)))
            assert (info.image, info.network) == ("host", "none")
            said = () if image is None else (f"image {image} resolved to the host image",)
            assert info.warnings == said
            assert (await engine.exec(info.id, ExecRequest("echo here"))).stdout == b"here\n"
            await engine.destroy(info.id)
        for image in ("host", "python:3.11-slim"):
            with pytest.raises(PolicyDenied):
                await engine.create(CreateRequest(SandboxOptions(image=image)))
    finally:
        await engine.aclose()


def test_the_docker_engine_of_the_containerized_sandbox_is_used(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(block("001-7").text)
    with pytest.raises(InvalidConfiguration, match="plain tcp to sandbox-docker-host"):
        load({}, {}, tmp_path)
    settings = load({}, PLAIN_TCP, tmp_path)
    assert settings.named("backend") == "docker"
    assert settings.plugins["docker"].workspace_dir == "/sandboxes"
    assert settings.plugins["docker"].host == "tcp://sandbox-docker-host:2375"
