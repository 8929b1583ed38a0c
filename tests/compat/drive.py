"""Every operation of the published client, run against the daemon at argv[1] with the key argv[2].

Runs in the environment of that client; prints what it saw as one JSON object.
"""

from __future__ import annotations

import asyncio
import io
import json
import pathlib
import sys
import tempfile
from typing import TYPE_CHECKING

import httpx

from sandkasten import SandboxClient, __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable


async def main(url: str, key: str, image: str) -> dict[str, object]:
    seen: dict[str, object] = {"version": __version__}
    async with SandboxClient(base_url=url, api_key=key) as client:
        session = await client.create_session(image=image, ttl_seconds=300)
        again = await client.get_session(session.id)
        listed = [one.id for one in await client.list_sessions()]
        seen["listed"] = session.id in listed and again.id == session.id
        info = await session.info()
        seen["info"] = [info.status, info.cwd, type(info.created_at).__name__, info.workspace_id]

        result = await session.exec("cd /tmp && export A=1; echo out; echo err >&2; false")
        seen["exec"] = [result.exit_code, result.cwd, sorted(result.output.split()),
                        result.truncated, result.duration_ms >= 0]  # fmt: skip
        seen["state"] = (await session.exec("echo $A; pwd")).output
        for timeout_ms in (500, 5000, 20000):  # A busy machine may need longer for the first word.
            late = await session.exec("echo before; sleep 60", timeout_ms=timeout_ms)
            if late.output:
                break
        seen["timeout"] = [late.exit_code, late.output]
        raw = await session.exec("echo raw", raw_output=True)
        seen["raw"] = raw.output

        chunks = [one async for one in session.exec_stream("echo 1; sleep 0.3; echo 2; exit 3")]
        seen["stream"] = ["".join(one.output for one in chunks[:-1]), len(chunks) > 2,
                          chunks[-1].done, chunks[-1].exit_code,
                          chunks[0].timestamp > 10**12]  # fmt: skip
        await session.exec("true")

        await session.write("a/text.txt", "grüße")
        await session.write("/workspace/bytes.bin", bytes(range(256)))
        await session.write("empty", b"")
        read = await session.read("a/text.txt")
        seen["read"] = [read.content.decode(), read.path, read.truncated]
        binary = await session.read("bytes.bin")
        seen["binary"] = binary.content == bytes(range(256))
        cut = await session.read("bytes.bin", max_bytes=10)
        seen["cut"] = [len(cut.content), cut.truncated]
        seen["empty"] = (await session.read("empty")).content == b""

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "data.bin"
            path.write_bytes(b"\xff\x00" * 700_000)
            seen["upload"] = await session.upload(path)
        whole = await session.read("data.bin")
        seen["uploaded"] = whole.content == b"\xff\x00" * 700_000
        seen["upload_to"] = await session.upload(
            io.BytesIO(b"x"), dest_path="/workspace/d", filename="y"
        )

        stats = await session.stats()
        seen["stats"] = [stats.memory_limit > 0, stats.cpu_usage_usec is not None]
        seen["missing"] = await refused(session.read("nothing"))
        await session.destroy()
        seen["gone"] = await refused(session.exec("true"))
        seen["unknown"] = await refused(client.get_session("sbx_0123456789abcdef"))

        async with await client.create_session(image=image, workspace_id="compat-space") as kept:
            await kept.write("kept.txt", "still here")
            seen["workspace_id"] = (await kept.info()).workspace_id
        async with await client.create_session(image=image, workspace_id="compat-space") as kept:
            seen["kept"] = (await kept.read("kept.txt")).content.decode()
        seen["workspaces"] = [one.id for one in await client.list_workspaces()]
        await client.delete_workspace("compat-space")
        seen["deleted"] = [one.id for one in await client.list_workspaces()]
    async with SandboxClient(base_url=url, api_key="wrong") as stranger:
        seen["stranger"] = await refused(stranger.list_sessions())
    return seen


async def refused(asking: Awaitable[object]) -> list[object]:
    try:
        await asking
    except httpx.HTTPStatusError as exc:
        return [exc.response.status_code, exc.response.json()["error_code"]]
    return ["not refused"]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:4]))))
