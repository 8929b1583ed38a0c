"""The examples in JavaScript, unchanged, with scripted models and a real daemon."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests import environments
from tests.client.http.served import served
from tests.models.server import in_thread, script_of
from tests.sdks.typescript import node, variables

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.root, pytest.mark.long(reason="it installs frameworks from npm")]
CODE = "print(sum(range(10)))"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with served(tmp_path_factory.mktemp("examples") / "data", backend="local") as one:
        yield one


@pytest.fixture(scope="module")
def folder():
    return environments.typescript_examples()


def test_an_agent_of_the_vercel_ai_sdk_uses_a_sandbox(daemon, folder):
    turns = [
        {"calls": [{"name": "writeFile", "arguments": {"path": "a.py", "content": CODE}}]},
        {"calls": [{"name": "exec", "arguments": {"command": "python3 a.py"}}]},
        {"text": "It printed ${last.output}"},
    ]
    with in_thread(script_of({"agents": [{"turns": turns}]})) as model:
        env = {**variables(daemon), "OPENAI_BASE_URL": model.base_url, "MODEL": "scripted"}
        done = node("vercel_ai.mjs", "Add numbers.", cwd=folder, env=env)
    assert done.stdout == "It printed 45\n\n3 steps\n"


def test_claude_uses_a_sandbox_by_tool_use(daemon, folder):
    with messages_api() as (url, asked):
        env = {**variables(daemon), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-x"}
        done = node("claude_tools.mjs", "Add numbers.", cwd=folder, env=env)
    assert done.stdout == "It printed exit=0\n45\n\n"
    results = [message["content"][0] for message in asked[-1]["messages"][2::2]]
    assert [(one["content"], one.get("is_error", False)) for one in results] == [
        ("wrote /workspace/a.py", False),
        ("exit=0\n45\n", False),
    ]


@contextmanager
def messages_api() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A Messages API that writes a program, runs it, and repeats the last result."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(length))
            asked.append(request)
            body = json.dumps(_message(request)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def _message(request: dict[str, Any]) -> dict[str, Any]:
    turn = len(request["messages"]) // 2
    uses = [
        ("write_file", {"path": "a.py", "content": CODE}),
        ("exec", {"command": "python3 a.py"}),
    ]
    content: dict[str, Any]
    if turn < len(uses):
        name, given = uses[turn]
        content = {"type": "tool_use", "id": f"toolu_{turn}", "name": name, "input": given}
    else:
        last = request["messages"][-1]["content"][0]["content"]
        content = {"type": "text", "text": f"It printed {last}"}
    return {
        "id": f"msg_{turn}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [content],
        "stop_reason": "tool_use" if turn < len(uses) else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
