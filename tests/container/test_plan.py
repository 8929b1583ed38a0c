"""The plans of `up`, compared with snapshots, and the rules that each must keep.

`python -m tests.container.test_plan` writes the snapshots again; review the difference.
"""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandkasten.daemon.container import up_checks
from sandkasten.daemon.container.docker_commands import commands_of
from sandkasten.daemon.container.install_plan import (
    Certificates,
    FoundEngine,
    InstallPlan,
    InstallSpec,
    ModelAccess,
    User,
    plan_of,
)
from sandkasten.daemon.container.installation import packed
from sandkasten.daemon.settings.resolver import documented
from sandkasten.errors import InvalidRequest
from sandkasten.model.installation_values import InstallationRequest

SNAPSHOTS = Path(__file__).with_name("snapshots")
SOCKET = InstallSpec(image="sandkasten:1.2.3", version="1.2.3")
CERTIFICATES = Certificates(b"the authority", b"the certificate", b"the secret key")
CASES = {
    "socket": (SOCKET, FoundEngine(socket_gid=998)),
    "socket-volume": (replace(SOCKET, workspace="volume"), FoundEngine(socket_gid=998)),
    "socket-volume-elsewhere": (replace(SOCKET, workspace="volume"), FoundEngine()),
    "socket-remapped": (replace(SOCKET, host="0.0.0.0", port=9000), FoundEngine(remapped=True)),
    "sidecar": (replace(SOCKET, mode="sidecar", host="192.0.2.7"), FoundEngine()),
    "remote": (
        replace(
            SOCKET,
            mode="remote",
            host="::1",
            engine_host="tcp://box:2376",
            certificates=CERTIFICATES,
            env={"SANDKASTEN_ALLOWED_IMAGES": "python"},
        ),
        FoundEngine(image_user=User(7, 8)),
    ),
    "socket-agents": (
        replace(
            SOCKET,
            agents="/home/ada/agents",
            workflows="/home/ada/workflows",
            models=ModelAccess("http://host.docker.internal:11434/v1", "gpt-4o", "the model key"),
        ),
        FoundEngine(socket_gid=998),
    ),
}


def shown(plan: InstallPlan) -> dict[str, Any]:
    return {
        "mode": plan.mode,
        "url": plan.url,
        "user": str(plan.user),
        "volumes": [[one.name, one.kind, one.keep] for one in plan.volumes],
        "networks": list(plan.networks),
        "containers": [
            {"name": one.name, "files": sorted(one.files), "config": one.body}
            for one in plan.containers
        ],
        "commands": list(commands_of(plan)),
    }


@pytest.mark.parametrize("case", CASES)
def test_a_plan_equals_its_snapshot(case):
    assert shown(plan_of(*CASES[case])) == json.loads((SNAPSHOTS / f"{case}.json").read_text())


