"""Workspace names, and claims on workspaces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkasten.errors import Conflict, InvalidRequest, QuotaExceeded
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.ledger_record import Record
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.sandbox.workspace import (
    StoredWorkspace,
    WorkspaceRequest,
    WorkspaceRules,
    admit,
    check_count,
    check_size,
    checked_workspace_name,
    workspace_request,
)

ROW = Record(
    id=SandboxId("sbx_0123456789abcdef"),
    state=State.RUNNING,
    backend="local",
    image="host",
    profile="hardened",
    limits=Limits(),
    created_at=0,
    created_boottime=0,
    boot_id="b",
    idle_timeout_s=1,
    lifetime_s=1,
    workspace_id="w",
)
SHARED = replace(ROW, workspace_shared=True)


@pytest.mark.parametrize("name", ["a", "0", "a" * 64, "my-project", "v1.2_x", "a..b"])
def test_a_plain_workspace_name_is_accepted(name):
    assert checked_workspace_name(name) == name


@pytest.mark.promise("P22")
@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", ".hidden", "-rf", "_x", "a/b", "../a", "/etc", "a\0b", "a\n", "a b", "ä",
        "Ａ", "a" * 65, "a" * 10_000, "--size", "a\\b", "a:b", None, 7, b"a", ["a"],
    ],
)  # fmt: skip
def test_a_name_that_looks_like_a_path_or_an_option_is_refused(name):
    with pytest.raises(InvalidRequest) as refused:
        checked_workspace_name(name)
    assert refused.value.details == {"field": "workspace_id"}
    assert len(refused.value.message) < 200
    assert refused.value.hint.startswith("a name is 1 to 64")


def test_a_name_in_another_case_is_refused_with_the_right_one():
    with pytest.raises(InvalidRequest) as refused:
        checked_workspace_name("MyProject")
    assert refused.value.hint == "names are in lower case: myproject"


def test_a_workspace_without_a_holder_can_be_claimed():
    admit("w", False, [])
    admit("w", True, [])


def test_sharing_sandboxes_can_claim_a_workspace_together():
    admit("w", True, [SHARED, SHARED])


@pytest.mark.parametrize(
    ("shared", "holders"), [(False, [ROW]), (True, [ROW]), (False, [SHARED]), (True, [SHARED, ROW])]
)
def test_any_other_claim_is_refused_and_names_the_holder(shared, holders):
    with pytest.raises(Conflict) as refused:
        admit("w", shared, holders)
    assert holders[0].id in refused.value.message
    assert refused.value.details == {"workspace": "w", "sandbox_id": holders[0].id}


def test_a_request_has_a_workspace_name_mode_and_size():
    rules = WorkspaceRules(max_bytes=100 * MIB)
    assert workspace_request(CreateRequest(), rules) is None
    plain = workspace_request(CreateRequest(SandboxOptions(workspace_id="w")), rules)
    assert plain == WorkspaceRequest("w", shared=False, asked_bytes=None)
    asked = CreateRequest(
        SandboxOptions(workspace_id="w", workspace_mode="shared", limits={"workspace_mb": 64})
    )
    assert workspace_request(asked, rules) == WorkspaceRequest(
        "w", shared=True, asked_bytes=64 * MIB
    )
    too_large = CreateRequest(SandboxOptions(workspace_id="w", limits={"workspace_mb": 101}))
    with pytest.raises(InvalidRequest, match="workspace_mb must be from 1 to 100"):
        workspace_request(too_large, rules)


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_mode_without_a_name_is_refused(mode):
    with pytest.raises(InvalidRequest, match="requires a named workspace"):
        workspace_request(CreateRequest(SandboxOptions(workspace_mode=mode)), WorkspaceRules())


def test_an_unknown_mode_is_refused():
    with pytest.raises(InvalidRequest, match="'both' is not a valid workspace mode"):
        workspace_request(
            CreateRequest(SandboxOptions(workspace_id="w", workspace_mode="both")), WorkspaceRules()
        )


def test_a_size_must_equal_that_of_the_existing_workspace():
    stored = StoredWorkspace("w", "image", 64 * MIB, 0.0)
    check_size(stored, None)
    check_size(stored, 64 * MIB)
    with pytest.raises(Conflict) as smaller:
        check_size(stored, 32 * MIB)
    assert (smaller.value.message, "smaller" in smaller.value.hint) == (
        "workspace w has 64 MB, not 32 MB",
        True,
    )
    with pytest.raises(Conflict) as larger:
        check_size(stored, 65 * MIB)
    assert "sandkasten workspace resize" in larger.value.hint


def test_the_number_of_workspaces_is_bounded():
    check_count(1, WorkspaceRules(max_count=2))
    with pytest.raises(QuotaExceeded, match="there are 2 workspaces already"):
        check_count(2, WorkspaceRules(max_count=2))
