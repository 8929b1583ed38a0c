"""What becomes of a request when Modal refuses, fails, hangs or answers by half."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal

import pytest
from grpclib import Status

from sandkasten.errors import BackendUnavailable, Busy, SandboxLost
from tests.cloud.modal.modal_server import Fault
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from plugins.cloud.tests.modal.conftest import Rental
    from tests.cloud.modal.modal_server import ModalServer

pytestmark = pytest.mark.promise("P116")
CREATE = "SandboxCreateV2"
DAY_S = 86_400.0


async def test_limit_of_requests_is_named_with_the_time_to_wait(
    rental: Rental, server: ModalServer
):
    server.faults[CREATE] = Fault("status", Status.RESOURCE_EXHAUSTED, "slow down", 37.0)
    with pytest.raises(Busy, match="try again in 37 s") as failed:
        await rental.provider.start(rental.order())
    assert failed.value.details["retry_after_s"] == 37.0
    assert failed.value.retryable
    assert rental.running == []


async def test_short_wait_that_modal_asks_for_is_waited(rental: Rental, server: ModalServer):
    fault = server.faults[CREATE] = Fault("status", Status.RESOURCE_EXHAUSTED, "", 0.2, times=2)
    assert await rental.provider.start(rental.order())
    assert fault.times == 0
    assert len(rental.running) == 1


async def test_limit_of_machines_is_named(rental: Rental, server: ModalServer):
    server.faults[CREATE] = Fault("status", Status.RESOURCE_EXHAUSTED, "too many sandboxes")
    with pytest.raises(Busy, match="too many sandboxes"):
        await rental.provider.start(rental.order())


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.INTERNAL])
async def test_outage_is_named_and_leaves_nothing(
    rental: Rental, server: ModalServer, status: Status
):
    server.faults[CREATE] = Fault("status", status, "no workers")
    with pytest.raises(BackendUnavailable, match="no workers") as failed:
        await rental.provider.start(rental.order())
    assert failed.value.retryable
    assert rental.running == []


@pytest.mark.parametrize("kind", ["garbled", "compressed"])
async def test_answer_of_another_form_is_a_named_error(
    rental: Rental, server: ModalServer, kind: Literal["garbled", "compressed"]
):
    provider, order = rental.provider, rental.order()
    machine_id = await provider.start(order)
    for call, ask in (
        ("ClientHello", provider.check),
        ("SandboxTagsGetV2", provider.machines),
        ("SandboxListV2", provider.machines),
        ("SandboxGetFromNameV2", lambda: provider.find(order.sandbox_id)),
        ("SandboxWaitV2", lambda: provider.connect(machine_id)),
        (CREATE, lambda: provider.start(rental.order())),
        ("SandboxTerminateV2", lambda: provider.stop(machine_id)),
    ):
        fault = server.faults[call] = Fault(kind)
        with pytest.raises(BackendUnavailable, match="Modal does not answer as it") as failed:
            await ask()
        assert fault.hit.is_set()
        assert len(failed.value.message) < 400
        server.faults.clear()


async def test_sandbox_without_an_id_is_a_named_error(rental: Rental, server: ModalServer):
    order = rental.order()
    await rental.provider.start(order)
    server.faults["SandboxGetFromNameV2"] = Fault("empty")
    with pytest.raises(BackendUnavailable, match="Modal does not answer as it"):
        await rental.provider.find(order.sandbox_id)


async def test_short_outage_is_not_seen(rental: Rental, server: ModalServer):
    server.faults[CREATE] = Fault("status", times=2)
    assert await rental.provider.start(rental.order())
    assert len(rental.running) == 1


@pytest.mark.parametrize("times", [1, 100])
async def test_create_whose_answer_is_cut_in_half_makes_one_machine(
    rental: Rental, server: ModalServer, times: int
):
    order = rental.order()
    server.faults[CREATE] = Fault("lost", times=times)
    machine_id = await rental.provider.start(order)
    assert [machine.id for machine in rental.running] == [machine_id]
    assert (
        len([machine for machine in server.made if machine.definition.name == order.sandbox_id])
        == 1
    )


async def test_create_without_any_answer_leaves_what_is_found_by_its_name(
    rental: Rental, server: ModalServer
):
    order = rental.order()
    server.faults[CREATE] = Fault("lost")
    server.faults["SandboxGetFromNameV2"] = Fault("cut")
    with pytest.raises(BackendUnavailable):
        await rental.provider.start(order)
    server.faults.clear()
    machine_id = await rental.provider.find(order.sandbox_id)
    assert [machine.id for machine in rental.running] == [machine_id]
    assert machine_id is not None
    await rental.provider.stop(machine_id)
    assert rental.running == []


async def test_hang_ends_with_the_time_of_a_request(
    rent: Callable[..., Rental], server: ModalServer
):
    rental = rent(timeout_s=0.5)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            # A busy machine may need longer for one of them.
            with contextlib.suppress(BackendUnavailable):
                await rental.provider.check()
                break
    server.faults["ClientHello"] = Fault("hang")
    with pytest.raises(BackendUnavailable):
        await rental.provider.check()


async def test_cancelled_create_can_be_asked_for_again(rental: Rental, server: ModalServer):
    order = rental.order()
    server.faults[CREATE] = Fault("hang")
    starting = asyncio.ensure_future(rental.provider.start(order))
    async with asyncio.timeout(PATIENCE_S):
        while CREATE not in server.calls:  # noqa: ASYNC110  (the server is a thread)
            await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    server.faults.clear()
    machine_id = await rental.provider.start(order)
    assert [machine.id for machine in rental.running] == [machine_id]


async def test_token_that_expired_is_named_and_can_be_replaced(
    rental: Rental, server: ModalServer, monkeypatch: pytest.MonkeyPatch
):
    assert (await rental.provider.check()).ready
    server.token_secret = "as-replaced"
    for ask in (
        rental.provider.check,
        rental.provider.machines,
        lambda: rental.provider.start(rental.order()),
    ):
        with pytest.raises(BackendUnavailable, match="MODAL_TOKEN_SECRET") as failed:
            await ask()
        assert "as-" not in str(failed.value)
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-replaced")
    assert await rental.provider.start(rental.order())


async def test_keys_of_a_connection_are_renewed(rental: Rental, server: ModalServer):
    machine_id = await rental.provider.start(rental.order())
    await (await rental.provider.connect(machine_id)).aclose()
    server.expire_tokens()
    channel = await rental.channel(machine_id)
    await channel.aclose()


async def test_machine_that_vanished_is_lost(rental: Rental, server: ModalServer):
    order = rental.order()
    machine_id = await rental.provider.start(order)
    await (await rental.channel(machine_id)).aclose()
    stream = await rental.provider.connect(machine_id)
    assert await stream.receive(1000)
    server.vanish(rental.running[0])
    with contextlib.suppress(OSError):
        assert await stream.receive(1000) == b""
    await stream.aclose()
    with pytest.raises(SandboxLost):
        await rental.provider.connect(machine_id)
    assert await rental.provider.find(order.sandbox_id) is None
    await rental.provider.stop(machine_id)


@pytest.mark.parametrize("ahead_s", [3 * DAY_S, -3 * DAY_S])
async def test_clock_skew_has_no_effect(rental: Rental, server: ModalServer, ahead_s: float):
    server.control.clock_s = ahead_s
    order = rental.order()
    machine_id = await rental.provider.start(order)
    assert await rental.provider.start(order) == machine_id
    assert dict(await rental.provider.machines()) == {order.sandbox_id: machine_id}
    channel = await rental.channel(machine_id)
    await channel.aclose()
    await rental.provider.stop(machine_id)
