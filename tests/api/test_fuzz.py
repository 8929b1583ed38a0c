"""Requests generated from the OpenAPI document are answered as the document says.

Schemathesis generates valid and invalid requests for every route. None may end in a 5xx other than
those that say the daemon is temporarily unable. What the document calls invalid is refused, and
what it calls valid is not refused as malformed: `RELATIONS` and `CONTENT` of
`generated_requests` are what it cannot say.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import hypothesis
import pytest
import requests
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.api.daemon_in_thread import DaemonThread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import Case

pytestmark = [pytest.mark.slow, pytest.mark.promise("P37")]

# The operator allows all that the document allows, and nothing is fetched from elsewhere.
OPERATOR = {
    "SANDKASTEN_SESSION_MAX_LIFETIME_SECONDS": "1000086400",
    "SANDKASTEN_DEFAULTS_MAX_EXEC_TIMEOUT_MS": "86400000",
    "SANDKASTEN_IMAGES_PULL": "never",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in OPERATOR.items():
            patch.setenv(name, value)
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
    target: DaemonThread, http: requests.Session, full_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not above: every process that collects tests would import Schemathesis, which takes a second.
    from tests.api.generated_requests import OPERATIONS, both_kinds, tried

    # Constants of every module that is loaded would make the requests depend on earlier tests.
    monkeypatch.setattr(providers, "_get_local_constants", Constants)
    each = 1600 if full_size else 5
    seen: Counter[int] = Counter()
    failures: list[str] = []
    # What generates requests is built for each operation, which costs more than the requests.
    for operation in OPERATIONS if full_size else OPERATIONS[::12]:
        kinds = both_kinds(operation)

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
            status, wrong = tried(case, target, http)
            seen[status] += 1
            if wrong:
                failures.append(wrong)

        one()
        if len(failures) > 20:
            break
    assert failures == []
    assert sum(seen.values()) > (100_000 if full_size else 40)
    assert seen[200] > (20 if full_size else 2)
    assert {400, 404, *((422,) if full_size else ())} <= set(seen)
