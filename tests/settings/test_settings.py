"""Settings: precedence, every spelling, and refusals that name the key."""

from __future__ import annotations

import os
import stat

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.settings.setting_fields import Origin
from sandkasten.settings.setting_parsers import seconds
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.pool.pool_rules import LIFETIME_S

pytestmark = pytest.mark.anyio


def origin(settings, name: str) -> Origin:
    return next(one for one in settings.origins() if one.name == name)


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        (tmp_path / "sandkasten.yaml").write_text(text)
        return tmp_path

    return write


async def test_flag_over_environment_over_file_over_default(file):
    cwd = file("backend: oci\nsession_ttl_seconds: 100\ndefaults:\n  pids_limit: 77\n")
    env = {"SANDKASTEN_SESSION_TTL_SECONDS": "200", "SANDKASTEN_DATA_DIR": "/from/env"}
    settings = load({"data_dir": "/from/flag"}, env, cwd)
    assert origin(settings, "data_dir") == Origin("data_dir", "/from/flag", "flag")
    assert origin(settings, "session_ttl_seconds") == Origin(
        "session_ttl_seconds", 200.0, "env SANDKASTEN_SESSION_TTL_SECONDS"
    )
    path = cwd / "sandkasten.yaml"
    assert origin(settings, "backend") == Origin("backend", "oci", f"file {path}")
    assert origin(settings, "images.strict") == Origin("images.strict", False, "default")
    assert settings.policy.limits.pids == 77
    assert settings.policy.ttl_s == 200


async def test_every_default_equals_the_public_contract(tmp_path):
    settings = load({}, {"HOME": "/h"}, tmp_path)
    values = {one.name: one.value for one in settings.origins()}
    assert {one.origin for one in settings.origins()} == {"default"}
    assert values["defaults.cpu_limit"] == 1.0
    assert values["defaults.mem_limit_mb"] == 512
    assert values["defaults.pids_limit"] == 256
    assert values["defaults.workspace_mb"] == 500
    assert values["defaults.tmp_mb"] == 64
    assert values["defaults.exec_timeout_seconds"] == 120
    assert values["defaults.max_exec_timeout_ms"] == 3_600_000
    assert values["defaults.max_stdout_bytes"] == 200_000
    assert values["session_ttl_seconds"] == 1800
    assert values["session_max_lifetime_seconds"] == 14_400
    assert values["backend"] == "local"
    assert settings.named("allowed_images") is None


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("STATION_SANDBOX_DIR", "/x", "data_dir", "/x"),
        ("STATION_SANDBOX_ALLOWED_IMAGES", "python, host", "allowed_images", ["python", "host"]),
        ("STATION_SANDBOX_DEFAULT_TIMEOUT_SECONDS", "60", "defaults.exec_timeout_seconds", 60),
        ("STATION_SANDBOX_MAX_STDOUT_BYTES", "1000", "defaults.max_stdout_bytes", 1000),
        ("STATION_SANDBOX_MAX_STDERR_BYTES", "1000", "defaults.max_stderr_bytes", 1000),
        ("STATION_SANDBOX_MAX_ARTIFACT_BYTES", "9", "defaults.max_artifact_bytes", 9),
        ("STATION_SANDBOX_MAX_ARTIFACTS_COUNT", "9", "defaults.max_artifacts_count", 9),
        ("SANDBOX_SESSION_IDLE_TIMEOUT", "30m", "session_idle_timeout_seconds", 1800),
        ("SANDBOX_SESSION_MAX_LIFETIME", "4h", "session_max_lifetime_seconds", 14_400),
        ("SANDKASTEN_DEFAULT_IMAGE", "python", "default_image", "python"),
        ("SANDKASTEN_DEFAULTS_CPU_LIMIT", "0.5", "defaults.cpu_limit", 0.5),
        ("SANDKASTEN_IMAGES_STRICT", "yes", "images.strict", True),
        ("SANDKASTEN_POOL_ONESHOT_SPARES", "0", "pool.oneshot_spares", 0),
    ],
)
async def test_every_environment_spelling_is_understood(tmp_path, variable, text, name, value):
    settings = load({}, {variable: text}, tmp_path)
    assert origin(settings, name) == Origin(name, value, f"env {variable}")


