"""Requests that Schemathesis generates from the OpenAPI document, and what may be answered."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.core import NotSet
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi import checks

from sandkasten_server.api.request.field_schemas import AT_MOST_ONE, EXACTLY_ONE
from tests.api.openapi_check import check, described
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from schemathesis import Case

    from tests.api.daemon_in_thread import DaemonThread

# They last as long as the client stays, or speak to other machines.
LEFT_OUT = {"/fs/watch", "/network/log", "/images/pull", "/images/build", "/images/import", "/pty"}
CANNOT_NOW = {502, 503, 504, 507}
CHECKS: list[Any] = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.positive_data_acceptance,
]
# Rules about two values at once, or about what a value stands for. No JSON Schema says these.
RELATIONS = (
    "contradict each other",
    "must be at most",
    "over max_exec_timeout_seconds",
    "env of a call is supported for",
    "timeout_seconds must be from",
    "only profile dev has other users",
    "is the name of the code file itself",
    "is not inside the workspace",
    "cannot be made smaller",
    "contains a NUL character",
    "contains '..'",
    "the cursor is not valid",
    "is not a valid rule",
    "has no valid port",
    "there is no preset",
    "exactly one of header, basic, query and body",
    "is not a valid header",
    "is not a host",
    "not one that this listing gave",
    "ended sessions are listed for one tenant at a time",
    "does not match the announced sha256",
    "metadata must be a JSON object",
    "the file is not UTF-8",
    # Of forms: which fields come with the query as well, and in which order.
    "the form",
    "is given twice",
    "path is both in",
)
# The request is well-formed; what is in it, or what the daemon has, is not enough.
CONTENT = {
    "INVALID_AGENT",
    "INVALID_CONFIGURATION",
    "INVALID_WORKFLOW",
    "NOT_REGULAR",
    "IS_A_DIRECTORY",
    "NOT_A_DIRECTORY",
    "FILE_TROUBLE",
    "PROVISIONING_FAILED",
    "UNSUPPORTED_BY_BACKEND",
}
# On loopback no key is needed, and a generated one is always wrong.
_OPEN = {**described(), "security": []}
ALL: list[Any] = [*schemathesis.openapi.from_dict(_OPEN).get_all_operations()]
PATHS = {one.ok().path for one in ALL}
OPERATIONS = [
    one.ok()
    for one in ALL
    # What is served below /v1 as well is the same handler.
    if one.ok().path.removeprefix("/v1") == one.ok().path
    or one.ok().path.removeprefix("/v1") not in PATHS
    if not any(one.ok().path.endswith(path) for path in LEFT_OUT)
]


def both_kinds(operation: Any) -> list[Any]:
    """Return strategies for valid and invalid requests."""
    return [operation.as_strategy(mode) for mode in GenerationMode]


def tried(case: Case, target: DaemonThread, http: requests.Session) -> tuple[int, str]:
    """Send a request; return the status, and what is wrong with the answer."""
    _prepare(case, target)
    try:
        reply = case.call(base_url=target.url, session=http, timeout=PATIENCE_S)
    except (requests.exceptions.InvalidHeader, UnicodeError, ValueError):
        # What the client's own library refuses never leaves it.
        return 0, ""
    except requests.exceptions.RequestException as exc:
        return -1, f"{case.method} {case.operation.path}: {exc!r}"
    return reply.status_code, _violation(case, reply)


def _prepare(case: Case, target: DaemonThread) -> None:
    """Name things that exist, keep waits short, and apply what only `x-` keywords say."""
    # The text of a body that is not there contains an address.
    body_text = "" if isinstance(case.body, NotSet) else str(case.body)
    ours = random.Random(str(case.path_parameters) + body_text).random() < 0.7
    if case.path_parameters and ours:
        names = {"id": target.session, "eid": target.exec, "port": "8000", "run_id": target.run}
        if case.operation.path == "/v1/tools/{name}":
            names["name"] = "sandbox_exec"
        if not case.operation.path.startswith("/v1/sessions/"):
            del names["id"]
        case.path_parameters.update({k: v for k, v in names.items() if k in case.path_parameters})
    if case.method.upper() == "DELETE" and case.operation.path == "/v1/sessions/{id}":
        case.path_parameters["id"] = "sbx_0000000000000000"
    if isinstance(case.query, dict):
        for wait in ("wait", "wait_seconds"):
            if isinstance(case.query.get(wait), int | float):
                case.query[wait] = 0.01
    body: Any = case.body
    if isinstance(body, dict):
        for packages in ("pip_packages", "npm_packages"):
            if isinstance(body.get(packages), list):
                # A valid name would be looked up in its registry.
                body[packages] = [name for name in body[packages] if name == ""]
        for seconds in ("ttl_seconds", "idle_timeout_seconds", "lifetime_seconds"):
            if case.method.upper() == "PATCH" and isinstance(body.get(seconds), int | float):
                # The session lasts longer than the test.
                body[seconds] += 86_400 if body[seconds] >= 1 else 0
    if _is_valid(case):
        _choose(case)


def _choose(case: Case) -> None:
    """Give one of the parameters of which the document says that they exclude each other."""
    rules = case.operation.definition.raw
    one = rules.get(EXACTLY_ONE, ())
    query = dict(case.query or {})
    given = [name for name in (*one, *rules.get(AT_MOST_ONE, ())) if name in query]
    for name in given[1:]:
        del query[name]
    if one and not given:
        query[one[0]] = "a"
    case.query = query


def _is_valid(case: Case) -> bool:
    assert case.meta is not None
    return case.meta.generation.mode.is_positive


def _violation(case: Case, reply: Any) -> str:
    """Return what is wrong with an answer; empty if nothing."""
    where = f"{case.as_curl_command()[:600]}: {reply.status_code}"
    if reply.status_code >= 500 and reply.status_code not in CANNOT_NOW:
        return where
    try:
        path = urlsplit(reply.request.url or "").path
        kind = ",".join(reply.headers.get("content-type", []))
        check(case.method.upper(), path, reply.status_code, kind, reply.content)
        case.validate_response(reply, checks=CHECKS[:-1] if _excused(case, reply) else CHECKS)
    except AssertionError as exc:
        return f"{where}: {exc}"
    except (Failure, FailureGroup) as exc:
        told = exc.exceptions if isinstance(exc, FailureGroup) else [exc]
        return f"{where}: {[str(one)[:600] for one in told]} {reply.content[:300]!r}"
    return ""


def _excused(case: Case, reply: Any) -> bool:
    """Return whether a valid request was refused for what its document cannot say."""
    if reply.status_code not in (400, 422, 413) or not _is_valid(case) or not reply.content:
        return False
    error = json.loads(reply.content)
    return error["code"] in CONTENT or any(one in error["message"] for one in RELATIONS)
