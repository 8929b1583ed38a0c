"""Claude Code with the tools of a sandbox, and a scripted model on a loopback port. Prints JSON.

argv[1] is `tools` to call the tools alone, or `agent` for a whole run of Claude Code.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from claude_agent_sdk import AssistantMessage, ResultMessage, TextBlock, UserMessage, query
from mcp import Client

from sandkasten import AsyncSandbox
from sandkasten.integrations.claude_agent_tools import sandbox_options, sandbox_server

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452")
SAY = "mcp__sandkasten__"
TURNS = [
    (f"{SAY}write_file", {"path": "total.py", "content": "print(sum(range(10)))\n"}),
    (f"{SAY}run_command", {"command": "cd /workspace && python3 total.py; exit 3"}),
    (f"{SAY}read_file", {"path": "missing"}),
]


async def tools() -> dict[str, object]:
    async with AsyncSandbox() as box, Client(sandbox_server(box)["instance"]) as client:

        async def call(name: str, **arguments: object) -> list[object]:
            answer = await client.call_tool(name, arguments)
            [block] = answer.content
            content = block.text if block.type == "text" else [block.type, block.mime_type]
            return [content, answer.is_error]

        running = asyncio.create_task(
            call("run_command", command="echo $$ > shell; sleep 3600; echo late > late")
        )
        await box.exec(["sh", "-c", "until [ -s shell ]; do sleep 0.05; done"], check=True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        ended = "ls late; ps ax | grep -c 'sleep [3]600'; test $$ = $(cat shell) && echo same"
        stopped = await call("run_command", command=ended)
        await box.write("picture", PNG)
        await box.write("binary", b"\0\1")
        await box.write("large", "a" * 60_000)
        names = sorted(tool.name for tool in (await client.list_tools()).tools)
        large = await call("read_file", path="large", offset=5)
        return {
            "names": names,
            "stopped": stopped,
            "shell": [
                await call("run_command", command="mkdir -p d && cd d && X=1"),
                await call("run_command", command="pwd; echo $X"),
                await call("run_command", command="echo no >&2; false"),
                await call("run_command", command="echo so; sleep 60", timeout_seconds=5),
            ],
            "code": [
                await call("run_code", code="print(6 * 7)"),
                await call("run_code", code="exit 4", runtime="bash"),
                await call("run_code", code="1", runtime="cobol"),
            ],
            "files": [
                await call("write_file", path="a/b.txt", content="hello"),
                await call("read_file", path="a/b.txt"),
                await call("list_files", path="a"),
                await call("list_files", path="d"),
                await call("read_file", path="picture"),
                await call("read_file", path="binary"),
                [large[0][-70:], large[1]],
            ],
            "refused": [
                await call("read_file", path="none"),
                await call("read_file"),
                await call("run_command", command="true", timeout_seconds=-1),
            ],
        }


class ScriptedModel(BaseHTTPRequestHandler):
    """Answers a request of the Messages API with the turn that follows its last tool result."""

    offered: set[str] = set()

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "count_tokens" in self.path:
            self.answer("application/json", b'{"input_tokens": 1}')
            return
        names = {tool["name"] for tool in request.get("tools", [])}
        ScriptedModel.offered |= names
        results = sum(
            block["type"] == "tool_result"
            for message in request["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
        )
        if names and results < len(TURNS):
            name, arguments = TURNS[results]
            block = {"type": "tool_use", "id": f"toolu_{results}", "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            stop = "tool_use"
        else:
            block = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": "The total is 45."}
            stop = "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {
            "id": f"msg_{results}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        events = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": stop, "stop_sequence": None},
                "usage": usage,
            },
            {"type": "message_stop"},
        ]
        lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        self.answer("text/event-stream", "".join(lines).encode())

    def answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def text_of(content: object) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def agent() -> dict[str, object]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}",
        "ANTHROPIC_API_KEY": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    results, texts, ended = [], [], None
    async with AsyncSandbox() as box:
        options = sandbox_options(box, model="claude-sonnet-4-5", max_turns=9)
        async for message in query(prompt="Add the numbers from 0 to 9.", options=options):
            if isinstance(message, UserMessage) and isinstance(message.content, list):
                results += [[block.content, bool(block.is_error)] for block in message.content]
            elif isinstance(message, AssistantMessage):
                texts += [block.text for block in message.content if isinstance(block, TextBlock)]
            elif isinstance(message, ResultMessage):
                ended = message.subtype
        content = (await box.read("total.py")).decode()
    server.shutdown()
    return {
        "told": [[text_of(content), wrong] for content, wrong in results],
        "texts": texts,
        "ended": ended,
        "kept": content,
        "offered": sorted(ScriptedModel.offered),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run({"tools": tools, "agent": agent}[sys.argv[1]]())))
