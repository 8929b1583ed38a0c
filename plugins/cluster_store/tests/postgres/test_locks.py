"""Locks that processes share by PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from plugins.cluster_store.tests.postgres.rows import until
from sandkasten.disk.cleanup import finish
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
)
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P98")


HOLDER = """
import asyncio, sys
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase

async def main():
    database = await PostgresDatabase.open(sys.argv[1], schema=sys.argv[2])
    async with database.locks.hold("x", 0):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_lock_has_one_holder_among_all_processes(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    async with one.locks.hold("x", 0):
        with pytest.raises(Busy):
            async with other.locks.hold("x", 0.05):
                pass
        async with other.locks.hold("y", 0):
            pass
    async with other.locks.hold("x", 0):
        pass


async def test_a_waiter_gets_the_lock_when_its_holder_is_done(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    inside = most = 0

    async def work(database: PostgresDatabase) -> None:
        nonlocal inside, most
        async with database.locks.hold("x", PATIENCE_S):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work(database) for database in (one, other) * 10))
    assert most == 1


async def test_the_lock_of_a_killed_process_is_released(open_postgres, postgres_server):
    ours = await open_postgres()
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, postgres_server.url, ours.schema),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        with pytest.raises(Busy):
            async with ours.locks.hold("x", 0):
                pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        await holder.communicate()
    async with ours.locks.hold("x", PATIENCE_S):
        pass


async def test_a_holder_is_interrupted_when_its_lock_is_lost(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    held = asyncio.Event()

    async def hold() -> None:
        async with one.locks.hold("x", 0):
            held.set()
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    await held.wait()
    pid = await one.in_session("SELECT pg_backend_pid()")
    await other.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(BackendUnavailable, match="held a lock"):
        await holding
    # Both can hold it now: the session was opened again, and the lost one released its lock.
    for database in (other, one):
        async with database.locks.hold("x", PATIENCE_S):
            pass


async def test_a_holder_that_cleans_up_is_interrupted_once(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    held, interrupted, lost_again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with one.locks.hold("x", 0):
            held.set()
            try:
                await asyncio.Event().wait()
            finally:
                interrupted.set()
                await finish(lost_again.wait())

    holding = asyncio.create_task(hold())
    for event, losses in ((held, 1), (interrupted, 2)):
        await event.wait()
        pid = await one.in_session("SELECT pg_backend_pid()")
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        await until(lambda losses=losses: one.locks.losses == losses)
    lost_again.set()
    with pytest.raises(BackendUnavailable, match="held a lock"):
        await holding


async def test_cancelled_waiter_does_not_keep_the_lock(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    for _ in range(20):
        waiting = asyncio.create_task(one.locks.hold("x", 0).__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        done = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert isinstance(done, asyncio.CancelledError)
        async with other.locks.hold("x", 0):
            pass


async def test_a_lock_whose_answer_came_too_late_is_not_kept(open_postgres, postgres_server):
    """The server may give the lock after the question was given up."""
    other = await open_postgres()
    one = await PostgresDatabase.open(postgres_server.url, schema=other.schema, timeout_s=0.5)
    try:
        async with one.locks.hold("x", 0):  # The statements are prepared now.
            pass
        pid = await one.in_session("SELECT pg_backend_pid()")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BackendUnavailable):
                async with one.locks.hold("x", 0):
                    pass
        finally:
            os.kill(pid, signal.SIGCONT)
        async with other.locks.hold("x", PATIENCE_S):
            pass
    finally:
        await one.aclose()


async def test_a_lock_that_was_lost_before_its_holder_knew_of_it_is_taken_again(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    take, pids = one.locks.take, []

    async def take_and_lose(key: int) -> bool:
        taken = await take(key)
        pids.append(await one.in_session("SELECT pg_backend_pid()"))
        if len(pids) == 1:
            await other.execute("SELECT pg_terminate_backend($1)", pids[0])
            await until(lambda: one.locks.losses == 1)
        return taken

    one.locks.take = take_and_lose
    async with one.locks.hold("x", PATIENCE_S):
        assert len(set(pids)) == 2
        with pytest.raises(Busy):
            async with other.locks.hold("x", 0):
                pass
