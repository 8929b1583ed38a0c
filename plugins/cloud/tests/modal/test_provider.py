"""The provider by Modal's SDK, on a server that speaks its protocol and really runs machines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from plugins.cloud.tests.modal.conftest import KEY, RUNNER
from sandkasten.errors import BackendUnavailable, ImageNotFound, SandboxLost
from sandkasten_cloud.modal import modal_provider
from sandkasten_cloud.provider import LABEL_ID
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from plugins.cloud.tests.modal.conftest import Rental
    from tests.cloud.modal.modal_server import ModalServer

pytestmark = pytest.mark.promise("P116")
LARGE = 5 << 20


async def test_machine_is_made_as_it_was_ordered(rental: Rental):
    order = rental.order(region="eu")
    machine_id = await rental.provider.start(order)
    (rented,) = rental.running
    definition = rented.definition
    assert rented.id == machine_id
    assert rented.tags == dict(order.labels)
    assert definition.name == order.sandbox_id
    assert (definition.resources.milli_cpu, definition.resources.milli_cpu_max) == (1500, 1500)
    assert (definition.resources.memory_mb, definition.resources.memory_mb_max) == (300, 300)
    assert definition.timeout_secs == 600
    assert list(definition.scheduler_placement.regions) == ["eu"]
    assert not definition.open_ports.ports


@pytest.mark.parametrize("network", ["none", "full"])
async def test_network_is_open_only_if_it_was_ordered(rental: Rental, network: str):
    await rental.provider.start(rental.order(network=network))
    (rented,) = rental.running
    names = type(rented.definition.network_access).NetworkAccessType
    wanted = {"none": names.BLOCKED, "full": names.OPEN}[network]
    assert rented.definition.network_access.network_access_type == wanted


async def test_small_orders_get_the_least_that_modal_makes(rental: Rental):
    await rental.provider.start(rental.order(cpus=0.01, memory_bytes=1 << 20))
    resources = rental.running[0].definition.resources
    assert (resources.milli_cpu_max, resources.memory_mb_max) == (125, 128)


async def test_programs_are_there_when_the_command_starts(rental: Rental):
    await rental.provider.start(rental.order())
    (rented,) = rental.running
    root = rented.machine.root
    assert (root / RUNNER[1:]).read_bytes() == rental.programs[RUNNER]
    assert (root / RUNNER[1:]).stat().st_mode & 0o777 == 0o755


async def test_programs_are_uploaded_and_built_once(rental: Rental, server: ModalServer):
    await rental.provider.start(rental.order())
    server.calls.clear()
    await rental.provider.start(rental.order(files={**rental.programs, KEY: b"l" * 32}))
    assert server.calls == ["ImageFromId", "SandboxCreateV2"]


async def test_key_is_a_variable_of_the_gate_and_no_file_at_modal(rental: Rental):
    await rental.provider.start(rental.order(files={**rental.programs, KEY: b"a key"}))
    (rented,) = rental.running
    assert rented.env == {"COLOUR": "green", "SANDKASTEN_GATE_KEYS": "token=YSBrZXk="}
    assert not rented.definition.mount_ids


async def test_machine_asked_for_twice_is_made_once(rental: Rental):
    order = rental.order()
    first, second = await asyncio.gather(*(rental.provider.start(order) for _ in range(2)))
    assert first == second == await rental.provider.find(order.sandbox_id)
    assert len(rental.running) == 1


async def test_machines_are_found_by_label_over_several_pages(
    rent: Callable[..., Rental], server: ModalServer
):
    rental, other = rent(), rent()
    orders = [rental.order() for _ in range(5)]
    machines = {order.sandbox_id: await rental.provider.start(order) for order in orders}
    foreign_order = other.order()
    await other.provider.start(foreign_order)
    assert dict(await rental.provider.machines()) == machines
    assert list(await other.provider.machines()) == [foreign_order.sandbox_id]
    assert await rental.provider.find(foreign_order.sandbox_id) is None
    server.calls.clear()
    assert dict(await rental.provider.machines()) == machines
    assert "SandboxTagsGetV2" not in server.calls


async def test_stream_carries_every_byte_and_its_end_ends_the_relay(rental: Rental):
    machine_id = await rental.provider.start(rental.order(command=("/usr/bin/sleep", "600")))
    relay = rental.provider._relay
    rental.provider._relay = ("/usr/bin/cat",)
    stream = await rental.provider.connect(machine_id)
    rental.provider._relay = relay
    data = bytes(range(256)) * (LARGE // 256)
    sending = asyncio.ensure_future(stream.send(data[:1000], memoryview(data)[1000:]))
    got = b""
    while len(got) < len(data):
        got += await stream.receive(100_000)
    await sending
    assert got == data
    pending = asyncio.ensure_future(stream.receive(1))
    await asyncio.sleep(0)
    await stream.aclose()
    await stream.aclose()
    assert await pending == b""
    assert await stream.receive(1) == b""
    with pytest.raises(BrokenPipeError):
        await stream.send(b"late")
    (command,) = rental.running[0].machine.execs.values()
    await asyncio.wrap_future(rental.server.later(command.process.wait()))


async def test_connections_lead_to_the_same_runner(rental: Rental, rent: Callable[..., Rental]):
    machine_id = await rental.provider.start(rental.order())
    for lent in (rental, rent(rental.owner)):
        channel = await lent.channel(machine_id)
        assert channel.hello.generation
        await channel.aclose()


async def test_stop_ends_a_machine_and_twice_is_fine(rental: Rental):
    order = rental.order()
    machine_id = await rental.provider.start(order)
    for _ in range(2):
        await rental.provider.stop(machine_id)
        assert rental.running == []
        assert await rental.provider.find(order.sandbox_id) is None
    await rental.provider.stop("sb-01unknown")
    with pytest.raises(SandboxLost):
        await rental.provider.connect(machine_id)
    # The name is free again.
    assert await rental.provider.start(order) != machine_id


async def test_modal_ends_a_machine_after_its_lifetime(rental: Rental):
    machine_id = await rental.provider.start(rental.order(lifetime_s=0.5))
    async with asyncio.timeout(PATIENCE_S):
        while rental.running:  # noqa: ASYNC110  (the server is a thread)
            await asyncio.sleep(0.05)
    with pytest.raises(SandboxLost):
        await rental.provider.connect(machine_id)
    assert dict(await rental.provider.machines()) == {}


async def test_image_that_modal_cannot_make_is_named(rental: Rental):
    with pytest.raises(ImageNotFound, match="no-such-image"):
        await rental.provider.start(rental.order(image="no-such-image"))
    assert rental.running == []


async def test_name_of_another_installation_is_never_adopted(
    rent: Callable[..., Rental], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(modal_provider, "_FIND_AGAIN_S", (0.01,))
    rental, other = rent(), rent()
    order = rental.order()
    await rental.provider.start(order)
    foreign_order = other.order(sandbox_id=order.sandbox_id)
    assert foreign_order.labels[LABEL_ID] == order.sandbox_id
    with pytest.raises(BackendUnavailable):
        await other.provider.start(foreign_order)
    assert len(rental.running) == 1
    assert not other.running


async def test_token_can_be_read_from_a_file(
    rent: Callable[..., Rental],
    server: ModalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name)
    with pytest.raises(BackendUnavailable, match="MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"):
        await rent().provider.check()
    path = tmp_path / "token"
    rental = rent(token_file=path)
    for content in (None, "", "only-one", "a b c"):
        if content is not None:
            path.write_text(content)
        with pytest.raises(BackendUnavailable, match="first line") as failed:
            await rental.provider.check()
        assert str(path) in failed.value.message
    path.write_text(f"{server.token_id}\n{server.token_secret}\n")
    assert (await rental.provider.check()).ready
