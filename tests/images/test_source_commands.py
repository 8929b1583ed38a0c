"""Pulling and building through the SDK, the command line and the settings."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

import sandkasten
from sandkasten.errors import (
    InvalidConfiguration,
    InvalidImage,
    RegistryUnavailable,
    Unauthorized,
)
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten_runtime.assembly.settings import resolver
from sandkasten_runtime.backends.local.backend import LocalBackend
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.image_config import ImageConfig
from sandkasten_runtime.images.image_sources import Sources
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_runtime.images.registry.registry_credentials import Access
from sandkasten_runtime.images.registry.registry_http import Patience
from sandkasten_server.cli.main import main
from tests.cli.terminal import Person
from tests.images import registries
from tests.images.registries import PASSWORD, USER, Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MADE = registries.image(registries.layer({"hello": b"hi\n"}), architecture=registries.HERE)


@pytest.fixture(scope="module")
def plain_registry(tmp_path_factory) -> Iterator[Running]:
    with registries.docker_registry(tmp_path_factory.mktemp("plain")) as running:
        registries.push(running.base, "team/app", "1", MADE)
        yield running


@pytest.fixture(scope="module")
def login_registry(tmp_path_factory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("closed")
    (folder / "htpasswd").write_text(registries.HTPASSWD)
    auth = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    with registries.docker_registry(folder, auth=auth) as running:
        login = Access(username=USER, password=PASSWORD).basic() or ""
        registries.push(running.base, "team/app", "1", MADE, headers={"Authorization": login})
        yield running


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path) -> Path:
    """A new data directory, without a docker configuration."""
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("SANDKASTEN_BACKEND", "local")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "DOCKER_AUTH_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def cli(capfd, *words: str) -> tuple[int, str, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capfd.readouterr()
    return int(ended.value.code or 0), out, err


# ---- settings ----------------------------------------------------------------------------------


@pytest.mark.promise("P51")
def test_a_registry_is_configured_in_the_file_and_its_secrets_are_never_shown(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(
        "images:\n"
        "  pull: missing\n"
        "  pull_timeout_seconds: 10m\n"
        "  registries:\n"
        "    h.example:5000:\n"
        "      username: ada\n"
        "      password: s3same\n"
        "      ca_file: /etc/ca.pem\n"
        "    other:\n"
        "      insecure: true\n"
    )
    found = resolver.load({}, {}, tmp_path)
    assert found.named("images.registries") == {
        "h.example:5000": Access(username="ada", password="s3same", ca_file="/etc/ca.pem"),
        "other": Access(insecure=True),
    }
    assert found.named("images.pull") == "missing"
    assert found.named("images.pull_timeout_seconds") == 600.0
    shown = {one.name: one.value for one in found.origins()}["images.registries"]
    assert shown == ["h.example:5000 (ca_file, password, username)", "other (insecure)"]
    assert "s3same" not in repr(found)


def test_registries_can_be_configured_as_json_in_the_environment():
    said = json.dumps({"h": {"token": "t0ken"}})
    found = resolver.load({}, {"SANDKASTEN_IMAGES_REGISTRIES": said, "HOME": "/h"})
    assert found.named("images.registries") == {"h": Access(token="t0ken")}


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        "{",
        '{"h": 1}',
        '{"H": {}}',
        '{"-x": {}}',
        '{"h/p": {}}',
        '{"h": {"pasword": "s3same"}}',
        '{"h": {"password": "s3same"}}',
        '{"h": {"username": "u"}}',
        '{"h": {"username": "u", "password": "s3same", "token": "s3same"}}',
        '{"h": {"username": "u", "password": ["s3same"]}}',
        '{"h": {"token": "s3same\\n"}}',
        '{"h": {"insecure": "yes"}}',
    ],
)
def test_a_malformed_registry_setting_is_refused_without_showing_it(value):
    with pytest.raises(InvalidConfiguration) as refused:
        resolver.load({}, {"SANDKASTEN_IMAGES_REGISTRIES": value, "HOME": "/h"})
    assert "s3same" not in str(refused.value)


# ---- when a sandbox asks for an image ----------------------------------------------------------


def catalog(place: Path, pull: Any, **more) -> Images:
    store = LayerStore(place / "data" / "images")
    return Images(store, pull=pull, sources=Sources(store), usr=place / "usr", **more)


@pytest.mark.promise("P50")
async def test_a_missing_image_is_pulled_only_where_that_is_allowed(place, plain_registry):
    name = f"{plain_registry.host}/team/app:1"
    with pytest.raises(InvalidImage) as refused:
        await catalog(place, "never").resolve(name)
    assert "is not in the store" in refused.value.message
    found = await catalog(place, "missing").resolve(name)
    assert (found.kind, found.name) == ("layers", name)
    assert (await catalog(place, "never").resolve(name)).id == found.id


async def test_a_stored_image_is_checked_again_only_with_pull_always(place, plain_registry):
    with registries.front(plain_registry) as before:
        name = f"{before.host}/team/app:1"
        await catalog(place, "missing").resolve(name)
        before.seen.clear()
        await catalog(place, "missing").resolve(name)
        assert before.seen == []
        await catalog(place, "always").resolve(name)
        assert len(before.paths("/manifests/")) == 1


async def test_an_image_id_is_never_requested_from_a_registry(place, plain_registry):
    name = f"{plain_registry.host}/team/app:1"
    found = await catalog(place, "missing").resolve(name)
    assert (await catalog(place, "always").resolve(found.id)).id == found.id


async def test_an_alias_that_cannot_be_pulled_falls_back_to_the_host_image(place, plain_registry):
    (place / "usr" / "bin").mkdir(parents=True)
    (place / "usr" / "bin" / "tool").touch(0o755)
    (place / "usr" / "bin" / "bash").touch(0o755)
    aliases = {
        "bash": f"{plain_registry.host}/team/none:1",
        "mine": f"{plain_registry.host}/team/app:1",
    }
    images = catalog(place, "missing", aliases=aliases)
    assert (await images.resolve("bash")).warning.startswith("alias bash (")
    assert (await images.resolve("mine")).kind == "layers"
    with pytest.raises(InvalidImage):
        await images.resolve(f"{plain_registry.host}/team/none:1")


async def test_the_allow_list_is_checked_before_anything_is_fetched(place, plain_registry):
    with registries.front(plain_registry) as before:
        images = catalog(place, "always", allowed=["python"])
        with pytest.raises(sandkasten.PolicyDenied):
            await images.resolve(f"{before.host}/team/app:1")
        assert before.seen == []


async def test_all_spellings_of_a_docker_hub_image_are_equal(place):
    store = LayerStore(place / "data" / "images")
    with store.working():
        layer = store.add_layer(io.BytesIO(registries.layer({"a": b"b"})))
        store.put_image([layer.diff_id], ImageConfig(), ["python:3.11-slim"])
    images = catalog(place, "never")
    for name in ("docker.io/library/python:3.11-slim", "library/python:3.11-slim", "python"):
        assert (await images.resolve(name)).name == "python:3.11-slim"


# ---- the SDK -----------------------------------------------------------------------------------


async def test_the_sdk_pulls_and_reports_on_the_event_loop(place, plain_registry):
    told: list[sandkasten.ImageProgress] = []
    images = sandkasten.AsyncImages()
    pulled = await images.pull(f"{plain_registry.host}/team/app:1", progress=told.append)
    assert pulled.names == (f"{plain_registry.host}/team/app:1",)
    assert [one.names for one in await images.list()] == [pulled.names]
    assert told[-1].done == told[-1].total


@pytest.fixture
def no_retry_delay(monkeypatch):
    """Retry without waiting, because the missing host will not appear."""
    monkeypatch.setattr(Patience, "pause_s", lambda *_: 0.01)


def test_the_synchronous_sdk_raises_the_same(place, no_retry_delay):
    with pytest.raises(RegistryUnavailable) as down:
        sandkasten.Images().pull("localhost:1/a/b:1")
    assert down.value.retryable


async def test_the_sdk_uses_the_login_of_the_settings(place, login_registry, monkeypatch):
    name = f"{login_registry.host}/team/app:1"
    with pytest.raises(Unauthorized):
        await sandkasten.AsyncImages(data_dir=place / "one").pull(name)
    (place / "password").write_text(f"{PASSWORD}\n")
    said = {login_registry.host: {"username": USER, "password_file": str(place / "password")}}
    monkeypatch.setenv("SANDKASTEN_IMAGES_REGISTRIES", json.dumps(said))
    assert (await sandkasten.AsyncImages(data_dir=place / "two").pull(name)).names == (name,)


async def test_a_build_without_its_program_names_the_package_to_install(place, monkeypatch):
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(sandkasten.BuildFailed) as refused:
        await sandkasten.AsyncImages().build_debian("d", "bookworm")
    assert refused.value.hint == "apt-get install mmdebstrap"


# ---- the command line --------------------------------------------------------------------------


def test_pull_prints_the_name_to_stdout_and_progress_to_stderr(capfd, plain_registry):
    name = f"{plain_registry.host}/team/app:1"
    status, out, err = cli(capfd, "image", "pull", name)
    assert (status, out) == (0, f"{name}\n")
    assert "1 layer" in err
    status, out, _ = cli(capfd, "image", "ls", "--json")
    assert [one["names"] for one in json.loads(out)] == [[name]]


def test_pull_answers_in_json(capfd, plain_registry):
    status, out, _ = cli(capfd, "image", "pull", "--json", f"{plain_registry.host}/team/app:1")
    (found,) = json.loads(out)
    assert status == 0
    assert found["source"] == f"{plain_registry.host}/team/app@{MADE.digest}"


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["{plain}/team/none:1"], "IMAGE_NOT_FOUND", "check the name"),
        (["{closed}/team/app:1"], "UNAUTHORIZED", "images.registries"),
        (["localhost:1/a/b"], "REGISTRY_UNAVAILABLE", "try again"),
        (["--platform", "x", "{plain}/team/app:1"], "INVALID_REQUEST", "linux/amd64"),
        (["../x"], "INVALID_IMAGE", "lower case"),
        (["host"], "INVALID_IMAGE", "name an image"),
        (["x" * 10_000], "INVALID_IMAGE", "lower case"),
    ],
)
def test_a_failed_pull_is_a_typed_error_with_a_hint(
    capfd, plain_registry, login_registry, no_retry_delay, words, code, hint
):
    words = [one.format(plain=plain_registry.host, closed=login_registry.host) for one in words]
    status, out, _ = cli(capfd, "image", "pull", "--json", *words)
    said = json.loads(out)
    assert (status, said["code"]) == (125, code)
    assert hint in said["hint"]
    assert len(out) < 1500


def test_an_image_name_that_looks_like_an_option_is_refused(capfd):
    status, _, err = cli(capfd, "image", "pull", "--privileged")
    assert status == 2
    assert "--privileged" in err
    status, out, _ = cli(capfd, "image", "pull", "--json", "--", "--privileged")
    assert (status, json.loads(out)["code"]) == (125, "INVALID_IMAGE")


def test_a_build_requires_a_source(capfd):
    status, _, err = cli(capfd, "image", "build", "x")
    assert status == 125
    assert "x is not a directory" in err
    assert "--debian" in err
    assert "did you mean" not in err
    _, _, err = cli(capfd, "image", "build", "datascienc")
    assert "hint: did you mean sandkasten image build datascience?" in err


def test_commands_of_a_build_that_cannot_run_here_are_refused_before_the_bootstrap(
    capfd, monkeypatch
):
    async def probe(self) -> Readiness:
        return Readiness(True, lacks=("dev_profile",))

    monkeypatch.setattr(LocalBackend, "probe", probe)
    # The bootstrap would be the first to complain.
    monkeypatch.setenv("PATH", "/nowhere")
    status, _, err = cli(capfd, "image", "build", "base")
    assert status == 125
    assert "which an ordinary user cannot have here" in err
    # The innocent twin has no commands.
    _, _, err = cli(capfd, "image", "build", "datascience")
    assert "mmdebstrap, which bootstraps Debian, is not installed" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--debian", "../x"],
        ["--debian", "bookworm", "--include", "a b"],
        ["--debian", "bookworm", "--variant", "x"],
        ["--debian", "bookworm", "--mirror", "x"],
    ],
)
def test_an_invalid_build_request_is_refused(capfd, words):
    status, out, _ = cli(capfd, "image", "build", "--json", "x", *words)
    assert (status, json.loads(out)["code"]) == (125, "INVALID_REQUEST")


def test_the_progress_of_a_pull_is_drawn_on_a_terminal_and_nowhere_else(plain_registry, capfd):
    size = len(MADE.blobs[MADE.layers[0]])
    name = f"{plain_registry.host}/team/app:1"
    with Person([sys.executable, "-m", "sandkasten_server.cli", "image", "pull", name]) as person:
        person.wait_for(f"layer {MADE.layers[0].removeprefix('sha256:')[:12]}")
        person.wait_for(f"{size}/{size} bytes")
        person.wait_for(name)
        assert person.status() == 0
    _, out, err = cli(capfd, "image", "pull", name)
    assert "layer 1" not in out + err.replace("1 layer", "")
    assert "\x1b" not in out + err