@pytest.mark.promise("P60")
@pytest.mark.parametrize("case", CASES)
def test_the_daemon_is_confined_whatever_the_mode(case):
    host = plan_of(*CASES[case]).daemon.body["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert set(host.get("CapAdd", ())) <= {"CHOWN", "DAC_OVERRIDE", "FOWNER"}
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["ReadonlyRootfs"] is True
    assert "Privileged" not in host


@pytest.mark.parametrize("case", CASES)
def test_capabilities_go_to_root_alone(case):
    """An ordinary user would not get them, and the first sandbox would fail."""
    body = plan_of(*CASES[case]).daemon.body
    assert not body["HostConfig"].get("CapAdd") or body["User"] == "0:0"


@pytest.mark.parametrize("case", CASES)
def test_every_variable_of_a_plan_is_a_setting_of_the_daemon(case):
    known = {variable for one in documented() for variable in one.variables}
    pairs = plan_of(*CASES[case]).daemon.body["Env"]
    assert {pair.partition("=")[0] for pair in pairs} <= known


def test_no_secret_is_visible_through_the_engine():
    plan = plan_of(*CASES["remote"])
    said = json.dumps(shown(plan)) + repr(plan) + repr(CASES["remote"])
    assert "secret key" not in said
    assert b"the secret key" in plan.daemon.files.values()


def test_the_plans_mark_changes_only_with_the_request():
    spec, found = CASES["socket"]
    mark = plan_of(spec, found).mark
    assert plan_of(spec, found).mark == mark
    others = (
        replace(spec, image="other"),
        replace(spec, port=9),
        replace(spec, env={"A": "b"}),
        replace(spec, workspace="shared"),
        replace(spec, mode="sidecar"),
        replace(spec, agents="/agents"),
        replace(spec, models=ModelAccess("http://models/v1")),
    )
    assert len({mark, *(plan_of(one, found).mark for one in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("spec", "said", "hint"),
    [
        (replace(SOCKET, mode="sidcar"), "'sidcar' is not a valid mode", "sidecar"),
        (replace(SOCKET, mode="remote"), "--engine is not set", "--engine tcp://HOST:2376"),
        (replace(SOCKET, mode="remote", engine_host="ssh://box"), "ssh://box", "DOCKER_HOST"),
        (
            replace(SOCKET, mode="remote", engine_host="tcp://box:2376"),
            "tcp://box:2376 requires a client certificate",
            "--engine-certs",
        ),
    ],
)
def test_a_mode_without_its_requirements_is_refused(spec, said, hint):
    with pytest.raises(InvalidRequest) as refused:
        plan_of(spec, FoundEngine())
    assert said in refused.value.message
    assert hint in refused.value.hint


def test_the_key_of_the_models_is_a_file_and_nowhere_in_the_containers_configuration():
    plan = plan_of(*CASES["socket-agents"])
    assert plan.daemon.files == {"/var/lib/sandkasten/models.key": b"the model key\n"}
    assert (
        "SANDKASTEN_MODELS_API_KEY_FILE=/var/lib/sandkasten/models.key" in plan.daemon.body["Env"]
    )
    assert "the model key" not in json.dumps(shown(plan))


def test_a_variable_given_to_up_wins_and_then_the_key_of_another_endpoint_is_not_passed():
    own = {"SANDKASTEN_MODELS_BASE_URL": "http://theirs/v1"}
    spec = replace(SOCKET, env=own, models=ModelAccess("http://models/v1", "gpt-4o", "the key"))
    daemon = plan_of(spec, FoundEngine()).daemon
    assert [pair for pair in daemon.body["Env"] if "MODELS" in pair] == [
        "SANDKASTEN_MODELS_BASE_URL=http://theirs/v1"
    ]
    assert daemon.files == {}


def test_files_are_accessible_to_the_daemon_only():
    archive = packed({"/data/key": b"k", "/data/certs/ca.pem": b"c"}, "/data", User(7, 8))
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = [(one.name, one.isdir(), oct(one.mode), one.uid, one.gid) for one in opened]
    assert found == [
        ("certs", True, "0o700", 7, 8),
        ("certs/ca.pem", False, "0o600", 7, 8),
        ("key", False, "0o600", 7, 8),
    ]


def test_directories_of_this_machine_are_not_mounted_by_an_engine_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents").mkdir()
    here = str(tmp_path / "agents")
    found = up_checks.definitions
    assert (found(None, "agents", local=True), found(None, "agents", local=False)) == (here, "")
    assert found("", "agents", local=True) == ""
    assert found("/srv/agents", "agents", local=False) == "/srv/agents"
    assert found(None, "workflows", local=True) == ""
    with pytest.raises(InvalidRequest, match="agents is relative, and the Docker Engine is on"):
        found("agents", "agents", local=False)
    notes = up_checks.notes_of(InstallationRequest(), None, local=False)
    assert [note.partition(",")[0] for note in notes] == ["agents/ is not mounted"]
    assert up_checks.notes_of(InstallationRequest(), None, local=True) == []


def test_a_model_on_the_loopback_address_is_explained_and_another_is_not():
    def notes(url: str) -> list[str]:
        return up_checks.notes_of(InstallationRequest(), ModelAccess(url), local=True)

    (note,) = notes("http://localhost:11434/v1")
    assert "SANDKASTEN_MODELS_BASE_URL=http://host.docker.internal:11434/v1 " in note
    assert notes("https://models.example/v1") == []


if __name__ == "__main__":
    for name, given in CASES.items():
        text = json.dumps(shown(plan_of(*given)), indent=2)
        (SNAPSHOTS / f"{name}.json").write_text(text + "\n")
