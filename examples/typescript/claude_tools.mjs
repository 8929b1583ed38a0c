/**
 * Claude with a sandbox, by tool use of the Messages API.
 *
 * ANTHROPIC_API_KEY is a key; ANTHROPIC_BASE_URL names another endpoint.
 */

import Anthropic from "@anthropic-ai/sdk";
import { SandboxClient } from "sandkasten";

const claude = new Anthropic();
const client = new SandboxClient();
const session = await client.createSession({ ttlSeconds: 600 });

const tools = [
  {
    name: "exec",
    description: "Run a shell command in the sandbox. Directory, variables and jobs stay.",
    input_schema: {
      type: "object",
      properties: { command: { type: "string" } },
      required: ["command"],
    },
  },
  {
    name: "write_file",
    description: "Write a file in the workspace.",
    input_schema: {
      type: "object",
      properties: { path: { type: "string" }, content: { type: "string" } },
      required: ["path", "content"],
    },
  },
];

/** Return what a tool answers. A failure is an answer too, so that the model can go on. */
async function call(name, input) {
  try {
    if (name === "write_file") {
      return { content: `wrote ${(await session.write(input.path, input.content)).path}` };
    }
    const result = await session.exec(input.command, { timeoutMs: 30_000 });
    return { content: `exit=${result.exitCode}\n${result.output}`, is_error: !result.ok };
  } catch (error) {
    return { content: `${error.message}\nhint: ${error.hint ?? ""}`, is_error: true };
  }
}

const task = process.argv[2] ?? "Write a Python program that prints ten Fibonacci numbers and run it.";
const messages = [{ role: "user", content: task }];
try {
  for (let turn = 0; turn < 10; turn += 1) {
    const answer = await claude.messages.create({
      model: process.env.MODEL ?? "claude-sonnet-4-5",
      max_tokens: 2000,
      tools,
      messages,
    });
    messages.push({ role: "assistant", content: answer.content });
    for (const block of answer.content) {
      if (block.type === "text") {
        console.log(block.text);
      }
    }
    const uses = answer.content.filter((block) => block.type === "tool_use");
    if (uses.length === 0) {
      break;
    }
    const results = [];
    for (const use of uses) {
      const told = await call(use.name, use.input);
      results.push({ type: "tool_result", tool_use_id: use.id, ...told });
    }
    messages.push({ role: "user", content: results });
  }
} finally {
  await session.destroy();
}
