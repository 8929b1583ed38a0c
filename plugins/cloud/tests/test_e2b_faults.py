"""The backend `e2b` on another daemon whose answers fail: named errors, and nothing is left."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import e2b
import pytest

from plugins.cloud.tests.faulty_proxy import FaultyProxy, faulty_proxy
from sandkasten.errors import BackendUnavailable, Busy, ImageNotFound, SandboxLost
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_cloud import machine_plan
from sandkasten_cloud.e2b import e2b_provider
from sandkasten_cloud.e2b.e2b_options import E2bOptions
from sandkasten_cloud.machine_plan import PROGRAMS
from sandkasten_cloud.machine_records import MachineRecords
from sandkasten_contract.box import Box
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.backends.gate import entry_keys
from tests.cloud import e2b_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from sandkasten_cloud.backend import CloudBackend
    from tests.client.http.served import Served

SPEC = CellSpec(image=Image(e2b_service.TEMPLATE, kind="engine"))
CREATE = ("POST", r"/v2/sandboxes$")
pytestmark = [pytest.mark.root, pytest.mark.promise("P115")]


@pytest.fixture
def daemon() -> Served:
    """Return the service; it starts here, where no event loop waits for it."""
    return e2b_service.service()


@pytest.fixture
def proxy(daemon: Served) -> Iterator[FaultyProxy]:
    with faulty_proxy(daemon.url) as running:
        yield running


@pytest.fixture
async def backend(
    tmp_path: Path, daemon: Served, proxy: FaultyProxy
) -> AsyncIterator[CloudBackend]:
    opened = e2b_service.open_backend(tmp_path, e2b_service.options_for(daemon, proxy.url))
    yield opened
    proxy.clear()
    leftovers = await opened.owned()
    for sandbox_id in leftovers:
        await opened.discard(sandbox_id)
    await opened.aclose()
    # A failed create removes what it made, unless the provider was away.
    assert not leftovers


@pytest.mark.parametrize(
    ("kind", "status", "error", "words"),
    [
        ("answer", 500, BackendUnavailable, "does not answer as it should"),
        ("answer", 401, BackendUnavailable, "E2B_API_KEY"),
        ("answer", 403, BackendUnavailable, "E2B_API_KEY"),
        ("answer", 429, Busy, "try again"),
        ("cut", 0, BackendUnavailable, "does not answer as it should"),
        ("hang", 0, BackendUnavailable, "does not answer as it should"),
    ],
)
async def test_a_create_that_fails_is_named_and_leaves_nothing(
    tmp_path, daemon, proxy, backend, kind, status, error, words
):
    fault = proxy.fault(*CREATE, kind, status, headers={"Retry-After": "0"})
    options = e2b_service.options_for(daemon, proxy.url)
    if kind == "hang":
        options = replace(options, timeout_s=1.5)
    hasty = e2b_service.open_backend(tmp_path, options)
    with pytest.raises(error) as caught:
        await hasty.create(new_sandbox_id(), SPEC)
    assert fault.hit.is_set()
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert daemon.key not in f"{caught.value!r} {caught.value.details}"
    assert caught.value.retryable
    await hasty.aclose()


async def test_a_rate_limit_is_waited_for_and_nothing_is_made_twice(proxy, backend):
    proxy.fault(*CREATE, "answer", 429, headers={"Retry-After": "1"}, times=1)
    proxy.fault(*CREATE, "answer", 503, headers={"Retry-After": "0"}, times=1)
    sandbox_id = new_sandbox_id()
    cell = await backend.create(sandbox_id, SPEC)
    heads = proxy.requests(*CREATE)
    assert len(heads) == 3
    assert len({head["idempotency-key"] for head in heads}) == 1
    assert list(await backend.owned()) == [sandbox_id]
    await cell.destroy()


async def test_a_template_that_does_not_exist_is_named(backend):
    with pytest.raises(ImageNotFound, match="E2B has no template nosuch") as caught:
        await backend.create(new_sandbox_id(), CellSpec(image=Image("nosuch", kind="engine")))
    assert "nosuch" in caught.value.hint
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "template 'base' not found"),
        (404, "tag 'v7' does not exist for template 'base'"),
        (403, "you don't have access to template 'base'"),
        (400, "template 'base' is not available in the requested cluster"),
        (404, "no such thing"),
    ],
)
async def test_each_answer_of_e2b_about_a_template_is_named(proxy, backend, status, message):
    proxy.fault(*CREATE, "answer", status, body=json.dumps({"code": status, "message": message}))
    with pytest.raises(ImageNotFound, match=message):
        await backend.create(new_sandbox_id(), SPEC)


async def test_a_template_that_the_service_cannot_pull_is_no_outage(daemon, tmp_path):
    options = {
        "data_dir": str(tmp_path / "data"),
        "backends.e2b.enabled": "true",
        "backends.e2b.api_url": f"{daemon.url}/e2b",
        "backends.e2b.sandbox_url": f"{daemon.url}/e2b",
    }
    engine = await open_engine(load(options, {"E2B_API_KEY": daemon.key}, tmp_path))
    wanted = SandboxOptions(backend="e2b", image=e2b_service.UNREACHABLE)
    with pytest.raises(ImageNotFound, match="no/such:tag.*could not be pulled"):
        await engine.create(CreateRequest(wanted))
    assert engine.degraded() == []
    assert await engine.list() == []
    assert list((tmp_path / "data" / "e2b" / "machines").iterdir()) == []
    await engine.aclose()


LISTED = {
    "templateID": "t", "sandboxID": "s1", "clientID": "c", "startedAt": "2026-01-01T00:00:00Z",
    "endAt": "2026-01-01T00:00:00Z", "cpuCount": 1, "memoryMB": 1, "diskSizeMB": 1,
    "state": "running", "envdVersion": "0.6.4",
}  # fmt: skip
MADE = {"templateID": "t", "sandboxID": "s1", "clientID": "c", "envdVersion": "0.6.4"}
NESTED = "[" * 200_000


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "null"),
        (200, '{"sandboxes": []}'),
        (200, "[null]"),
        (200, "[[]]"),
        (200, json.dumps([{**LISTED, "startedAt": None}])),
        (200, json.dumps([{**LISTED, "state": ["running"]}])),
        (200, json.dumps([{**LISTED, "volumeMounts": [None]}])),
        (200, json.dumps([{**LISTED, "volumeMounts": 7}])),
        (200, json.dumps([{**LISTED, "metadata": {"sandkasten.id": 7}}])),
        (200, NESTED),
        (502, "[]"),
        (502, '"bad gateway"'),
        (502, "7"),
        (502, NESTED),
        (404, "[]"),
        (500, '{"message": {"text": ["trouble"]}}'),
    ],
)
async def test_a_list_of_another_form_is_a_named_error(proxy, backend, status, body):
    proxy.fault("GET", r"/sandboxes", "answer", status, body=body)
    with pytest.raises(BackendUnavailable, match="E2B does not answer as it should") as caught:
        await backend.owned()
    assert len(caught.value.message) < 400
    assert caught.value.message.isprintable()


async def test_a_list_without_an_end_is_a_named_error(proxy, backend):
    again = {"x-next-token": "more"}
    proxy.fault("GET", r"/sandboxes", "answer", 200, body="[]", headers=again)
    with pytest.raises(BackendUnavailable, match="more than 200 pages"):
        await backend.owned()


async def test_a_list_of_200_pages_is_read_whole(proxy, backend):
    again = {"x-next-token": "more"}
    proxy.fault("GET", r"/sandboxes", "answer", 200, body="[]", headers=again, times=199)
    proxy.fault("GET", r"/sandboxes", "answer", 200, body="[]")
    assert not await backend.owned()
    assert len(proxy.requests("GET", r"/sandboxes")) == 200


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (201, "[]"),
        (201, "null"),
        (201, json.dumps({**MADE, "sandboxID": ["s1"]})),
        (201, json.dumps({**MADE, "sandboxID": None})),
        (201, json.dumps({**MADE, "envdVersion": 7})),
        (201, json.dumps({**MADE, "envdVersion": None})),
        (201, NESTED),
        (418, '["teapot"]'),
    ],
)
async def test_a_sandbox_of_another_form_is_a_named_error(proxy, backend, status, body):
    proxy.fault(*CREATE, "answer", status, body=body)
    proxy.fault("POST", r"/connect$", "answer", status, body=body)
    with pytest.raises(BackendUnavailable, match="E2B does not answer as it should"):
        await backend.create(new_sandbox_id(), SPEC)
    with pytest.raises(BackendUnavailable, match="E2B does not answer as it should"):
        await backend._provider.connect("s1")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("trafficAccessToken", "one\r\ntwo: 2"),
        ("trafficAccessToken", "\ud800"),
        ("domain", "one\r\ntwo"),
        ("domain", "\ud800"),
    ],
)
async def test_an_address_that_cannot_be_one_is_a_named_error(proxy, backend, part, value):
    proxy.fault("POST", r"/connect$", "answer", 200, body=json.dumps({**MADE, part: value}))
    with pytest.raises(BackendUnavailable, match="E2B does not answer as it should"):
        await backend._provider.connect("s1")


async def test_what_a_template_prints_at_its_start_is_cut_and_cleaned(daemon, tmp_path):
    opened = e2b_service.open_backend(tmp_path, e2b_service.options_for(daemon))
    owner = MachineRecords(tmp_path / "e2b").owner()
    keys = entry_keys.make_keys(new_sandbox_id(), "e2b")
    order = machine_plan.order(
        new_sandbox_id(), SPEC, E2bOptions(), owner, keys, dict.fromkeys(PROGRAMS, b"")
    )
    script = "printf '\\033[31mred\\nx' >&2; head -c 4000000 /dev/zero | tr '\\0' x >&2; exit 3"
    provider = opened._provider
    with pytest.raises(BackendUnavailable, match="with status 3") as caught:
        await provider.start(replace(order, command=("sh", "-c", script)))
    assert "3: [31mred xxx" in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400
    for machine_id in (".", "..", "../v2", "sbx_1.example"):
        with pytest.raises(BackendUnavailable, match="not valid"):
            await provider.stop(machine_id)
    await opened.discard(order.sandbox_id)
    assert not await opened.owned()
    await opened.aclose()


async def test_a_stream_of_the_sdk_that_does_not_close_holds_no_create(backend, monkeypatch):
    async def disconnect(handle: e2b.AsyncCommandHandle) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(e2b.AsyncCommandHandle, "disconnect", disconnect)
    monkeypatch.setattr(e2b_provider, "_CANCEL_S", 0.1)
    cell = await backend.create(new_sandbox_id(), SPEC)
    await cell.destroy()


async def test_variables_of_a_request_reach_commands_and_no_shell_of_root(backend):
    env = {
        # Bash evaluates it when it starts.
        "BASH_ENV": "$(id -u >> /tmp/evaluated)",
        "SHOWN": "it's\n$(two) lines",
        "LARGE": "x" * 130_000,
    }
    cell = await backend.create(new_sandbox_id(), replace(SPEC, env=env))
    box = await Box.open(cell)
    shown = await box.run('printf "%s:%s" "$SHOWN" "${#LARGE}"')
    assert shown.stdout.decode() == f"{env['SHOWN']}:130000"
    evaluated = (await box.run("cat /tmp/evaluated")).stdout.split()
    assert b"0" not in evaluated
    await box.aclose()
    await cell.destroy()


async def test_what_the_provider_kept_while_it_was_away_is_found_by_its_label(
    tmp_path, daemon, proxy, backend
):
    proxy.fault("POST", r"/files$", "answer", 500)
    away = [proxy.fault(method, r"/sandboxes", "answer", 500) for method in ("GET", "DELETE")]
    options = e2b_service.options_for(daemon, proxy.url)
    options = replace(options, sandbox_url=f"{proxy.url}/e2b")
    first = e2b_service.open_backend(tmp_path, options)
    sandbox_id = new_sandbox_id()
    with pytest.raises(BackendUnavailable):
        await first.create(sandbox_id, SPEC)
    assert away[0].hit.is_set()
    with pytest.raises(BackendUnavailable):
        await first.owned()
    proxy.clear()
    # Another process with this data directory, which has lost even the record.
    (tmp_path / "e2b" / "machines" / f"{sandbox_id}.json").unlink()
    later = e2b_service.open_backend(tmp_path, e2b_service.options_for(daemon))
    stranger = e2b_service.open_backend(tmp_path / "other", e2b_service.options_for(daemon))
    assert list(await later.owned()) == [sandbox_id]
    assert not await stranger.owned()
    await stranger.discard(sandbox_id)
    assert list(await later.owned()) == [sandbox_id]
    with pytest.raises(SandboxLost):
        await later.attach(sandbox_id)
    await later.discard(sandbox_id)
    assert not await later.owned()


async def test_a_living_sandbox_survives_bad_answers_wrong_clocks_and_its_own_end(
    tmp_path, daemon, proxy, backend
):
    sandbox_id = new_sandbox_id()
    cell = await backend.create(sandbox_id, SPEC)
    proxy.fault("GET", r"/sandboxes", "shift")
    proxy.fault("POST", r"/connect$", "shift")
    # Another process: it has no connection and no token yet.
    options = replace(e2b_service.options_for(daemon, proxy.url), timeout_s=5.0)
    other = e2b_service.open_backend(tmp_path, options)
    box = await Box.open(await other.attach(sandbox_id))
    assert (await box.run("echo alive")).stdout == b"alive\n"
    proxy.clear()
    proxy.fault("GET", r"/sandboxes", "answer", 401)
    third = e2b_service.open_backend(tmp_path, options)
    with pytest.raises(BackendUnavailable, match="credentials"):
        await third.attach(sandbox_id)
    with pytest.raises(BackendUnavailable, match="credentials"):
        await third.owned()
    # What is connected does not need the provider's API.
    assert (await box.run("echo alive")).stdout == b"alive\n"
    proxy.clear()
    await box.aclose()
    machine = (await other.attach(sandbox_id)).machine_id
    attached = await other.attach(sandbox_id)
    stopping = e2b_service.open_backend(tmp_path / "console", e2b_service.options_for(daemon))
    await stopping._provider.stop(machine)
    for again in (attached, cell):
        await again.let_go()
        with pytest.raises(SandboxLost):
            await again.dial()
    with pytest.raises(SandboxLost):
        await other.attach(sandbox_id)
    await cell.destroy()
    await cell.destroy()
    for instance in (other, third, stopping):
        await instance.aclose()
