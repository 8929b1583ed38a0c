"""A daemon with the backend `e2b` that is killed before, during and after a create."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from plugins.cloud.tests.faulty_proxy import faulty_proxy
from plugins.cloud.tests.killed_daemon import (
    ask,
    check_that_a_session_survives,
    check_that_nothing_is_left,
    kill_during_create,
    until,
)
from tests.cloud import e2b_service
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from tests.client.http.served import Served

pytestmark = [pytest.mark.root, pytest.mark.promise("P115")]
CREATE = ("POST", r"/v2/sandboxes$")
_STAGES = [
    # Asked for, and not made yet: it is made after the kill.
    (*CREATE, "hold"),
    # Made, and not answered.
    (*CREATE, "hang"),
    # Answered, and without our programs.
    ("POST", r"/files$", "hold"),
]


def _machines(provider: Served, owner: str) -> list[Any]:
    sandboxes = ask(provider, "GET", "/e2b/v2/sandboxes")
    return [
        sandbox for sandbox in sandboxes if sandbox["metadata"].get("sandkasten.owner") == owner
    ]


def _variables(provider: Served, url: str) -> dict[str, str]:
    return {
        "SANDKASTEN_E2B_ENABLED": "true",
        "SANDKASTEN_E2B_API_KEY": provider.key,
        "SANDKASTEN_E2B_DOMAIN": "localhost",
        "SANDKASTEN_E2B_API_URL": f"{url}/e2b",
        "SANDKASTEN_E2B_SANDBOX_URL": f"{provider.url}/e2b",
        "SANDKASTEN_E2B_TEMPLATE": e2b_service.TEMPLATE,
    }


@pytest.mark.parametrize(("method", "path", "kind"), _STAGES if LONG else _STAGES[1:2])
def test_a_daemon_killed_during_a_create_leaves_nothing_at_the_provider(
    tmp_path, method, path, kind
):
    provider = e2b_service.service()
    data = tmp_path / "data"
    machines = partial(_machines, provider)
    with faulty_proxy(provider.url) as proxy:
        variables = _variables(provider, proxy.url)
        environ = dict(variables)
        if path.startswith("/files"):
            environ["SANDKASTEN_E2B_SANDBOX_URL"] = f"{proxy.url}/e2b"
        fault = proxy.fault(method, path, kind)
        owner = kill_during_create(data, "e2b", environ, {}, fault.hit.is_set)
        proxy.clear()
        until(lambda: len(machines(owner)) == 1)
        check_that_nothing_is_left(data, "e2b", variables, machines)


@pytest.mark.skipif(not LONG, reason="make test-long runs it")
def test_a_session_outlives_a_killed_daemon_and_is_made_once(tmp_path):
    provider = e2b_service.service()
    variables = _variables(provider, provider.url)
    machines = partial(_machines, provider)
    check_that_a_session_survives(tmp_path / "data", "e2b", variables, {}, machines)
