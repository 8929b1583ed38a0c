"""The plans of `up`, compared with snapshots, and the rules that each must keep.

`python -m plugins.docker.tests.daemon_container.test_plan` writes the snapshots again; review the
difference.
"""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandkasten.errors import InvalidRequest
from sandkasten_docker.daemon_container import up_checks
from sandkasten_docker.daemon_container.docker_commands import commands_of
from sandkasten_docker.daemon_container.install_plan import (
    Certificates,
    FoundDockerEngine,
    InstallPlan,
    InstallSpec,
    ModelAccess,
    User,
    plan_of,
)
from sandkasten_docker.daemon_container.installation import packed
from sandkasten_docker.daemon_container.installation_values import InstallationRequest
from sandkasten_runtime.assembly.settings.resolver import documented

SNAPSHOTS = Path(__file__).with_name("snapshots")
SOCKET = InstallSpec(image="sandkasten:1.2.3", version="1.2.3")
CERTIFICATES = Certificates(b"the authority", b"the certificate", b"the secret key")
CASES = {
    "socket": (SOCKET, FoundDockerEngine(socket_gid=998)),
    "socket-volume": (replace(SOCKET, workspace="volume"), FoundDockerEngine(socket_gid=998)),
    "socket-volume-elsewhere": (replace(SOCKET, workspace="volume"), FoundDockerEngine()),
    "socket-remapped": (
        replace(SOCKET, host="0.0.0.0", port=9000),
        FoundDockerEngine(remapped=True),
    ),
    "sidecar": (replace(SOCKET, mode="sidecar", host="192.0.2.7"), FoundDockerEngine()),
    "remote": (
        replace(
            SOCKET,
            mode="remote",
            host="::1",
            docker_host="tcp://box:2376",
            certificates=CERTIFICATES,
            env={"SANDKASTEN_ALLOWED_IMAGES": "python"},
        ),
        FoundDockerEngine(image_user=User(7, 8)),
    ),
    "socket-agents": (
        replace(
            SOCKET,
            agents="/home/ada/agents",
            workflows="/home/ada/workflows",
            models=ModelAccess("http://host.docker.internal:11434/v1", "gpt-4o", "the model key"),
        ),
        FoundDockerEngine(socket_gid=998),
    ),
}


def shown(plan: InstallPlan) -> dict[str, Any]:
    return {
        "mode": plan.mode,
        "url": plan.url,
        "user": str(plan.user),
        "volumes": [[volume.name, volume.kind, volume.keep] for volume in plan.volumes],
        "networks": list(plan.networks),
        "containers": [
            {"name": container.name, "files": sorted(container.files), "config": container.body}
            for container in plan.containers
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
    settings = {variable for entry in documented() for variable in entry.variables}
    pairs = plan_of(*CASES[case]).daemon.body["Env"]
    assert {pair.partition("=")[0] for pair in pairs} <= settings


def test_no_secret_is_visible_through_the_engine():
    plan = plan_of(*CASES["remote"])
    visible = json.dumps(shown(plan)) + repr(plan) + repr(CASES["remote"])
    assert "secret key" not in visible
    assert b"the secret key" in plan.daemon.files.values()


def test_the_plans_mark_changes_only_with_the_request():
    spec, docker_engine = CASES["socket"]
    mark = plan_of(spec, docker_engine).mark
    assert plan_of(spec, docker_engine).mark == mark
    others = (
        replace(spec, image="other"),
        replace(spec, port=9),
        replace(spec, env={"A": "b"}),
        replace(spec, workspace="shared"),
        replace(spec, mode="sidecar"),
        replace(spec, agents="/agents"),
        replace(spec, models=ModelAccess("http://models/v1")),
    )
    assert len({mark, *(plan_of(other, docker_engine).mark for other in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("spec", "words", "hint"),
    [
        (replace(SOCKET, mode="sidcar"), "'sidcar' is not a valid mode", "sidecar"),
        (replace(SOCKET, mode="remote"), "--engine is not set", "--engine tcp://HOST:2376"),
        (replace(SOCKET, mode="remote", docker_host="ssh://box"), "ssh://box", "DOCKER_HOST"),
        (
            replace(SOCKET, mode="remote", docker_host="tcp://box:2376"),
            "tcp://box:2376 requires a client certificate",
            "--engine-certs",
        ),
    ],
)
def test_a_mode_without_its_requirements_is_refused(spec, words, hint):
    with pytest.raises(InvalidRequest) as refused:
        plan_of(spec, FoundDockerEngine())
    assert words in refused.value.message
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
    daemon = plan_of(spec, FoundDockerEngine()).daemon
    assert [pair for pair in daemon.body["Env"] if "MODELS" in pair] == [
        "SANDKASTEN_MODELS_BASE_URL=http://theirs/v1"
    ]
    assert daemon.files == {}


def test_files_are_accessible_to_the_daemon_only():
    archive = packed({"/data/key": b"k", "/data/certs/ca.pem": b"c"}, "/data", User(7, 8))
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        members = [
            (member.name, member.isdir(), oct(member.mode), member.uid, member.gid)
            for member in opened
        ]
    assert members == [
        ("certs", True, "0o700", 7, 8),
        ("certs/ca.pem", False, "0o600", 7, 8),
        ("key", False, "0o600", 7, 8),
    ]


def test_directories_of_this_machine_are_not_mounted_by_an_engine_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents").mkdir()
    here = str(tmp_path / "agents")
    definitions = up_checks.definitions
    assert (definitions(None, "agents", local=True), definitions(None, "agents", local=False)) == (
        here,
        "",
    )
    assert definitions("", "agents", local=True) == ""
    assert definitions("/srv/agents", "agents", local=False) == "/srv/agents"
    assert definitions(None, "workflows", local=True) == ""
    with pytest.raises(InvalidRequest, match="agents is relative, and the Docker Engine is on"):
        definitions("agents", "agents", local=False)
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
    for name, arguments in CASES.items():
        text = json.dumps(shown(plan_of(*arguments)), indent=2)
        (SNAPSHOTS / f"{name}.json").write_text(text + "\n")
