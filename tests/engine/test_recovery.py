"""Recovery of a starting daemon from any state of the previous one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandkasten.errors import SessionExpired
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Recovered
from tests.engine.injections import GO, UNTIL_GO
from tests.engine.test_journal import until
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P33")]


async def row(world, the_id):
    found = await world.store.get(the_id)
    assert found is not None
    return found


@pytest.fixture
async def next_engine(journaled):
    """The engine of the next daemon: same ledger, backend and journal, no connections."""
    one = journaled.another()
    yield one
    await one.aclose()


async def test_recovery_without_leftovers_does_nothing(next_engine):
    assert await next_engine.recover() == Recovered()


async def test_a_live_session_is_recovered_with_its_shell(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest())
    await journaled.engine.exec(info.id, ExecRequest("cd /tmp; X=1"))
    assert await next_engine.recover() == Recovered(kept=1)
    assert (await next_engine.exec(info.id, ExecRequest("echo $X; pwd"))).stdout == b"1\n/tmp\n"
    assert (await journaled.journal.session(info.id)).status == "running"


async def test_a_session_that_ran_before_it_was_recorded_as_running_is_kept(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest())
    known = await journaled.journal.session(info.id)
    await journaled.journal.begin_session(replace(known, status="creating"))
    assert await next_engine.recover() == Recovered(kept=1)
    assert (await journaled.journal.session(info.id)).status == "running"


async def test_a_sandbox_unknown_to_the_journal_is_adopted(journaled, next_engine):
    journaled.journal, journal = None, journaled.journal
    embedded = journaled.another()
    info = await embedded.create(CreateRequest(SandboxOptions(labels={"a": "1"}), session_key="k"))
    assert await next_engine.recover() == Recovered(adopted=1)
    adopted = await journal.session(info.id)
    assert (adopted.tenant, adopted.status, adopted.labels) == ("default", "running", {"a": "1"})
    assert (await next_engine.exec(info.id, ExecRequest("echo ok"))).stdout == b"ok\n"
    await embedded.aclose()


@pytest.mark.parametrize(
    ("state", "status"), [(State.CREATING, "crashed"), (State.DESTROYING, "destroyed")]
)
async def test_a_half_done_operation_of_a_dead_process_is_finished(
    journaled, next_engine, state, status
):
    info = await journaled.engine.create(CreateRequest())
    await journaled.store.put(replace(await row(journaled, info.id), state=state, owner_start=1))
    assert await next_engine.recover() == Recovered(finished=1)
    assert (await journaled.journal.session(info.id)).status == status
    assert await journaled.left() == ([], [])


async def test_a_sandbox_being_created_by_a_live_process_is_not_touched(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest())
    await journaled.store.put(replace(await row(journaled, info.id), state=State.CREATING))
    async with journaled.store.lock(info.id):
        assert await next_engine.recover() == Recovered()
    assert await journaled.left() == ([info.id], [info.id])


async def test_a_dead_cell_is_crashed_and_its_leftovers_are_removed(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest())
    started = await journaled.engine.exec_start(info.id, ExecRequest(("sleep", "60")))
    await journaled.engine.aclose()
    await journaled.backend.cells[info.id].real.crash()
    assert await next_engine.recover() == Recovered(crashed=1)
    assert (await journaled.journal.session(info.id)).status == "crashed"
    assert (await journaled.journal.exec(info.id, started.exec_id)).status == "lost"
    assert await journaled.left() == ([], [])
    with pytest.raises(SessionExpired) as gone:
        await next_engine.exec(info.id, ExecRequest("true"))
    assert gone.value.details["status"] == "crashed"
    assert "killed" in str(gone.value.details["reason"])


async def test_a_lease_that_ran_out_meanwhile_is_an_expiry(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest(SandboxOptions(ttl_seconds=60)))
    await journaled.engine.aclose()
    await journaled.backend.cells[info.id].real.crash()
    journaled.clock.ahead_s = 61
    assert await next_engine.recover() == Recovered(expired=1)
    assert (await journaled.journal.session(info.id)).status == "expired"


async def test_after_a_restart_of_the_machine_everything_is_lost(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest())
    await journaled.store.put(replace(await row(journaled, info.id), boot_id="another boot"))
    older = replace(
        await journaled.journal.session(info.id),
        id=new_sandbox_id(),
        created_at=journaled.clock.now() - journaled.clock.boottime() - 10,
    )
    await journaled.journal.begin_session(older)
    assert await next_engine.recover() == Recovered(lost=2)
    for the_id in (info.id, older.id):
        found = await journaled.journal.session(the_id)
        assert (found.status, found.reason) == ("lost", "the machine was restarted")


async def test_a_session_without_a_row_is_crashed(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest())
    known = await journaled.journal.session(info.id)
    begun = replace(known, id=new_sandbox_id(), status="creating")
    vanished = replace(known, id=new_sandbox_id())
    for one in (begun, vanished):
        await journaled.journal.begin_session(one)
    assert await next_engine.recover() == Recovered(kept=1, crashed=2)
    assert "never made" in (await journaled.journal.session(begun.id)).reason
    assert (await journaled.journal.session(vanished.id)).status == "crashed"


async def test_a_cell_without_an_owner_is_removed(journaled, next_engine):
    await journaled.backend.real.create(new_sandbox_id(), CellSpec(image=Image("host")))
    assert await next_engine.recover() == Recovered(removed=1)
    assert await journaled.left() == ([], [])


async def test_the_row_of_an_ended_session_is_removed(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest())
    await journaled.journal.end_session(info.id, "destroyed", 1.0)
    await journaled.store.put(replace(await row(journaled, info.id), state=State.DESTROYING))
    assert await next_engine.recover() == Recovered(finished=1)
    assert await journaled.left() == ([], [])


@pytest.mark.promise("P32")
async def test_running_commands_are_followed_again_without_losing_output(journaled, next_engine):
    info = await journaled.engine.create(CreateRequest())
    started = await journaled.engine.exec_start(
        info.id, ExecRequest(("sh", "-c", f"echo a; {UNTIL_GO}; echo b; exit 5"))
    )
    request = ExecRequest(("cat",), keep_stdin_open=True)
    ended = await journaled.engine.exec_start(info.id, request)
    # As a kill leaves it: nobody notes the end.
    await journaled.engine.aclose()
    journaled.journal, journal = None, journaled.journal
    stranger = journaled.another()
    journaled.journal = journal
    await stranger.exec_stdin(info.id, ended.exec_id, b"", close=True)
    over_there = await stranger.exec_get(info.id, ended.exec_id, wait_s=PATIENCE_S)
    assert over_there.status == "completed"
    await stranger.aclose()
    assert (await journaled.journal.exec(info.id, ended.exec_id)).status == "running"
    assert await next_engine.recover() == Recovered(kept=1)
    await next_engine.files.write(info.id, GO, b"")

    async def over() -> bool:
        found = await journaled.journal.exec(info.id, started.exec_id)
        return found.status == "completed"

    await until(over)
    assert (await journaled.journal.exec(info.id, started.exec_id)).exit_code == 5
    assert (await journaled.journal.exec(info.id, ended.exec_id)).exit_code == 0
    assert (await next_engine.exec_get(info.id, started.exec_id)).stdout == b"a\nb\n"


@pytest.mark.long(reason="`make test` recovers a few")
async def test_fifty_sessions_are_recovered_concurrently(journaled, next_engine):
    await asyncio.gather(*(journaled.engine.create(CreateRequest()) for _ in range(50)))
    await journaled.engine.aclose()
    waiting, enough = 0, asyncio.Event()

    async def wait_for_others() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 10:
            enough.set()
        await enough.wait()

    journaled.backend.gate.before_attach = wait_for_others
    assert await next_engine.recover() == Recovered(kept=50)


async def test_an_unreachable_sandbox_does_not_stop_the_recovery_of_others(journaled, next_engine):
    infos = [await journaled.engine.create(CreateRequest()) for _ in range(2)]
    stranger = replace(await row(journaled, infos[0].id), id=new_sandbox_id(), backend="docker")
    await journaled.store.put(stranger)
    assert await next_engine.recover() == Recovered(kept=2)
    assert await journaled.store.get(stranger.id) is not None