async def test_the_canonical_name_overrides_the_older_one(tmp_path):
    env = {"SANDKASTEN_DATA_DIR": "/new", "STATION_SANDBOX_DIR": "/old"}
    assert str(load({}, env, tmp_path).data_dir) == "/new"


async def test_a_pod_that_was_long_ready_has_the_whole_lifetime_of_a_session_left(tmp_path):
    listed = load({}, {"SANDKASTEN_POOL_KINDS": "python ready=1"}, tmp_path)
    assert listed.plugins["kubernetes"].lifetime_s > listed.policy.lifetime_s + LIFETIME_S
    # Demand keeps one ready for a minute only.
    plain = load({}, {}, tmp_path)
    assert plain.plugins["kubernetes"].lifetime_s < plain.policy.lifetime_s + LIFETIME_S


async def test_an_empty_variable_is_not_set(tmp_path):
    assert origin(load({}, {"SANDKASTEN_BACKEND": ""}, tmp_path), "backend").origin == "default"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90),
        (90, 90),
        ("1.5", 1.5),
        ("30m", 1800),
        ("4h", 14_400),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1H 30 min", 5400),
        ("7d", 604_800),
        (1_000_086_400, 1_000_086_400),
        ("1000086400", 1_000_086_400),
    ],
)
async def test_durations_are_seconds_or_have_a_unit(text, value):
    assert seconds("x", text) == value


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "0", "5 parsecs", "nan", "inf", "m", True, None, [5]]
)
async def test_an_invalid_duration_is_refused(text):
    with pytest.raises(InvalidConfiguration):
        seconds("x", text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sesion_ttl_seconds: 5", "sesion_ttl_seconds"),
        ("defaults:\n  mem_limt_mb: 5", "defaults.mem_limt_mb"),
        ("listen: 8080", "listen"),
        ('listen: "::1:8080"', "listen"),
        ("listen: 127.0.0.1:70000", "listen"),
        ("api_key: short", "api_key"),
        ("tls:\n  cert: /x", "tls.cert"),
        ("defaults: 5", "defaults"),
        ("defaults:\n  mem_limit_mb: lots", "mem_limit_mb"),
        ("defaults:\n  mem_limit_mb: -1", "mem_limit_mb"),
        ("defaults:\n  pids_limit: true", "pids_limit"),
        ("defaults:\n  network_mode: bridge", "network_mode"),
        ("defaults:\n  readonly_rootfs: perhaps", "readonly_rootfs"),
        ("backend: dokcer", "backend"),
        ("default_image: --privileged", "default_image"),
        ("allowed_images: [python, 7]", "allowed_images"),
        ("policy:\n  blocked_paths: [etc]", "blocked_paths"),
        ("policy:\n  blocked_paths: [/etc/../x]", "blocked_paths"),
        ("images:\n  strict: perhaps", "images.strict"),
        ("pool:\n  oneshot_spares: 2", "pool.oneshot_spares"),
        ("pool:\n  oneshot_spares: true", "pool.oneshot_spares"),
        ("pool:\n  kinds: [python ready=17]", "pool.kinds"),
        ("images:\n  aliases: {a: b, b: a}", "images.aliases"),
        ("images:\n  aliases: {--x: b}", "images.aliases"),
        ("images:\n  aliases: {a: ../b}", "images.aliases"),
        ("images:\n  aliases: {host: b}", "images.aliases"),
        ("images:\n  aliases: 7", "images.aliases"),
        ("data_dir: 7", "data_dir"),
        ("http:\n  max_json_mb: .nan", "http.max_json_mb"),
        ("http:\n  max_json_mb: .inf", "http.max_json_mb"),
        ("http:\n  max_json_mb: 0", "http.max_json_mb"),
        (f"http:\n  max_json_mb: {10**400}", "http.max_json_mb"),
        (f"session_ttl_seconds: {10**400}", "session_ttl_seconds"),
        (f"defaults:\n  mem_limit_mb: {10**400}", "mem_limit_mb"),
        (f"defaults:\n  max_exec_timeout_ms: {10**400}", "max_exec_timeout_ms"),
        (f"policy:\n  max:\n    cpu_limit: {10**400}", "policy.max.cpu_limit"),
        (f"workspace:\n  max_mb: {10**400}", "workspace.max_mb"),
        ("backend: oci\nbackend: local", "backend"),
    ],
)
async def test_a_malformed_file_is_refused_and_names_the_key(file, text, named):
    with pytest.raises(InvalidConfiguration) as refused:
        load({}, {}, file(text))
    assert named in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("data_dir: 7", "in quotes"),
        ("defaults:\n  readonly_rootfs: perhaps", "true or false"),
        ("http:\n  max_json_mb: 8M", "without a unit"),
        ("http:\n  max_json_mb: 0", "such as"),
        ("files:\n  max_bytes: 1.5", "such as"),
        ("policy:\n  gpus: some", "all"),
        ("pool:\n  oneshot_spares: 2", "0"),
        ("allowed_images: [python, 7]", "[one, two]"),
        ("defaults:\n  network_mode: bridge", "full"),
        ("policy:\n  blocked_paths: [etc]", "[/etc/shadow, /root]"),
        ("network:\n  reachable: [there]", "10.1.0.0/16"),
        ("network:\n  servers: [dns]", "192.0.2.53"),
        ("network:\n  hosts: {a.test: [b]}", "192.0.2.7"),
        ("backends:\n  docker:\n    workspace_dir: here", "/srv/"),
        ("backends:\n  docker:\n    host: tcp://:2375", "write tcp://"),
        ("backends:\n  docker:\n    host: unix://here", "unix:///"),
    ],
)
async def test_the_hint_shows_the_expected_form(file, text, form):
    with pytest.raises(InvalidConfiguration) as refused:
        load({}, {}, file(text))
    assert form in refused.value.hint
    assert "correct the value" not in refused.value.hint


