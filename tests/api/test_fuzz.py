"""Requests generated from the OpenAPI document are answered as the document says.

Schemathesis generates valid and invalid requests for every route. None may end in a 5xx other than
those that say the daemon is temporarily unable.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.api.daemon_in_thread import DaemonThread
from tests.api.openapi_check import check, described
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import Case

pytestmark = [pytest.mark.slow, pytest.mark.promise("P37")]

# They last as long as the client stays, or speak to other machines.
LEFT_OUT = {"/fs/watch", "/images/pull", "/images/import", "/pty"}
CANNOT_NOW = {502, 503, 504, 507}
ALL: list[Any] = [*schemathesis.openapi.from_dict(described()).get_all_operations()]
PATHS = {one.ok().path for one in ALL}
OPERATIONS = [
    one.ok()
    for one in ALL
    # What is served below /v1 as well is the same handler.
    if one.ok().path.removeprefix("/v1") == one.ok().path
    or one.ok().path.removeprefix("/v1") not in PATHS
    if not any(one.ok().path.endswith(path) for path in LEFT_OUT)
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    with DaemonThread(tmp_path_factory.mktemp("fuzz") / "data") as one:
        yield one


@pytest.fixture(scope="module")
def http() -> Iterator[requests.Session]:
    with requests.Session() as one:
        yield one


@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow_loop
def test_no_request_generated_from_the_openapi_document_breaks_the_daemon(
    target: DaemonThread, http: requests.Session, full_size: bool
) -> None:
    each = 1600 if full_size else 8
    seen: Counter[int] = Counter()
    failures: list[str] = []
    for operation in OPERATIONS:
        kinds = [_strategy(operation, mode) for mode in GenerationMode]

        @hypothesis.seed(1)
        @hypothesis.settings(
            max_examples=each,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=st.one_of(kinds))
        def one(case: Case) -> None:
            status, wrong = _tried(case, target, http)
            seen[status] += 1
            if wrong:
                failures.append(wrong)

        one()
        if len(failures) > 20:
            break
    assert failures == []
    assert sum(seen.values()) > (100_000 if full_size else 400)
    assert seen[200] > 20
    assert {400, 404, 422} <= set(seen)


def _strategy(operation: Any, mode: GenerationMode) -> Any:
    return operation.as_strategy(mode)


def _tried(case: Case, target: DaemonThread, http: requests.Session) -> tuple[int, str]:
    ours = random.Random(str(case.path_parameters) + str(case.body)).random() < 0.7
    for name in [one for one in case.headers or () if one.lower() == "authorization"]:
        # Made up, so always wrong: it would never come past the door.
        del case.headers[name]
    if case.path_parameters and ours:
        names = {"id": target.session, "eid": target.exec, "port": "8000", "run_id": target.run}
        if case.operation.path == "/v1/tools/{name}":
            names["name"] = "sandbox_exec"
        case.path_parameters.update({k: v for k, v in names.items() if k in case.path_parameters})
    if case.method.upper() == "DELETE" and case.operation.path == "/v1/sessions/{id}":
        case.path_parameters["id"] = "sbx_0000000000000000"
    if isinstance(case.query, dict):
        for wait in ("wait", "wait_seconds"):
            if isinstance(case.query.get(wait), int | float):
                case.query[wait] = 0.01
    try:
        reply = case.call(base_url=target.url, session=http, timeout=PATIENCE_S)
    except (requests.exceptions.InvalidHeader, UnicodeError, ValueError):
        # What the client's own library refuses never leaves it.
        return 0, ""
    except requests.exceptions.RequestException as exc:
        return -1, f"{case.method} {case.operation.path}: {exc!r}"
    where = f"{case.as_curl_command()[:600]}: {reply.status_code}"
    if reply.status_code >= 500 and reply.status_code not in CANNOT_NOW:
        return reply.status_code, where
    try:
        path = urlsplit(reply.request.url or "").path
        kind = ",".join(reply.headers.get("content-type", []))
        check(case.method.upper(), path, reply.status_code, kind, reply.content)
    except AssertionError as exc:
        return reply.status_code, f"{where}: {exc}"
    return reply.status_code, ""
