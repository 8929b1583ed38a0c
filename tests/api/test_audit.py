"""The audit log: every change before its answer, refusals sparingly, secrets never."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shlex

import pytest

from sandkasten.errors import QuotaExceeded
from sandkasten.model.audit_chain import check_lines
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.previews.preview_access import Previews
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.api.request.request_audit import action_of
from sandkasten_server.records.preview_directory import PreviewDirectory
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.patience import PATIENCE_S


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
    rows = await audited(daemon, "?kind=change")
    assert [(r["tenant"], r["key_id"], r["action"], r["target"], r["outcome"]) for r in rows] == [
        ("default", None, "key.create", key_id, "ok"),
        ("acme", key_id, "session.create", session, "ok"),
        ("acme", key_id, "session.destroy", session, "ok"),
        ("acme", key_id, "session.destroy", "sbx_0000000000000000", "SESSION_NOT_FOUND"),
    ]
    assert rows[2]["request_id"] == "mine"
    assert headers["Authorization"].split()[1] not in str(rows)
    after = f"?kind=change&since_seq={rows[1]['seq']}&limit=1"
    assert [r["seq"] for r in await audited(daemon, after)] == [rows[2]["seq"]]
    assert len(await audited(daemon, "?tenant=acme&action=session.destroy")) == 2
    assert [r["seq"] for r in await audited(daemon, "?kind=change&limit=1")] == [rows[-1]["seq"]]


@pytest.mark.promise("P70")
async def test_a_record_of_a_change_says_what_was_changed(engine, tmp_path):
    ports = await PreviewDirectory.open(tmp_path / "previews")
    previews = Previews(PreviewRules(), ports, SystemClock())
    async with booked(engine, tmp_path / "data", previews=previews) as daemon:
        await new_key(daemon, tenant="acme", scopes=["sessions", "files"])
        made = await daemon.ask("POST", "/v1/sessions", {}, headers=AS_OPERATOR)
        box = f"/v1/sessions/{made.json['id']}"
        body = {"ttl_seconds": 900, "labels": {"a": "secret?"}}
        links = []
        for path, given in (
            (box, body),
            (f"{box}/previews", {"port": 8000}),
            (f"{box}/previews", {"port": 8001, "public": True}),
        ):
            method = "PATCH" if path == box else "POST"
            found = await daemon.ask(method, path, given, headers=AS_OPERATOR)
            assert found.status < 300, found.raw
            links.append(found.json.get("link_id"))
        await daemon.ask("DELETE", f"{box}/previews/{links[1]}", headers=AS_OPERATOR)
        await daemon.ask("DELETE", f"{box}/previews", headers=AS_OPERATOR)
        rows = await audited(daemon, "?kind=change")
    changes = [(row["action"], row["detail"]) for row in rows]
    assert [one for one in changes if one[0] != "session.create"] == [
        ("key.create", {"tenant": "acme", "scopes": "files sessions"}),
        ("session.update", {"fields": "labels ttl_seconds"}),
        ("session.previews", {"port": "8000", "public": "false", "link": links[1]}),
        ("session.previews", {"port": "8001", "public": "true"}),
        ("session.previews", {"revoked": links[1]}),
        ("session.previews", {"revoked": "all"}),
    ]


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


@pytest.mark.parametrize(
    ("shown", "recorded"),
    [
        ({}, 0),
        ({"Cookie": "another=1"}, 0),
        ({"Authorization": "Bearer sk-guessed"}, 1),
        ({"Authorization": "Basic dTpw"}, 1),
        ({"X-API-Key": "e2b_guessed"}, 1),
        ({"X-Sandkasten-Login": "proof of a login that has ended"}, 1),
    ],
)
async def test_a_request_that_shows_no_key_is_refused_and_not_audited(daemon, shown, recorded):
    await new_key(daemon)
    for method, path in (("GET", "/v1/login"), ("GET", "/v1/sessions"), ("GET", "/v1/missing")):
        assert (await daemon.ask(method, path, headers=shown)).status == 401
    assert len(await audited(daemon, "?action=auth.refuse")) == 3 * recorded


async def test_a_wrong_key_of_a_login_is_audited(daemon):
    own = {"Origin": str(daemon.url)}
    for body, status in (({}, 422), ({"api_key": "sk-guessed"}, 401)):
        assert (await daemon.ask("POST", "/v1/login", body, headers=own)).status == status
    assert len(await audited(daemon, "?action=auth.refuse")) == 1


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
    for path in ("/v1/audit", "/v1/audit/verify", "/v1/audit/export"):
        assert (await daemon.ask("GET", path, headers=headers)).status == 403


@pytest.mark.promise("P86")
async def test_work_inside_a_sandbox_is_recorded_with_key_request_and_resource_use(daemon):
    headers = await new_key(daemon, tenant="acme", scopes=["sessions", "files"])
    key_id = "key_" + headers["Authorization"].split("-")[1]
    box = (await daemon.ask("POST", "/v1/sessions", {}, headers=headers)).json["id"]
    path = f"/v1/sessions/{box}"
    secret = "sk-" + "ab12" * 6
    command = {"cmd": ["sh", "-c", f"echo {secret}; exit 3"]}
    done = await daemon.ask(
        "POST", f"{path}/exec", command, headers={**headers, "X-Request-Id": "mine"}
    )
    write = {"path": "a.txt", "content": "hello"}
    assert (await daemon.ask("POST", f"{path}/fs/write", write, headers=headers)).status < 300
    denied = {"path": "/etc/passwd", "content": "x"}
    assert (await daemon.ask("POST", f"{path}/fs/write", denied, headers=headers)).status == 403
    denied_read = f"{path}/fs/read?path=/etc/shadow"
    assert (await daemon.ask("GET", denied_read, headers=headers)).status == 403
    await daemon.ask("DELETE", path, headers=headers)
    rows = await audited(daemon, f"?session_id={box}")
    execs = [one for one in rows if one["kind"] == "exec"]
    (end,) = [one for one in execs if one["action"] == "exec.end"]
    assert (end["target"], end["outcome"], end["key_id"], end["request_id"], end["tenant"]) == (
        done.json["exec_id"],
        "completed",
        key_id,
        "mine",
        "acme",
    )
    assert end["detail"]["exit_code"] == "3"
    assert end["usage"]["stdout_bytes"] == len(secret) + 1
    assert end["usage"]["peak_memory_bytes"] > 0
    # One record if it ended at once, and else two.
    assert "echo [redacted]; exit 3" in execs[0]["detail"]["command"]
    assert secret not in str(rows)
    files = [
        (one["action"], one["target"], one["outcome"]) for one in rows if one["kind"] == "file"
    ]
    assert files == [
        ("file.write", "/workspace/a.txt", "ok"),
        ("file.write", "/etc/passwd", "FORBIDDEN"),
    ]
    policy = [(r["action"], r["target"], r["outcome"]) for r in rows if r["kind"] == "policy"]
    assert policy == [
        ("policy.allow", "session.create", "ok"),
        ("policy.refuse", "file.write", "FORBIDDEN"),
        ("policy.refuse", box, "FORBIDDEN"),
    ]
    assert [r["outcome"] for r in rows if r["action"] == "session.end"] == ["destroyed"]
    used = await audited(daemon, f"?kind=key&key_id={key_id}")
    assert [(one["action"], one["detail"]["address"]) for one in used] == [("key.use", "127.0.0.1")]


class Two:
    """Two keys of a tenant, and a sandbox of the first."""

    def __init__(self, daemon, *headers):
        self.daemon = daemon
        self.headers = headers
        self.keys = ["key_" + one["Authorization"].split("-")[1] for one in headers]
        self.box = ""

    async def ask(self, who, method, path, body=None, **more):
        found = await self.daemon.ask(
            method,
            f"/v1/sessions/{self.box}{path}" if self.box else path,
            body,
            headers={**self.headers[who], **more},
        )
        assert found.status < 300, found.raw
        return found.json

    async def start(self, who, request):
        body = {"cmd": ["sleep", "1000"], "background": True}
        return (await self.ask(who, "POST", "/exec", body, **{"X-Request-Id": request}))["exec_id"]

    async def rows(self, target, *actions):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                rows = await audited(self.daemon, f"?target={target}")
                found = {row["action"]: (row["key_id"], row["request_id"]) for row in rows}
                if set(actions) <= set(found):
                    return found
                await asyncio.sleep(0.02)


@pytest.fixture
async def two(daemon):
    one = Two(daemon, await new_key(daemon, tenant="acme"), await new_key(daemon, tenant="acme"))
    one.box = (await one.ask(0, "POST", "/v1/sessions", {}))["id"]
    return one


@pytest.mark.promise("P86")
@pytest.mark.parametrize(
    ("method", "path", "body", "action"),
    [
        ("POST", "/execs/{exec}/signal", {"signal": "CONT"}, "exec.signal"),
        ("DELETE", "/shells/default", None, "shell.close"),
        ("POST", "/contexts/{context}/interrupt", {}, "context.interrupt"),
        ("POST", "/contexts/{context}/restart", {}, "context.restart"),
        ("DELETE", "/contexts/{context}", None, "context.remove"),
    ],
)
async def test_what_ends_or_disturbs_the_work_of_another_is_recorded(
    two, method, path, body, action
):
    await two.ask(0, "POST", "/exec", {"cmd": "sleep 1000 &"})
    ids = {"exec": await two.start(0, "one")}
    if "{context}" in path:
        ids["context"] = (await two.ask(0, "POST", "/contexts", {}))["id"]
    await two.ask(1, method, path.format(**ids), body)
    target = ids["context"] if "{context}" in path else ids["exec"]
    rows = await two.rows("default" if action == "shell.close" else target, action)
    assert rows[action][0] == two.keys[1]
    # Records about another command are not commands themselves.
    history = await two.ask(0, "GET", "/execs")
    assert {row["command"] for row in history} <= {"sleep 1000 &", "sleep 1000", "python kernel"}


@pytest.mark.promise("P86")
async def test_names_that_are_not_utf8_stay_different(daemon):
    box = (await daemon.ask("POST", "/v1/sessions", {}, headers=AS_OPERATOR)).json["id"]
    for name in (b"/workspace/\xff", b"/workspace/\xfe", "/workspace/ü".encode()):
        body = {"path_b64": base64.b64encode(name).decode(), "contents": "x"}
        made = await daemon.ask("POST", f"/v1/sessions/{box}/fs/write", body, headers=AS_OPERATOR)
        assert made.status < 300, made.raw
    rows = await audited(daemon, f"?session_id={box}&kind=file")
    assert [row["target"] for row in rows] == [
        "/workspace/\\xff",
        "/workspace/\\xfe",
        "/workspace/ü",
    ]


@pytest.mark.promise("P86")
async def test_a_command_that_is_cut_has_its_size_and_hash(daemon):
    box = (await daemon.ask("POST", "/v1/sessions", {}, headers=AS_OPERATOR)).json["id"]
    for command in ("#" + "x" * 9000 + "\necho hidden", ["echo", *["ä" * 100] * 100]):
        done = await daemon.ask(
            "POST", f"/v1/sessions/{box}/exec", {"cmd": command}, headers=AS_OPERATOR
        )
        line = command if isinstance(command, str) else shlex.join(command)
        (row, *_) = await audited(daemon, f"?target={done.json['exec_id']}")
        assert row["detail"]["command_bytes"] == str(len(line.encode()))
        assert row["detail"]["command_sha256"] == hashlib.sha256(line.encode()).hexdigest()
        assert row["detail"]["command"].startswith(line[:4000])


@pytest.mark.promise("P86")
async def test_names_of_variables_are_recorded_and_those_that_carry_code_first(daemon):
    env = {f"A{n}": "hush" for n in range(200)} | {"LD_PRELOAD": "hush", "BASH_ENV": "hush"}
    made = await daemon.ask("POST", "/v1/sessions", {"env": env}, headers=AS_OPERATOR)
    box = made.json["id"]
    body = {"cmd": ["true"], "env": env}
    done = await daemon.ask("POST", f"/v1/sessions/{box}/exec", body, headers=AS_OPERATOR)
    (allowed,) = await audited(daemon, f"?session_id={box}&action=policy.allow")
    (command, *_) = await audited(daemon, f"?target={done.json['exec_id']}")
    for row in (allowed, command):
        assert row["detail"]["env"].startswith("BASH_ENV LD_PRELOAD A0 A1 ")
        assert "more" in row["detail"]["env"]
        assert "hush" not in str(row)


@pytest.mark.promise("P86")
async def test_a_request_beyond_the_policy_is_recorded_as_a_refusal(daemon):
    body = {"mounts": ["/etc:/x"]}
    refused = await daemon.ask("POST", "/v1/sessions", body, headers=AS_OPERATOR)
    assert refused.json["code"] == "FORBIDDEN", refused.raw
    (row,) = await audited(daemon, "?kind=policy")
    assert (row["action"], row["target"], row["outcome"]) == (
        "policy.refuse",
        "session.create",
        "FORBIDDEN",
    )
    assert row["detail"]["message"] == refused.json["message"]


@pytest.mark.promise("P86")
async def test_the_audit_is_verified_and_exported_over_http(daemon):
    await new_key(daemon, tenant="acme")
    await new_key(daemon, tenant="acme")
    exported = await daemon.ask("GET", "/v1/audit/export", headers=AS_OPERATOR)
    lines = exported.raw.splitlines(keepends=True)
    assert check_lines(lines).ok
    assert [json.loads(line)["action"] for line in lines] == ["key.create"] * 2
    told = (await daemon.ask("GET", "/v1/audit/verify", headers=AS_OPERATOR)).json
    assert (told["ok"], told["records"], told["flaw"]) == (True, 2, None)
    assert told["head"] == json.loads(lines[-1])["hash"]
    wrong = f"/v1/audit/verify?seq=2&hash={'0' * 64}"
    flaw = (await daemon.ask("GET", wrong, headers=AS_OPERATOR)).json["flaw"]
    assert (flaw["seq"], flaw["flaw"]) == (2, "changed")
    for half, missing in (("seq=2", "hash"), (f"hash={'0' * 64}", "seq")):
        refused = await daemon.ask("GET", f"/v1/audit/verify?{half}", headers=AS_OPERATOR)
        assert (refused.status, refused.json["details"]["field"]) == (400, missing)


class _Full:
    def record(self, row):
        pass

    def record_soon(self, note):
        pass

    async def record_lasting(self, row):
        raise QuotaExceeded("full", quota="disk")


async def test_an_audit_failure_is_logged_and_undoes_nothing(engine, caplog):
    async with serving(engine, audit=_Full()) as daemon:
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
        ("POST", "/v1/images/build", "image.build"),
        ("DELETE", "/v1/images/{name:path}", "image.delete"),
        ("DELETE", "/v1/workspaces/{id}", "workspace.delete"),
        ("POST", "/v1/workspaces/{id}/fs/write", "workspace.fs.write"),
        ("POST", "/v1/run", None),
        ("GET", "/healthz", None),
    ],
)
def test_an_action_is_named_by_its_route(method, path, action):
    assert action_of(method, path) == action