async def test_the_nearest_spelling_is_offered(file):
    with pytest.raises(InvalidConfiguration) as refused:
        load({}, {}, file("sesion_ttl_seconds: 5"))
    assert refused.value.hint == "did you mean session_ttl_seconds?"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\nb: *a",
        "x: &x [1]\ny: &y [*x, *x]\nz: [*y, *y]",
        "data_dir: !!python/object/apply:os.system ['true']",
        "data_dir: !!str x",
        "a: [[[[[[[[]]]]]]]]",
        "- just\n- a list",
        "{",
        "a: b: c",
        "\x00",
        "x" * 2_000_000,
    ],
)
async def test_yaml_with_aliases_or_tags_is_refused(file, text):
    with pytest.raises(InvalidConfiguration):
        load({}, {}, file(text))


async def test_an_empty_file_and_empty_values_mean_the_defaults(file):
    assert load({}, {}, file("")).named("backend") == "local"
    assert load({}, {}, file("# nothing\nbackend:\n")).named("backend") == "local"


async def test_a_named_file_must_exist(tmp_path):
    with pytest.raises(InvalidConfiguration):
        load({"config": str(tmp_path / "missing.yaml")}, {}, tmp_path)
    (tmp_path / "other.yaml").write_text("backend: oci")
    env = {"SANDKASTEN_CONFIG": str(tmp_path / "other.yaml")}
    assert load({}, env, tmp_path).named("backend") == "oci"


async def test_an_unknown_flag_is_refused(tmp_path):
    with pytest.raises(InvalidConfiguration):
        load({"bakend": "oci"}, {}, tmp_path)


async def test_only_allowed_environment_variables_are_passed_and_never_shown(tmp_path):
    env = {"SANDKASTEN_POLICY_ENV_ALLOW": "TOKEN,MISSING", "TOKEN": "s3cret", "OTHER": "x"}
    settings = load({}, env, tmp_path)
    assert settings.policy.env == {"TOKEN": "s3cret"}
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in repr(settings.origins())


