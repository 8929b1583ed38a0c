"""A daemon with the backend `e2b` that is killed before, during and after a create."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.client.http.served import served
from tests.cloud import e2b_service
from tests.cloud.faulty_proxy import faulty_proxy
from tests.patience import PATIENCE_S
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


def _asked(daemon: Served, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if path.startswith("/v1") else {}
    headers |= {"Authorization": f"Bearer {daemon.key}", "X-API-KEY": daemon.key}
    request = urllib.request.Request(daemon.url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def _machines(provider: Served, owner: str) -> list[Any]:
    found = _asked(provider, "GET", "/e2b/v2/sandboxes")
    return [one for one in found if one["metadata"].get("sandkasten.owner") == owner]


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
    with faulty_proxy(provider.url) as proxy:
        variables = _variables(provider, proxy.url)
        if path.startswith("/files"):
            variables["SANDKASTEN_E2B_SANDBOX_URL"] = f"{proxy.url}/e2b"
        fault = proxy.fault(method, path, kind)
        with served(data, backend="e2b", **variables) as killed:
            asking = threading.Thread(target=_create_in_vain, args=(killed,))
            asking.start()
            assert fault.hit.wait(PATIENCE_S)
            killed.process.kill()
            killed.process.wait()
            asking.join(PATIENCE_S)
        owner = (data / "e2b" / "owner").read_text()
        proxy.clear()
        _until(lambda: len(_machines(provider, owner)) == 1)
        with served(data, backend="e2b", **_variables(provider, proxy.url)) as successor:
            _until(lambda: not _machines(provider, owner))
            assert _asked(successor, "GET", "/v1/sessions") == []
    assert not list((data / "e2b" / "machines").iterdir())


@pytest.mark.skipif(not LONG, reason="make test-long runs it")
def test_a_session_outlives_a_killed_daemon_and_is_made_once(tmp_path):
    provider = e2b_service.service()
    variables = _variables(provider, provider.url)
    data = tmp_path / "data"
    with served(data, backend="e2b", **variables) as killed:
        made = _asked(killed, "POST", "/v1/sessions", {})
        killed.process.kill()
        killed.process.wait()
    owner = (data / "e2b" / "owner").read_text()
    with served(data, backend="e2b", **variables) as successor:
        done = _asked(
            successor, "POST", f"/v1/sessions/{made['id']}/exec", {"command": "echo alive"}
        )
        assert done["stdout"] == "alive\n"
        assert len(_machines(provider, owner)) == 1
        _asked(successor, "DELETE", f"/v1/sessions/{made['id']}")
        assert not _machines(provider, owner)


def _create_in_vain(daemon: Served) -> None:
    with pytest.raises(OSError):  # noqa: PT011  (how the end is noticed depends on timing)
        _asked(daemon, "POST", "/v1/sessions", {})


def _until(met: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)
