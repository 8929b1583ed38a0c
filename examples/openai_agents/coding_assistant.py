"""An agent of the OpenAI Agents SDK with a sandbox. See README.md beside it."""

from agents import Agent, Runner, function_tool

from sandkasten import SandboxClient  # thin Python wrapper or raw HTTP

client = SandboxClient(base_url="http://localhost:8080", api_key="sk-sandbox-...")


@function_tool
async def exec(cmd: str, timeout_ms: int = 30000) -> str:
    """Execute a shell command in the sandbox. Stateful: cd, env, bg jobs persist."""
    result = await session.exec(cmd, timeout_ms=timeout_ms)
    return f"exit={result.exit_code}\ncwd={result.cwd}\n---\n{result.output}"


@function_tool
async def write_file(path: str, content: str) -> str:
    """Write content to a file in the sandbox workspace."""
    await session.write(path, content)
    return f"wrote {path}"


@function_tool
async def read_file(path: str) -> str:
    """Read a file from the sandbox workspace."""
    data = await session.read(path)
    return data.decode()


agent = Agent(
    name="coding-assistant",
    instructions="You have a Linux sandbox. Use exec, write_file, read_file.",
    tools=[exec, write_file, read_file],
)


async def main():
    global session
    session = await client.create_session(image="sandbox-runtime:python")
    try:
        result = await Runner.run(
            agent, "Write a Python script that prints fibonacci numbers and run it"
        )
        print(result.final_output)
    finally:
        await session.destroy()


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
