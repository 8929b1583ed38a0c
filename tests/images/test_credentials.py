"""Registry credentials: settings, the environment, docker's file; and challenges."""

from __future__ import annotations

import base64
import json

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten_runtime.images.registry.registry_credentials import Access, Keyring
from sandkasten_runtime.images.registry.registry_tokens import Challenge, parse_challenge


def _docker_file(tmp_path, tree) -> dict[str, str]:
    (tmp_path / "config.json").write_text(json.dumps(tree))
    return {"DOCKER_CONFIG": str(tmp_path)}


def _packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_settings_override_the_environment_which_overrides_dockers_file(tmp_path):
    environ = _docker_file(tmp_path, {"auths": {"h:1": {"auth": _packed("file:f")}}})
    assert Keyring(environ=environ).access("h:1") == Access(username="file", password="f")
    environ["DOCKER_AUTH_CONFIG"] = json.dumps({"auths": {"h:1": {"auth": _packed("env:e")}}})
    assert Keyring(environ=environ).access("h:1") == Access(username="env", password="e")
    said = Access(username="set", password="s")
    assert Keyring({"h:1": said}, environ=environ).access("h:1") == said


def test_credentials_apply_to_exactly_one_host(tmp_path):
    environ = _docker_file(
        tmp_path,
        {
            "auths": {
                "https://h:1/v2/": {"auth": _packed("u:p")},
                "other/namespace": {"auth": _packed("n:p")},
            }
        },
    )
    keyring = Keyring({"set": Access(username="s", password="p")}, environ=environ)
    assert keyring.access("h:1").username == "u"
    for stranger in ("h", "h:2", "other", "x.h:1", "h:1.example", "docker.io", "set:1"):
        assert keyring.access(stranger) == Access()


def test_the_hub_has_another_name_in_dockers_file(tmp_path):
    environ = _docker_file(
        tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": _packed("u:p:q")}}}
    )
    assert Keyring(environ=environ).access("docker.io") == Access(username="u", password="p:q")


def test_transport_settings_stay_when_the_login_comes_from_dockers_file(tmp_path):
    environ = _docker_file(
        tmp_path, {"auths": {"h": {"identitytoken": "t", "auth": _packed("u:")}}}
    )
    keyring = Keyring({"h": Access(ca_file="/ca", insecure=True)}, environ=environ)
    assert keyring.access("h") == Access(
        username="u", identity_token="t", ca_file="/ca", insecure=True
    )


def test_a_password_file_is_read_without_its_newline_and_only_when_needed(tmp_path):
    file = tmp_path / "password"
    keyring = Keyring({"h": Access(username="u", password_file=str(file))}, environ={})
    with pytest.raises(InvalidConfiguration):
        keyring.access("h")
    file.write_text("secret\n")
    assert keyring.access("h").password == "secret"
    file.write_text("two\nlines\n")
    with pytest.raises(InvalidConfiguration) as refused:
        keyring.access("h")
    assert "two" not in str(refused.value)


@pytest.mark.parametrize(
    "tree",
    ["[]", "{", '{"auths": {"h": {"auth": "%%%"}}}', '{"auths": {"h": {"auth": "dQ=="}}}'],
)
def test_a_malformed_docker_file_is_reported_without_its_content(tmp_path, tree):
    (tmp_path / "config.json").write_text(tree)
    with pytest.raises(InvalidConfiguration) as refused:
        Keyring(environ={"DOCKER_CONFIG": str(tmp_path)}).access("h")
    assert "%%%" not in str(refused.value)


def test_no_secret_is_part_of_a_repr():
    access = Access(username="u", password="p4ss", token="t0ken", identity_token="id3ntity")
    assert not {"p4ss", "t0ken", "id3ntity"} & set(str(access).split("'"))
    assert "u" in str(access)


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        (
            'Bearer realm="https://a/t?x=1",service="s",scope="repository:a/b:pull,push"',
            Challenge("bearer", "https://a/t?x=1", "s", "repository:a/b:pull,push"),
        ),
        ("Basic realm=x", Challenge("basic", "x")),
        ('bearer realm="a\\"b" , service=s', Challenge("bearer", 'a"b', "s")),
        ("", Challenge("")),
        ("Negotiate", Challenge("negotiate")),
        ('Bearer realm="' + "x" * 100_000, Challenge("bearer")),
    ],
)
def test_an_authentication_challenge_is_read_in_any_form(header, challenge):
    assert parse_challenge(header) == challenge