async def test_the_data_directory_of_an_ordinary_user_is_in_the_state_directory(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert str(load({}, {"HOME": "/h"}, tmp_path).data_dir) == "/h/.local/state/sandkasten"
    env = {"HOME": "/h", "XDG_STATE_HOME": "/s"}
    assert str(load({}, env, tmp_path).data_dir) == "/s/sandkasten"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert str(load({}, env, tmp_path).data_dir) == "/var/lib/sandkasten"


async def test_the_data_directory_is_not_accessible_to_other_users(tmp_path):
    path = tmp_path / "deep" / "data"
    prepare_data_dir(path)
    path.chmod(0o755)
    prepare_data_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


async def test_an_unusable_data_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidConfiguration) as refused:
            prepare_data_dir(path)
        assert "data_dir" in refused.value.message


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a directory away")
async def test_a_data_directory_of_another_user_is_refused(tmp_path):
    path = tmp_path / "theirs"
    path.mkdir()
    os.chown(path, 12_345, 12_345)
    with pytest.raises(InvalidConfiguration):
        prepare_data_dir(path)


async def test_an_engine_opens_and_closes(tmp_path):
    engine = await open_engine(load({"backend": "unisolated"}, {}, tmp_path))
    assert await engine.list() == []
    assert (await engine.probe()).ready
    await engine.aclose()
    await engine.aclose()


async def test_without_linux_the_engine_gives_the_reason_in_one_sentence(tmp_path, monkeypatch):
    from sandkasten.errors import BackendUnavailable

    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(BackendUnavailable) as refused:
        await open_engine(load({"backend": "unisolated"}, {}, tmp_path))
    assert "requires Linux" in refused.value.message


def test_aliases_are_a_mapping_in_a_file_and_pairs_in_the_environment(file):
    cwd = file("images:\n  aliases:\n    python: my/python:1\n    py: python\n")
    settings = load({}, {}, cwd)
    assert settings.named("images.aliases") == {"python": "my/python:1", "py": "python"}
    assert origin(settings, "images.aliases").value == ["python=my/python:1", "py=python"]
    environ = {"SANDKASTEN_IMAGES_ALIASES": "ml=h:5000/ml:2, x=host"}
    assert load({}, environ, cwd).named("images.aliases") == {"ml": "h:5000/ml:2", "x": "host"}
    assert load({}, {}, None).named("images.aliases") == {}


@pytest.mark.promise("P50")
def test_circular_aliases_prevent_the_start_and_are_named(file):
    with pytest.raises(InvalidConfiguration, match="a → b → a"):
        load({}, {"SANDKASTEN_IMAGES_ALIASES": "a=b,b=a"})


@pytest.mark.promise("P43")
@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_settings_file_that_others_can_write_is_refused(tmp_path, mode):
    path = tmp_path / "sandkasten.yaml"
    path.write_text("backend: oci")
    path.chmod(mode)
    with pytest.raises(InvalidConfiguration, match="other users"):
        load({}, {}, tmp_path)
    path.chmod(0o644)
    assert load({}, {}, tmp_path).named("backend") == "oci"


@pytest.mark.promise("P43")
def test_a_settings_file_that_is_exchanged_after_a_look_is_still_refused(tmp_path, monkeypatch):
    ours, foreign = tmp_path / "sandkasten.yaml", tmp_path / "foreign.yaml"
    ours.write_text("backend: oci")
    foreign.write_text("backend: gvisor")
    foreign.chmod(0o666)
    open_file = os.open

    def exchanging(path, *given, **more):
        foreign.rename(ours)
        return open_file(path, *given, **more)

    monkeypatch.setattr(os, "open", exchanging)
    with pytest.raises(InvalidConfiguration) as error:
        load({}, {}, tmp_path)
    assert error.value.details["setting"] == "config"


async def test_the_settings_of_the_source_documents_are_understood(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(
        """listen: "127.0.0.1:8080"
api_key: "sk-sandbox-..."          # single key for MVP
default_image: "sandbox-runtime:base"
allowed_images:
  - "sandbox-runtime:base"
  - "sandbox-runtime:python"
  - "sandbox-runtime:node"
db_path: "./sandkasten.db"
session_ttl_seconds: 1800
defaults:
  cpu_limit: 1.0
  mem_limit_mb: 512
  pids_limit: 256
  max_exec_timeout_ms: 120000
  network_mode: "none"
  readonly_rootfs: true
"""
    )
    assert load({}, {}, tmp_path).policy.readonly_rootfs
    text = (tmp_path / "sandkasten.yaml").read_text()
    (tmp_path / "sandkasten.yaml").write_text(text.replace("rootfs: true", "rootfs: false"))
    assert not load({}, {}, tmp_path).policy.readonly_rootfs
