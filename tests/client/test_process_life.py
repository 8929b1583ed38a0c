"""Sandboxes and the process that uses them: import, fork, exit."""

from __future__ import annotations

import os

import pytest

from sandkasten import Sandbox
from sandkasten.model.optional_extras import install_command

# The start and the end of an interpreter are what is tested.
pytestmark = pytest.mark.real_start


def test_importing_the_package_loads_neither_asyncio_nor_the_engine(script):
    done = script(
        """
        import sys
        import sandkasten
        print([m for m in ("asyncio", "dataclasses", "sandkasten.errors") if m in sys.modules])
        from sandkasten import Sandbox
        print([m for m in sys.modules if m.startswith(("sandkasten_runtime", "sandkasten_server"))])
        """,
        sandboxes=False,
    )
    assert done.stdout == "[]\n[]\n", done


def test_an_unclosed_sandbox_does_not_delay_the_exit(script):
    done = script(
        """
        from sandkasten import Sandbox
        box = Sandbox()
        print(box.exec("echo hi").output, end="")
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("hi\n", "", 0)


def test_an_abandoned_stream_does_not_delay_the_exit(script):
    done = script(
        """
        from sandkasten import Sandbox
        box = Sandbox()
        for piece in box.exec_stream(["sh", "-c", "echo a; sleep 600"]):
            print(piece.text, end="")
            break
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("a\n", "", 0)


def test_a_child_can_use_sandboxes_after_a_fork():
    with Sandbox(backend="unisolated") as box:
        assert box.exec("true").ok
        child = os.fork()
        if child == 0:
            status = 9
            try:
                with Sandbox(backend="unisolated") as own:
                    status = own.exec("exit 3", stateful=False).exit_code or 1
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert box.exec("echo parent").output == "parent\n"


def test_ctrl_c_during_a_command_leaves_a_usable_sandbox(script):
    done = script(
        """
        import os, signal, threading
        from sandkasten import Sandbox
        with Sandbox() as box:
            try:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                box.exec(["sleep", "60"])
            except KeyboardInterrupt:
                print(box.exec("echo after").output, end="")
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("after\n", "", 0)


def test_without_the_server_stored_files_name_the_extra_to_install(script):
    done = script(
        """
        import sys
        sys.modules["sandkasten_server"] = None
        from sandkasten import BackendUnavailable, StoredFiles
        try:
            StoredFiles().list()
        except BackendUnavailable as error:
            print(error.hint)
        """
    )
    assert done.stdout == install_command("server") + "\n", done
