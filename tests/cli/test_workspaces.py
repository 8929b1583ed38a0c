"""`workspace …` and `--workspace`, each command on one data directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import InvalidRequest
from sandkasten_server.cli.quantities import megabytes
from tests.cli.conftest import Spoken

if TYPE_CHECKING:
    from pathlib import Path

Cli = Callable[..., Spoken]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="must be root to see what root sees"),
]


@pytest.fixture(autouse=True)
def on_disk(monkeypatch: pytest.MonkeyPatch, unisolated_only: None, tmp_path: Path) -> Path:
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("text", "figure"),
    [("500", 500), ("500M", 500), ("2G", 2048), ("1.5g", 1536), ("512k", 0.5), ("1TiB", 1048576)],
)
def test_a_size_without_a_unit_is_in_megabytes(text, figure):
    assert megabytes(text) == figure


@pytest.mark.parametrize("text", ["", "G", "-5", "1e9", "5X", "nan", "9" * 50, "5 M B"])
def test_an_invalid_size_is_refused(text):
    with pytest.raises(InvalidRequest, match="is not a size"):
        megabytes(text)


def test_a_workspace_is_created_used_and_deleted(cli: Cli):
    assert cli("workspace", "create", "w", "--size", "16M") == Spoken(0, "w\n", "")
    assert cli("workspace", "cp", "w", "x").out == "x\n"
    assert cli("workspace", "resize", "x", "32").out == "x\n"
    listed = cli("workspace", "ls")
    assert [line.split()[:4] for line in listed.out.splitlines()] == [
        ["NAME", "SIZE", "KIND", "AGE"],
        ["w", "16.0", "MiB", "image"],
        ["x", "32.0", "MiB", "image"],
    ]
    measured = json.loads(cli("workspace", "du", "x", "--json").out)
    assert [(one["name"], one["size_bytes"], one["used_by"]) for one in measured] == [
        ("x", 32 << 20, [])
    ]
    assert 0 < measured[0]["used_bytes"] < 65_536
    assert cli("workspace", "du").out.splitlines()[1].split()[:3] == ["w", "16.0", "MiB"]
    assert cli("workspace", "rm", "w", "x") == Spoken(0, "w\nx\n", "")
    assert json.loads(cli("workspace", "ls", "--json").out) == []


def test_a_new_workspace_is_described_by_one_json_document(cli: Cli):
    made = json.loads(cli("workspace", "create", "w", "--size", "16", "--json").out)
    assert set(made) == {
        "name", "workspace_id", "kind", "size_bytes", "created_at", "used_bytes",
        "allocated_bytes", "used_by", "shared", "problem",
    }  # fmt: skip
    assert (made["workspace_id"], made["kind"], made["shared"]) == ("w", "image", False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "../x"), "INVALID_REQUEST"),
        (("create", "x", "--size", "0"), "INVALID_REQUEST"),
        (("create", "w"), "CONFLICT"),
        (("cp", "w", "w"), "CONFLICT"),
        (("cp", "no", "x"), "WORKSPACE_NOT_FOUND"),
        (("resize", "w", "8"), "INVALID_REQUEST"),
        (("du", "no"), "WORKSPACE_NOT_FOUND"),
    ],
)
def test_an_invalid_workspace_request_is_an_error_with_a_code(cli: Cli, words, code):
    cli("workspace", "create", "w", "--size", "16")
    told = cli("workspace", *words, "--json")
    assert (told.status, json.loads(told.out)["code"]) == (125, code)
    assert cli("workspace", *words).err.splitlines()[-1].startswith("hint: ")


def test_a_failed_deletion_does_not_stop_the_others(cli: Cli):
    cli("workspace", "create", "w", "--size", "16")
    told = cli("workspace", "rm", "no", "w", "--json")
    answer = json.loads(told.out)
    assert (told.status, answer["removed"]) == (125, ["w"])
    assert [one["code"] for one in answer["failed"]] == ["WORKSPACE_NOT_FOUND"]


def test_a_damaged_workspace_is_listed_with_its_problem(cli: Cli, on_disk: Path):
    cli("workspace", "create", "w", "--size", "16")
    cli("workspace", "create", "good", "--size", "16")
    (on_disk / "workspaces" / "w" / "meta.json").write_text("{}")
    listed = cli("workspace", "ls")
    assert listed.status == 0
    assert "workspace w is damaged" in listed.out
    told = cli("create", "--workspace", "w", "--json")
    assert (told.status, json.loads(told.out)["code"]) == (125, "WORKSPACE_DAMAGED")
    assert cli("workspace", "rm", "w").status == 0


@pytest.mark.slow
def test_a_run_and_a_sandbox_use_the_named_workspace(cli: Cli):
    ran = cli("run", "--workspace", "w", "-c", "open('made', 'w').write('yes')")
    assert (ran.status, ran.err) == (0, "")
    made = json.loads(cli("create", "--workspace", "w", "--json").out)
    try:
        assert (made["workspace_id"], made["workspace_mode"]) == ("w", "exclusive")
        assert cli("exec", made["id"], "cat made").out == "yes"
        assert " w " in cli("ls").out.splitlines()[1]
        second = cli("run", "--workspace", "w", "-c", "pass", "--json")
        told = json.loads(second.out)
        assert (second.status, told["code"]) == (125, "CONFLICT")
        assert told["details"]["sandbox_id"] == made["id"]
    finally:
        cli("rm", "--all")
    shared = [json.loads(cli("create", "--workspace", "w", "--shared", "--json").out)["id"]] + [
        json.loads(cli("create", "--workspace", "w", "--shared", "--json").out)["id"]
    ]
    try:
        listed = json.loads(cli("workspace", "ls", "--json").out)
        assert (set(listed[0]["used_by"]), listed[0]["shared"]) == (set(shared), True)
    finally:
        assert cli("rm", "--all").status == 0
    assert cli("workspace", "rm", "w").status == 0


def test_a_mount_is_named_and_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m").write_text("42")
    monkeypatch.setenv("SANDKASTEN_POLICY_MOUNTS", f"models={tmp_path}/models:/models")
    ran = cli("run", "--mount", "models", "-c", "print(open('/models/m').read())")
    assert (ran.status, ran.out) == (0, "42\n")
    made = json.loads(cli("create", "--mount", "models", "--json").out)
    cli("rm", made["id"])
    shown = {"name": "models", "target": "/models", "mode": "ro", "below": ""}
    assert made["mounts"] == [shown]
    for name in ("/etc", "model"):
        told = json.loads(cli("create", "--mount", name, "--json").out)
        assert (told["code"], "known: models" in told["hint"]) == ("FORBIDDEN", True)
    assert json.loads(cli("config", "show", "--json").out)["policy.mounts"] == [
        f"models={tmp_path}/models:/models"
    ]
