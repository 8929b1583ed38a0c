"""Credentials of a cluster: a kubeconfig, a service account, a program that prints tokens."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import BackendUnavailable, InvalidConfiguration
from sandkasten_kubernetes.api import cluster_access
from sandkasten_runtime.assembly.backend_registry import read_nested

if TYPE_CHECKING:
    from pathlib import Path


def written(path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    tree = {
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u"}},
            {"name": "two", "context": {"cluster": "c", "user": "u", "namespace": "boxes"}},
        ],
        "clusters": [{"name": "c", "cluster": cluster or {"server": "https://10.0.0.1:6443/"}}],
        "users": [{"name": "u", "user": user}],
    }
    (path / "kubeconfig").write_text(json.dumps(tree))
    return path / "kubeconfig"


def access(path: Path, context: str = "") -> cluster_access.ClusterAccess:
    return cluster_access.from_kubeconfig(path, context, read_nested, {"PATH": "/bin"})


async def test_a_context_has_a_server_a_namespace_and_a_token(tmp_path: Path):
    path = written(tmp_path, {"token": "t"})
    parsed = access(path)
    assert (parsed.server, parsed.namespace) == ("https://10.0.0.1:6443", "default")
    assert await parsed.headers() == {"Authorization": "Bearer t"}
    assert access(path, "two").namespace == "boxes"
    assert "'t'" not in repr(parsed)


async def test_files_are_found_beside_the_kubeconfig(tmp_path: Path):
    (tmp_path / "ca.pem").write_text("authority")
    (tmp_path / "token").write_text("from a file\n")
    cluster = {"server": "https://c", "certificate-authority": "ca.pem"}
    parsed = access(written(tmp_path, {"tokenFile": "token"}, cluster))
    assert parsed.ca == b"authority"
    assert await parsed.headers() == {"Authorization": "Bearer from a file"}


async def test_data_in_the_file_comes_first(tmp_path: Path):
    data = base64.b64encode(b"key").decode()
    parsed = access(written(tmp_path, {"client-key-data": data, "client-key": "missing"}))
    assert parsed.key == b"key"


@pytest.mark.parametrize(
    ("user", "cluster", "about"),
    [
        ({"client-key": "missing"}, None, "cannot be read"),
        ({"client-key-data": "?"}, None, "client-key-data"),
        ({"auth-provider": {"name": "gcp"}}, None, "auth-provider"),
        ({"exec": {"args": []}}, None, "without a command"),
        ({}, {"server": "ftp://c"}, "server"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path: Path, user, cluster, about):
    with pytest.raises(InvalidConfiguration, match=about):
        access(written(tmp_path, user, cluster))


def test_an_unknown_context_is_named(tmp_path: Path):
    with pytest.raises(InvalidConfiguration, match="'three'"):
        access(written(tmp_path, {}), "three")


async def test_a_program_gives_the_token(tmp_path: Path):
    program = tmp_path / "login"
    program.write_text(
        "#!/bin/sh\n"
        'echo "{\\"status\\": {\\"token\\": \\"$KIND-$1\\",'
        ' \\"expirationTimestamp\\": \\"2001-01-01T00:00:00Z\\"}}"\n'
    )
    program.chmod(0o755)
    plugin = {
        "command": "./login", "args": ["a"], "env": [{"name": "KIND", "value": "k"}],
    }  # fmt: skip
    parsed = access(written(tmp_path, {"exec": plugin}))
    assert await parsed.headers() == {"Authorization": "Bearer k-a"}


@pytest.mark.parametrize("command", ["false", "echo", "./missing"])
async def test_a_program_without_a_token_is_named(tmp_path: Path, command: str):
    parsed = access(written(tmp_path, {"exec": {"command": command}}))
    with pytest.raises(BackendUnavailable, match="gave no token"):
        await parsed.headers()


async def test_a_pod_uses_its_service_account(tmp_path: Path):
    for name, content in (("token", "t\n"), ("namespace", "boxes"), ("ca.crt", "authority")):
        (tmp_path / name).write_text(content)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    parsed = cluster_access.in_cluster(environ, tmp_path)
    assert (parsed.server, parsed.namespace) == ("https://[fd00::1]:6443", "boxes")
    assert await parsed.headers() == {"Authorization": "Bearer t"}


def test_without_kubeconfig_and_service_account_the_remedy_is_named(tmp_path: Path):
    with pytest.raises(BackendUnavailable) as raised:
        cluster_access.in_cluster({}, tmp_path)
    assert "backends.kubernetes.kubeconfig" in raised.value.hint
