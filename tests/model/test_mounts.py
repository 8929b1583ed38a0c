"""Host mounts: what an operator can list, and what a request can name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkasten.errors import InvalidRequest, PolicyDenied, UnsupportedByBackend
from sandkasten.model.sandbox.host_mounts import (
    MountRule,
    check_mounts_on,
    choose_mounts,
    mount_text,
    parse_mounts,
)
from sandkasten_runtime.backends.local.capabilities import LOCAL
from sandkasten_runtime.backends.oci.capabilities import GVISOR

MODELS = MountRule("models", "/data/models", "/models")
CORPUS = MountRule("corpus", "/srv/corpus", "/mnt/corpus", default=True)
CODE = MountRule("code", "/srv/code", "/code", mode="rw")
TEAM = MountRule("team", "/srv/team", "/team", mode="rw", tenants=("a", "b"))


def _one(source: str = "/data/models", target: str = "/models") -> tuple[MountRule, ...]:
    return parse_mounts({"m": {"source": source, "target": target}}, "/var/lib/mine")


def test_a_mount_mapping_equals_its_text_form():
    written = {
        "models": {"source": "/data//models/", "target": "/models"},
        "corpus": {"source": "/srv/corpus", "default": True},
    }
    rules = parse_mounts(written, "/var/lib/mine")
    assert rules == (MODELS, CORPUS)
    texts = [mount_text(rule) for rule in rules]
    assert texts == ["models=/data/models:/models", "corpus=/srv/corpus:/mnt/corpus:default"]
    assert parse_mounts(texts, "/var/lib/mine") == rules
    assert parse_mounts(["models=/data/models"], "/x")[0].target == "/mnt/models"


@pytest.mark.parametrize(
    "source",
    [
        "/", "/proc", "/proc/1/root", "/sys", "/dev", "/dev/shm", "/run", "/run/docker.sock",
        "/var/run/docker.sock", "/var", "/var/lib", "/etc", "/etc/shadow", "/etc/ssh", "/root",
        "/root/keys", "/home", "/home/alice", "/home/alice/.ssh", "/srv/backup/.aws",
        "/var/lib/mine", "/var/lib/mine/cells", "/var/lib/docker/volumes", "/boot",
    ],
)  # fmt: skip
def test_a_mount_source_that_exposes_the_host_is_refused(source):
    with pytest.raises(InvalidRequest) as refused:
        _one(source=source)
    assert refused.value.message.startswith("mount m: source ")


@pytest.mark.parametrize(
    "source",
    ["/data/models", "/home/alice/data", "/etc/ssl/certs", "/usr/share/dict", "/procession"],
)
def test_an_ordinary_mount_source_is_accepted(source):
    assert _one(source=source)[0].source == source


@pytest.mark.parametrize(
    "target",
    [
        "/", "/proc", "/proc/x", "/sys", "/dev/x", "/run/sandkasten", "/workspace",
        "/workspace/models", "/work", "/tmp", "/etc", "/etc/ssl", "/usr", "/usr/lib/x", "/bin",
        "/lib64", "/home/sandbox", "/root", "/var",
    ],
)  # fmt: skip
def test_a_mount_target_that_would_hide_the_sandbox_is_refused(target):
    with pytest.raises(InvalidRequest) as refused:
        _one(target=target)
    assert refused.value.message.startswith("mount m: target ")


@pytest.mark.parametrize(
    "target", ["/models", "/mnt/models", "/opt/x", "/workspaces", "/var/lib/x"]
)
def test_an_ordinary_mount_target_is_accepted(target):
    assert _one(target=target)[0].target == target


@pytest.mark.parametrize(
    "path",
    ["", "models", "./x", "/a/../b", "/a/./b", "/a\0b", "/a\nb", "/a,b", "/a:b", "/" + "a" * 5000,
     7, None, ["/a"]],
)  # fmt: skip
def test_a_mount_path_that_is_not_absolute_and_normal_is_refused(path):
    for what in ("source", "target"):
        entry = {"source": "/data/models", "target": "/models", what: path}
        with pytest.raises(InvalidRequest, match=f"mount m: {what} "):
            parse_mounts({"m": entry}, "/x")


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        (7, "must be a mapping or a list"),
        ([7], "must be a mapping or a list"),
        ({"../x": {"source": "/data"}}, "is not a valid mount name"),
        ({"Models": {"source": "/data"}}, "is not a valid mount name"),
        ({"m": "/data"}, "is not a mapping"),
        ({"m": {"source": "/data", "tarket": "/x"}}, "unknown key 'tarket'"),
        ({"m": {"source": "/data", "readonly": False}}, "unknown key 'readonly'"),
        ({"m": {"source": "/data", "default": "yes"}}, "neither true nor false"),
        ({"m": {"target": "/x"}}, "source is not an absolute path"),
        (["m=/data:/x:writable"], "is not a valid mount"),
        (["/data"], "is not a valid mount"),
        (["m=/data:/x:rw:rw"], "is not a valid mount"),
        ({"m": {"source": "/data", "mode": "w"}}, "mode must be ro or rw"),
        ({"m": {"source": "/data", "mode": True}}, "mode must be ro or rw"),
        ({"m": {"source": "/data", "mode": "rw", "default": True}}, "cannot be a default"),
        ({"m": {"source": "/data", "tenants": "a"}}, "tenants must be a list"),
        ({"m": {"source": "/data", "tenants": [7]}}, "tenants must be a list"),
        ({"m": {"source": "/data", "tenants": ["A B"]}}, "is not a valid tenant name"),
        (["a=/data:/x", "a=/srv:/y"], "the name is there twice"),
        (["a=/data:/x", "b=/srv:/x"], "meets that of a"),
        (["a=/data:/x", "b=/srv:/x/y"], "meets that of a"),
        ([f"m{i}=/data:/mnt/{i}" for i in range(65)], "there are 65 mounts"),
    ],
)
def test_an_invalid_mount_is_refused_by_name(written, complaint):
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        parse_mounts(written, "/x")
    assert refused.value.hint


def test_a_request_gets_the_mounts_it_names_and_the_defaults():
    known = (MODELS, CORPUS)
    assert choose_mounts((), known) == (CORPUS,)
    assert choose_mounts(["models", "models"], known) == known
    assert choose_mounts((), ()) == ()


@pytest.mark.promise("P24")
@pytest.mark.parametrize(
    "name",
    [
        "/data/models",
        "/",
        "../x",
        "models/..",
        "models/",
        "models/a//b",
        "models/a/../b",
        "models/./a",
        "models/a\nb",
        "models/" + "a/" * 3000 + "a",
        "/etc/shadow",
    ],
)
def test_a_request_for_a_path_is_refused(name):
    with pytest.raises(PolicyDenied, match="a request cannot mount the path") as refused:
        choose_mounts([name], (MODELS, CORPUS))
    assert refused.value.hint.endswith("known: corpus, models")


@pytest.mark.parametrize("name", ["model", "MODELS", "", "x" * 10_000, "mödels"])
def test_a_request_for_an_unknown_mount_lists_the_known_ones(name):
    with pytest.raises(PolicyDenied, match="is not a mount of the policy") as refused:
        choose_mounts([name], (MODELS,))
    assert refused.value.hint.endswith("known: models")
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("asked", ["models", [7], [None]])
def test_a_mount_request_that_is_not_a_list_of_names_is_refused(asked):
    with pytest.raises(InvalidRequest):
        choose_mounts(asked, (MODELS,))


def test_a_writable_mount_mapping_equals_its_text_form():
    written = {
        "code": {"source": "/srv/code", "target": "/code", "mode": "rw"},
        "team": {"source": "/srv/team", "target": "/team", "mode": "rw", "tenants": ["a", "b"]},
    }
    rules = parse_mounts(written, "/var/lib/mine")
    assert rules == (CODE, TEAM)
    texts = [mount_text(rule) for rule in rules]
    assert texts == ["code=/srv/code:/code:rw", "team=/srv/team:/team:rw:tenant=a:tenant=b"]
    assert parse_mounts(texts, "/var/lib/mine") == rules


@pytest.mark.promise("P83")
@pytest.mark.parametrize(
    "source",
    [
        "/usr/local/share", "/etc/ssl/certs", "/bin", "/lib/modules", "/var/log/mine", "/var/spool",
        "/home/alice/.config/x", "/home/alice/.local", "/srv/.hidden/x", "/var/lib/dpkg/info",
    ],
)  # fmt: skip
def test_a_directory_that_the_host_trusts_cannot_be_writable(source):
    with pytest.raises(InvalidRequest, match="mount m: source "):
        parse_mounts({"m": {"source": source, "target": "/m", "mode": "rw"}}, "/var/lib/mine")
    assert parse_mounts({"m": {"source": source, "target": "/m"}}, "/var/lib/mine")


@pytest.mark.promise("P83")
def test_a_writable_mount_exists_only_for_its_tenants():
    known = (MODELS, CODE, TEAM)
    assert choose_mounts(["code", "models"], known) == (MODELS, CODE)
    assert choose_mounts(["team"], known, "a") == (TEAM,)
    for name, tenant in (("code", "a"), ("team", "default"), ("team", "c"), ("team/x", "c")):
        with pytest.raises(PolicyDenied) as refused:
            choose_mounts([name], known, tenant)
        assert name not in refused.value.hint


def test_a_request_may_name_one_directory_of_a_mount():
    assert choose_mounts(["code/a/b", "code/a/b"], (CODE,)) == (replace(CODE, below="a/b"),)
    with pytest.raises(InvalidRequest, match="two directories"):
        choose_mounts(["code/a", "code/b"], (CODE,))
    with pytest.raises(InvalidRequest, match="two directories"):
        choose_mounts(["code/a", "code"], (CODE,))


@pytest.mark.promise("P83")
def test_gvisor_refuses_a_writable_mount_by_name():
    with pytest.raises(UnsupportedByBackend) as error:
        check_mounts_on((MODELS, CODE), "gvisor", GVISOR)
    assert error.value.details == {"mount": "code"}
    check_mounts_on((MODELS,), "gvisor", GVISOR)
    check_mounts_on((MODELS, CODE), "local", LOCAL)
