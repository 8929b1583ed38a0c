/**
 * An agent of the Vercel AI SDK with a sandbox.
 *
 * OPENAI_BASE_URL is a chat completions endpoint, MODEL one of its models.
 */

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, tool } from "ai";
import { SandboxClient } from "sandkasten";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "endpoint",
  baseURL: process.env.OPENAI_BASE_URL ?? "http://localhost:11434/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "none",
});
const client = new SandboxClient();
const session = await client.createSession({ ttlSeconds: 600 });

const tools = {
  exec: tool({
    description: "Run a shell command in the sandbox. Directory, variables and jobs stay.",
    inputSchema: z.object({ command: z.string() }),
    execute: async ({ command }, { abortSignal }) => {
      const result = await session.exec(command, { timeoutMs: 30_000, signal: abortSignal });
      return { exitCode: result.exitCode, output: result.output };
    },
  }),
  writeFile: tool({
    description: "Write a file in the workspace.",
    inputSchema: z.object({ path: z.string(), content: z.string() }),
    execute: async ({ path, content }) => (await session.write(path, content)).path,
  }),
};

try {
  const { text, steps } = await generateText({
    model: provider(process.env.MODEL ?? "llama3.2"),
    system: "You have a Linux sandbox. Use exec and writeFile.",
    prompt: process.argv[2] ?? "Write a Python program that prints ten Fibonacci numbers and run it.",
    tools,
    stopWhen: stepCountIs(10),
  });
  console.log(text);
  console.log(`${steps.length} steps`);
} finally {
  await session.destroy();
}
