"""The audit log: every change before its answer, refusals sparingly, secrets never."""

from __future__ import annotations

import pytest

from sandkasten.api.request.request_audit import action_of
from sandkasten.errors import QuotaExceeded
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.store.memory_store import MemoryJournal


@pytest.fixture
async def daemon(engine, tmp_path):
    async with booked(engine, tmp_path / "data") as one:
        yield one


async def audited(daemon, query: str = ""):
    found = await daemon.ask("GET", f"/v1/audit{query}", headers=AS_OPERATOR)
    assert found.status == 200, found.raw
    return found.json["entries"]


@pytest.mark.promise("P70")
async def test_changes_are_audited_with_key_target_and_outcome(daemon):
    headers = await new_key(daemon, tenant="acme", scopes=["sessions", "files"])
    key_id = "key_" + headers["Authorization"].split("-")[1]
    session = (await daemon.ask("POST", "/v1/sessions", {}, headers=headers)).json["id"]
    await daemon.ask("GET", f"/v1/sessions/{session}", headers=headers)
    await daemon.ask("POST", f"/v1/sessions/{session}/exec", {"cmd": ["true"]}, headers=headers)
    await daemon.ask(
        "DELETE", f"/v1/sessions/{session}", headers={**headers, "X-Request-Id": "mine"}
    )
    await daemon.ask("DELETE", "/v1/sessions/sbx_0000000000000000", headers=headers)
    rows = await audited(daemon)
    assert [(r["tenant"], r["key_id"], r["action"], r["target"], r["outcome"]) for r in rows] == [
        ("default", None, "key.create", key_id, "ok"),
        ("acme", key_id, "session.create", session, "ok"),
        ("acme", key_id, "session.destroy", session, "ok"),
        ("acme", key_id, "session.destroy", "sbx_0000000000000000", "SESSION_NOT_FOUND"),
    ]
    assert rows[2]["request_id"] == "mine"
    assert headers["Authorization"].split()[1] not in str(rows)
    assert [r["seq"] for r in await audited(daemon, f"?since_seq={rows[1]['seq']}&limit=1")] == [
        rows[2]["seq"]
    ]
    assert len(await audited(daemon, "?tenant=acme&action=session.destroy")) == 2
    assert [r["seq"] for r in await audited(daemon, "?limit=1")] == [rows[-1]["seq"]]


@pytest.mark.promise("P70")
async def test_refused_keys_are_audited_sparingly_and_without_the_key(daemon):
    for _ in range(60):
        headers = {"Authorization": "Bearer sk-guessed-by-somebody"}
        assert (await daemon.ask("GET", "/v1/sessions", headers=headers)).status == 401
    rows = await audited(daemon, "?action=auth.refuse")
    assert 0 < len(rows) <= 20
    assert {(r["tenant"], r["target"], r["outcome"]) for r in rows} == {
        ("", "127.0.0.1", "UNAUTHORIZED")
    }
    assert "guessed" not in str(rows)


async def test_a_missing_scope_is_audited_with_the_key(daemon):
    headers = await new_key(daemon, tenant="acme", scopes=["metrics"])
    assert (await daemon.ask("POST", "/v1/sessions", {}, headers=headers)).status == 403
    row = (await audited(daemon))[-1]
    assert (row["tenant"], row["action"], row["outcome"]) == (
        "acme",
        "session.create",
        "FORBIDDEN",
    )
    assert row["key_id"] is not None


async def test_only_the_operator_can_read_the_audit(daemon):
    headers = await new_key(daemon, tenant="acme")
    assert (await daemon.ask("GET", "/v1/audit", headers=headers)).status == 403


class _Full(MemoryJournal):
    async def audit(self, row):
        raise QuotaExceeded("full", quota="disk")


async def test_an_audit_failure_is_logged_and_undoes_nothing(engine, caplog):
    async with serving(engine, journal=_Full()) as daemon:
        session = await daemon.session()
        assert (await daemon.ask("DELETE", f"/v1/sessions/{session}")).status == 200
    told = [record.sandkasten for record in caplog.records if record.message == "audit.unwritten"]
    assert [(one["action"], one["target"]) for one in told] == [
        ("session.create", session),
        ("session.destroy", session),
    ]


@pytest.mark.parametrize(
    ("method", "path", "action"),
    [
        ("POST", "/v1/sessions", "session.create"),
        ("PATCH", "/v1/sessions/{id}", "session.update"),
        ("DELETE", "/v1/sessions/{id}", "session.destroy"),
        ("GET", "/v1/sessions/{id}", None),
        ("HEAD", "/v1/files/{key:path}", None),
        ("POST", "/v1/sessions/{id}/exec", None),
        ("POST", "/v1/sessions/{id}/fs/write", None),
        ("ANY", "/v1/sessions/{id}/ports/{port}/{rest:path}", None),
        ("POST", "/v1/sessions/{id}/files/stage", "session.files.stage"),
        ("DELETE", "/v1/keys/{id}", "key.revoke"),
        ("POST", "/v1/files", "file.create"),
        ("DELETE", "/v1/files/{key:path}", "file.delete"),
        ("POST", "/v1/images/pull", "image.pull"),
        ("DELETE", "/v1/images/{name:path}", "image.delete"),
        ("DELETE", "/v1/workspaces/{id}", "workspace.delete"),
        ("POST", "/v1/workspaces/{id}/fs/write", "workspace.fs.write"),
        ("POST", "/v1/run", None),
        ("GET", "/healthz", None),
    ],
)
def test_an_action_is_named_by_its_route(method, path, action):
    assert action_of(method, path) == action
