"""The loop thread: calls, Ctrl-C, fork, and the end of the process."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from sandkasten.client.blocking import loop_thread
from sandkasten.errors import InvalidRequest


async def _twice(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_a_coroutine_runs_and_its_value_is_returned():
    assert loop_thread.run(_twice(21)) == 42


def test_an_exception_of_a_coroutine_is_raised_in_the_caller():
    async def fail() -> None:
        raise ValueError("from inside")

    with pytest.raises(ValueError, match="from inside"):
        loop_thread.run(fail())


def test_many_threads_share_one_loop():
    threads, answers = [], []
    for number in range(20):
        thread = threading.Thread(
            target=lambda n=number: answers.append(loop_thread.run(_twice(n)))
        )
        threads.append(thread)
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [2 * number for number in range(20)]
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("sandkasten-loop") == 1


def test_use_from_within_its_own_loop_is_refused_and_does_not_deadlock():
    async def nested() -> None:
        loop_thread.run(_twice(1))

    with pytest.raises(InvalidRequest, match="inside the event loop that serves it"):
        loop_thread.run(nested())


def test_a_forked_child_gets_its_own_loop():
    assert loop_thread.run(_twice(1)) == 2
    child = os.fork()
    if child == 0:
        status = 9
        try:
            status = 0 if loop_thread.run(_twice(4)) == 8 else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop_thread.run(_twice(5)) == 10


def test_ctrl_c_cancels_the_call_and_is_raised_after_its_clean_up(script):
    done = script(
        """
        import asyncio, os, signal, threading
        from sandkasten.client.blocking import loop_thread

        async def patient():
            try:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                print("cleaned up", flush=True)

        try:
            loop_thread.run(patient())
        except KeyboardInterrupt:
            print("interrupted", flush=True)

        async def after():
            return "still usable"

        print(loop_thread.run(after()))
        """
    )
    assert (done.stdout, done.returncode) == ("cleaned up\ninterrupted\nstill usable\n", 0), done


def test_the_process_ends_while_a_call_of_another_thread_still_waits(script):
    done = script(
        """
        import asyncio, threading, time
        from sandkasten.client.blocking import loop_thread

        def wait():
            try:
                loop_thread.run(asyncio.sleep(600))
            except asyncio.CancelledError:
                pass

        threading.Thread(target=wait, daemon=True).start()
        while not any(t.name == "sandkasten-loop" for t in threading.enumerate()):
            time.sleep(0.01)
        print("leaving")
        """
    )
    assert (done.stdout, done.returncode) == ("leaving\n", 0), done


def test_blocking_work_still_runs_when_python_has_ended_its_thread_pools(script):
    done = script(
        """
        import asyncio, atexit
        from sandkasten.client.blocking import loop_thread

        # Called before the module's own function, because it is registered later.
        def last():
            print(loop_thread.run(asyncio.to_thread(sum, [1, 2])), flush=True)

        loop_thread.run(asyncio.to_thread(print, "first", flush=True))
        atexit.register(last)
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("first\n3\n", "", 0), done
