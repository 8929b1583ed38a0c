/** One program for every runtime: a page, Node, Deno and Bun. */

import { FileNotFound, SandboxClient, Unauthorized } from "sandkasten";

export async function drive(apiKey: string, baseUrl?: string): Promise<Record<string, unknown>> {
  const told: Record<string, unknown> = {};
  const client = new SandboxClient({ apiKey, baseUrl });
  const session = await client.createSession();
  try {
    const result = await session.exec("echo out; echo err >&2; exit 3");
    told["exec"] = [result.exitCode, result.stdout, result.stderr];
    const pieces: string[] = [];
    for await (const piece of session.execStream(["sh", "-c", "echo one; read x; echo $x"], {
      stdin: "two\n",
    })) {
      pieces.push(piece.text);
    }
    told["stream"] = pieces.join("");
    const source = new ReadableStream<Uint8Array>({
      start(controller) {
        controller.enqueue(new TextEncoder().encode("grüße "));
        controller.enqueue(new TextEncoder().encode("als Strom"));
        controller.close();
      },
    });
    await session.write("a.txt", source);
    told["read"] = (await session.read("a.txt")).text;
    told["part"] = await new Response(await session.readStream("a.txt", { offset: 8 })).text();
    const terminal = await session.terminal({ command: ["cat"] });
    await terminal.send("typed\n");
    let shown = "";
    for await (const data of terminal) {
      shown += new TextDecoder().decode(data);
      if (shown.includes("typed\r\ntyped")) {
        break;
      }
    }
    await terminal.close();
    told["terminal"] = true;
    const controller = new AbortController();
    try {
      for await (const _ of session.execStream(["sh", "-c", "echo; sleep 99"], {
        signal: controller.signal,
      })) {
        controller.abort();
      }
    } catch (error) {
      told["abort"] = (error as Error).name;
    }
    told["missing"] = await session.read("b").catch((error) => error instanceof FileNotFound);
    told["refused"] = await session
      .terminal({ execId: "none" })
      .then(() => false, (error: Error) => error.name);
    const stranger = new SandboxClient({ apiKey: "wrong", baseUrl });
    told["stranger"] = await stranger
      .listSessions()
      .catch((error) => error instanceof Unauthorized);
    told["run"] = (await client.run("print(6 * 7)")).stdout;
  } finally {
    await session.destroy();
    await client.close();
  }
  return told;
}
