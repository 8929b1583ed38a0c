"""A paused sandbox: its egress process is frozen too, and the record says what it will apply."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import Busy, Conflict, InternalError
from sandkasten.model.sandbox.network_policy import NetworkPolicy
from sandkasten_runtime.linux import egress
from sandkasten_runtime.store.ledger_directory import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sandkasten import Sandbox

pytestmark = pytest.mark.root


def _reached(box: Sandbox, name: str, port: int) -> bool:
    return "hello" in box.exec(["curl", "-sS", "-m", "5", f"http://{name}.test:{port}/"]).output


def _cell(box: Sandbox, data: Path) -> Path:
    (control,) = data.glob(f"**/{box.id}/{egress.CONTROL}")
    return control.parent


@pytest.fixture
def box(boxed: Callable[..., Sandbox], web: int) -> Sandbox:
    return boxed(backend="local", network={"allow": [f"good.test:{web}"]})


def test_a_change_that_was_refused_is_not_applied_later(box, web):
    box.pause()
    with pytest.raises(Conflict, match="paused") as refused:
        box.update(network="full")
    assert "resume it first" in (refused.value.hint or "")
    box.resume()
    assert box.info().network == {"allow": [f"good.test:{web}"]}
    assert not _reached(box, "evil", web)
    assert _reached(box, "good", web)


def test_counters_of_a_paused_sandbox_are_those_from_before(box, web, monkeypatch):
    assert _reached(box, "good", web)
    before = box.network()
    assert before.opened == 1
    box.pause()
    monkeypatch.setattr(egress, "ask", None)  # It would not be answered.
    assert box.network().opened == 1
    assert box.stats().network.rx_bytes == before.bytes_in
    box.close()


def test_a_command_whose_sender_is_gone_is_not_applied(box, web, data, monkeypatch):
    cell = _cell(box, data)
    box.pause()
    monkeypatch.setattr(egress, "CHANGE_S", 0.1)
    with pytest.raises(Busy, match="did not answer"):
        asyncio.run(egress.change(cell, NetworkPolicy(full=True), ["127.0.0.1/32"]))
    monkeypatch.undo()
    box.resume()
    assert not _reached(box, "evil", web)


def test_an_unchanged_policy_is_sent_again(box, web, data):
    asyncio.run(egress.change(_cell(box, data), NetworkPolicy(full=True), ["127.0.0.1/32"]))
    assert _reached(box, "evil", web)
    box.update(network={"allow": [f"good.test:{web}"]})
    assert not _reached(box, "evil", web)


def test_a_change_that_is_not_recorded_is_taken_back(box, web, monkeypatch):
    async def fail(*_: object) -> None:
        raise InternalError("no")

    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "put", fail)
        with pytest.raises(InternalError):
            box.update(network="full", ttl_seconds=100)
    assert not _reached(box, "evil", web)
    assert box.info().network == {"allow": [f"good.test:{web}"]}


def test_a_resumed_sandbox_has_what_the_operator_opens_now(box, web, data, monkeypatch):
    assert _reached(box, "good", web)
    box.pause()
    monkeypatch.setenv("SANDKASTEN_NETWORK_REACHABLE", "127.0.0.9/32")
    code = f"import sandkasten as s; s.Sandbox.attach({box.id!r}, data_dir={str(data)!r}).resume()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not _reached(box, "good", web)
