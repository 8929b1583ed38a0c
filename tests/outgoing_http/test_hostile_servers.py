"""Every module that sends HTTP bounds what it reads, and no server sends it to another address."""

from __future__ import annotations

import ast
import asyncio
import re
from contextlib import suppress

import pytest

from sandkasten.client.http.connection import Connection
from sandkasten.outgoing_http import new_http_session
from tests.outgoing_http.hostile_server import (
    HostileAnswer,
    hostile_server,
    large_answers,
    redirect,
    slow_answers,
)
from tests.outgoing_http.http_users import MOST_BYTES, SECRET, USERS, HttpUser
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S
from tests.repo import tree

# In the buffers of two sockets, of the server and of aiohttp.
BUFFERED_BYTES = 16 << 20
DEADLINE_S = 0.5

users = pytest.mark.parametrize("user", USERS, ids=lambda user: user.ask.__name__)


def _callers(name: str) -> set[str]:
    """Return the modules that call a function or class of this name."""
    return {
        module
        for module, path in tree.modules().items()
        if name in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    }


def test_every_session_is_opened_by_one_module():
    assert _callers("ClientSession") == {new_http_session.__module__}


def test_every_module_with_a_session_is_a_user():
    assert _callers(new_http_session.__name__) == {user.module for user in USERS}


def test_redirects_are_errors_in_all_sessions_but_one():
    # Its requests are in the table: `client_answer`, `client_stream`, `client_file`.
    name = "redirects_are_errors"
    named = {module for module, path in tree.modules().items() if name in path.read_text()}
    assert named == {new_http_session.__module__, Connection.__module__}


def test_no_module_has_another_http_client():
    for name in ("urlopen", "HTTPConnection", "HTTPSConnection", "build_opener"):
        assert _callers(name) == set()
    other_client = re.compile(
        r"aiohttp\.request\(|^\s*(?:import|from) (?:httpx|requests|urllib3)\b", re.M
    )
    modules = {
        name for name, path in tree.modules().items() if other_client.search(path.read_text())
    }
    # It names the errors of its SDK's client.
    assert modules == {"sandkasten_cloud.e2b.e2b_provider"}


@users
@pytest.mark.parametrize("what", large_answers())
@pytest.mark.slow_loop
async def test_an_endless_answer_is_bounded(
    user: HttpUser, what: str, monkeypatch: pytest.MonkeyPatch
):
    for path, value in (user.limits or {}).items():
        monkeypatch.setattr(path, value)
    async with hostile_server(large_answers()[what]) as server:
        async with asyncio.timeout(FAR_TOO_LATE_S):
            with suppress(*user.failures):
                await user.ask(server.url, PATIENCE_S)
    assert server.requests
    assert server.sent_bytes < MOST_BYTES + BUFFERED_BYTES


@users
async def test_an_answer_that_does_not_end_is_ended_by_the_deadline(
    user: HttpUser, monkeypatch: pytest.MonkeyPatch
):
    for path in user.deadlines:
        monkeypatch.setattr(path, DEADLINE_S)

    async def ask(answer: HostileAnswer) -> None:
        deadline_s = DEADLINE_S
        async with hostile_server(answer) as server:
            # On a busy machine a deadline may pass before the request is sent.
            while not server.requests:
                with suppress(*user.failures):
                    await user.ask(server.url, deadline_s)
                deadline_s *= 2

    async with asyncio.timeout(FAR_TOO_LATE_S), asyncio.TaskGroup() as tasks:
        for answer in slow_answers().values():
            tasks.create_task(ask(answer))


@users
@pytest.mark.parametrize("status", [301, 307])
async def test_a_redirect_is_not_followed_with_a_secret(user: HttpUser, status: int):
    async with hostile_server(
        HostileAnswer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    ) as other:
        to = f"http://localhost:{other.port}/other"
        async with hostile_server(redirect(status, to)) as server:
            with suppress(*user.failures):
                await user.ask(server.url, PATIENCE_S)
    assert server.requests
    assert bool(other.requests) == user.follows_redirects
    assert SECRET.encode() not in b"".join(other.requests)
