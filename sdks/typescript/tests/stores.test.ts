/** Files, ports, code contexts, agents and what a daemon keeps. */

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, symlink, writeFile, mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import * as sandkasten from "sandkasten";
import { download, forward, upload } from "sandkasten/node";

import { client, proxy, until } from "./stage.js";

const daemon = client();
let session: sandkasten.Session;
let here: string;

before(async () => {
  session = await daemon.createSession();
  here = await mkdtemp(join(tmpdir(), "sandkasten-"));
});

after(async () => {
  await session.destroy();
  await daemon.close();
  await rm(here, { recursive: true, force: true });
});

async function text(stream: ReadableStream | null): Promise<string> {
  return new Response(stream).text();
}

test("files are written, read, listed, moved and removed", async () => {
  const written = await session.write("a/ü.txt", "grüße", { mode: 0o640 });
  assert.deepEqual([written.path, written.sizeBytes], ["/workspace/a/ü.txt", 7]);
  const read = await session.read("a/ü.txt");
  assert.deepEqual([read.text, read.truncated, read.size, read.length], ["grüße", false, 7, 7]);
  assert.ok(read instanceof Uint8Array);
  const part = await session.read("a/ü.txt", { offset: 1, maxBytes: 2 });
  assert.deepEqual([part.text, part.truncated, part.size], ["rü".slice(0, 1) + "\ufffd", true, 7]);
  assert.equal((await session.read("a/ü.txt", { offset: 99 })).length, 0);
  assert.equal((await session.read("a/ü.txt", { limit: 0 })).truncated, true);
  assert.equal(await session.readText("/work/a/ü.txt"), "grüße");
  assert.equal((await session.stat("a/ü.txt")).mode & 0o777, 0o640);
  await assert.rejects(session.write("a/ü.txt", "", { overwrite: false }), sandkasten.FileExists);
  assert.equal(await session.exists("a/ü.txt", { user: "sandbox" }), true);
  await assert.rejects(session.move("a", "b", { user: "root" }), /only profile dev has other users/);
  await session.mkdir("b/c");
  await session.move("a/ü.txt", "b/c/v");
  const names = (await session.ls(".", { recursive: true })).map((one) => one.path);
  assert.deepEqual(names, ["/workspace/a", "/workspace/b", "/workspace/b/c", "/workspace/b/c/v"]);
  assert.equal((await session.ls(".", { limit: 1 })).length, 1);
  assert.deepEqual([await session.exists("b/c/v"), await session.exists("a/ü.txt")], [true, false]);
  assert.equal(await session.remove("b", { recursive: true }), 3);
  assert.equal(await session.remove("b", { missingOk: true }), 0);
  await assert.rejects(session.read("b"), sandkasten.FileNotFound);
  await assert.rejects(session.read("a"), sandkasten.IsADirectory);
  await assert.rejects(session.read("\ud800"), sandkasten.InvalidRequest);
});

test("a name that is not UTF-8 is given as bytes", async () => {
  const name = new Uint8Array([...new TextEncoder().encode("/tmp/n"), 255]);
  await session.write(name, "x");
  assert.equal(await session.readText(name), "x");
  const listed = (await session.ls("/tmp")).find((one) => one.pathB64);
  assert.equal(atob(listed?.pathB64 ?? ""), "/tmp/n\xff");
});

test("files are sent and received as streams", async () => {
  const pieces = async function* () {
    for (let at = 0; at < 64; at += 1) {
      yield new Uint8Array(32_768).fill(at);
    }
  };
  assert.equal((await session.write("big", pieces())).size, 2 << 20);
  let size = 0;
  for await (const piece of await session.readStream("big")) {
    size += piece.length;
  }
  assert.equal(size, 2 << 20);
  assert.equal((await text(await session.readStream("big", { offset: 32_768, limit: 3 }))), "\x01\x01\x01");
  await session.write("blob", new Blob(["b", "lob"]).stream());
  assert.equal(await session.readText("blob"), "blob");
  const failing = async function* () {
    yield new Uint8Array(10);
    throw new RangeError("mine");
  };
  // What the caller's stream raises is the caller's.
  await assert.rejects(session.write("never", failing()), RangeError);
  assert.equal(await session.exists("never"), false);
});

test("trees move as tar archives and by name", async () => {
  await session.write("tree/x", "1");
  await session.write("tree/d/y", "2");
  const packed = await new Response(await session.downloadTar("tree")).arrayBuffer();
  const unpacked = await session.uploadTar(new Uint8Array(packed), "copy");
  assert.ok(unpacked.entries >= 3);
  assert.equal(await session.readText("copy/d/y"), "2");
  await mkdir(join(here, "up", "d"), { recursive: true });
  await writeFile(join(here, "up", "d", "f"), "local", { mode: 0o755 });
  await symlink("/etc", join(here, "up", "link"));
  const sent = await upload(session, join(here, "up"), "up");
  assert.deepEqual([sent.files, sent.bytes, sent.skipped.length], [1, 5, 1]);
  assert.equal((await session.stat("up/d/f")).mode & 0o777, 0o755);
  await session.exec(["ln", "-s", "/etc/passwd", "up/bad"], { cwd: "/workspace" });
  const received = await download(session, "up", join(here, "down"));
  assert.deepEqual([received.files, received.skipped.length], [1, 1]);
  assert.equal(await readFile(join(here, "down", "d", "f"), "utf8"), "local");
  await download(session, "up/d/f", here);
  assert.equal(await readFile(join(here, "f"), "utf8"), "local");
  await assert.rejects(download(session, "big", join(here, "big"), { maxBytes: 10 }), sandkasten.PayloadTooLarge);
  // A link on this machine does not lead a download elsewhere.
  await mkdir(join(here, "linked"));
  await symlink(here, join(here, "linked", "d"));
  const linked = await download(session, "up", join(here, "linked"));
  assert.equal(linked.files, 0);
});

test("changes are watched, also across a lost connection", async () => {
  const between = await proxy();
  try {
    const far = await client({ baseUrl: between.url }).getSession(session.id);
    await session.mkdir("w");
    const seen = [];
    let cut = false;
    let writing = true;
    const writer = (async () => {
      for (let at = 0; writing; at += 1) {
        await session.write(`w/${at % 9}`, "");
      }
    })();
    for await (const change of far.watch("w")) {
      seen.push(change.kind);
      if (!cut && change.kind === "created") {
        assert.ok(change.path.startsWith("/workspace/w/"), change.path);
        cut = between.cut() > 0;
      }
      if (cut && seen.includes("overflow") && change.kind !== "overflow") {
        break;
      }
    }
    writing = false;
    await writer;
  } finally {
    await between.close();
  }
});

test("a port has a link, a connection and a listener here", async () => {
  const server = "import http.server as h; h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler).serve_forever()";
  await session.write("served.txt", "from inside");
  const running = await session.start(["python3", "-c", server], { cwd: "/workspace" });
  await until("the server answers", async () => {
    try {
      await using port = await session.connect(8123);
      await port.send("GET /served.txt HTTP/1.0\r\n\r\n");
      await port.end();
      let answer = "";
      for await (const data of port) {
        answer += new TextDecoder().decode(data);
      }
      return answer.endsWith("from inside");
    } catch (error) {
      assert.ok(error instanceof sandkasten.ConnectionRefused, String(error));
      return false;
    }
  });
  {
    await using listener = await forward(session, 8123);
    assert.equal(await text((await fetch(`http://127.0.0.1:${listener.port}/served.txt`)).body), "from inside");
  }
  const link = await session.url(8123, { ttlSeconds: 60 });
  assert.match(link, /^http:\/\/8123-/);
  await session.revokeUrl(link);
  await session.revokeUrls();
  await assert.rejects(session.revokeUrl("x"), sandkasten.InvalidRequest);
  await running.kill();
});

test("the network of a session is closed, and says so", async () => {
  assert.equal((await session.network()).network, "none");
  assert.deepEqual(await session.networkLog(), []);
  await using open = await daemon.createSession({
    network: { allow: ["example.com"], dryRun: true, limits: { bytesIn: 1000 } },
  });
  const network = (await open.info()).network as Record<string, any>;
  assert.deepEqual([network.allow, network.dry_run, network.limits.bytes_in], [["example.com"], true, 1000]);
});

test("code contexts keep variables", { skip: !process.env.SANDKASTEN_KERNEL }, async () => {
  const shown = { out: "", err: "", results: [] as (string | null)[] };
  const first = await session.runCode("import sys\nx = 6\nprint('p')\nprint('e', file=sys.stderr)\nx * 7", {
    onStdout: (one) => (shown.out += one),
    onStderr: (one) => (shown.err += one),
    onResult: (one) => shown.results.push(one.text),
  });
  assert.deepEqual([first.text, first.stdout, first.error], ["42", "p\n", null]);
  assert.deepEqual(shown, { out: "p\n", err: "e\n", results: ["42"] });
  const failed = await session.runCode("1/0");
  assert.deepEqual([failed.error?.name, failed.executionCount], ["ZeroDivisionError", 2]);
  const context = await session.contexts.create({ env: { V: "v" } });
  const there = await session.runCode("import os; os.environ['V']", { context });
  assert.equal(there.text, "'v'");
  assert.equal((await session.contexts.list()).length, 2);
  assert.ok((await session.contexts.languages()).includes("python"));
  await session.contexts.interrupt(context);
  await session.contexts.restart(context.id);
  await session.contexts.remove(context);
  await assert.rejects(session.runCode("1", { context: context.id }), sandkasten.ContextNotFound);
  const slow = await session.runCode("import time; time.sleep(99)", { timeoutMs: 100 });
  assert.equal(slow.timedOut, true);
});

test("agents and workflows run, and their events are followed", async () => {
  const names = (await daemon.agents()).map((one) => one.name);
  assert.ok(names.includes("writer"), `${names}`);
  assert.deepEqual((await daemon.workflows()).map((one) => one.name), ["flow"]);
  assert.match((await daemon.definition("agent", "plain")).source, /You are plain/);
  assert.equal((await daemon.check("agent", "---\nmodel: m\n---\nHi")).error, null);
  const run = await daemon.runAgent("plain", "", { variables: { word: "w" } });
  assert.deepEqual([run.status, run.output, run.kind], ["completed", "plainly", "agent"]);
  const events = daemon.runEvents(run.id);
  const types = [];
  for await (const event of events) {
    types.push(event.type);
  }
  assert.equal(events.run.id, run.id);
  assert.ok(types.length > 1 && types.includes("run.started"), `${types}`);
  const flow = await daemon.runWorkflow("flow", { text: "hello" });
  assert.deepEqual([flow.status, flow.kind], ["completed", "workflow"]);
  const hanging = await daemon.runAgent("writer", "hang", { wait: false });
  assert.equal((await daemon.cancelRun(hanging.id)).status, "cancelled");
  assert.equal((await daemon.getRun(hanging.id)).done, true);
  const listed = await daemon.runs({ kind: "agent", status: "completed" });
  assert.ok(listed.some((one) => one.id === run.id));
  await assert.rejects(daemon.getRun("run_0123456789abcdef"), sandkasten.RunNotFound);
  await assert.rejects(daemon.resumeRun(flow.id), sandkasten.SandkastenError);
  await assert.rejects(daemon.runAgent("nobody"), sandkasten.AgentNotFound);
});

test("tools are listed and called", async () => {
  const tools = (await daemon.tools()).map((one) => one.name);
  assert.ok(tools.includes("sandbox_exec"), `${tools}`);
  const told = await daemon.callTool("sandbox_exec", { command: "echo x" }, { session: "t" });
  assert.equal(told.stdout, "x\n", JSON.stringify(told));
  await daemon.callTool("sandbox_close", {}, { session: "t" });
});

test("files outlive sessions in the file store", async () => {
  await session.write("out.txt", "kept");
  const published = await session.publish("out.txt", { fileKey: "k/out.txt", ttlSeconds: 600 });
  assert.deepEqual([published.fileKey, published.sizeBytes], ["k/out.txt", 4]);
  assert.equal(await text(await daemon.files.get("k/out.txt")), "kept");
  const put = await daemon.files.put("more", { key: "k/more", metadata: { a_b: "c" }, contentType: "text/plain" });
  assert.deepEqual([put.key, put.metadata], ["k/more", { a_b: "c" }]);
  assert.equal((await daemon.files.info("k/more")).sizeBytes, 4);
  assert.deepEqual((await daemon.files.list("k/")).map((one) => one.key), ["k/more", "k/out.txt"]);
  await session.stage("k/more", "staged");
  assert.equal(await session.readText("staged"), "more");
  await daemon.files.delete("k/more");
  await daemon.files.delete("k/out.txt");
  await assert.rejects(daemon.files.info("k/more"), sandkasten.FileNotFound);
});

test("a session is forked", async () => {
  await using source = await daemon.createSession({ labels: { a: "1" } });
  await source.exec("echo base > f");
  const copies = await source.fork(2, { labels: { b: "2" } });
  assert.equal(copies.length, 2);
  for (const copy of copies) {
    assert.ok(copy instanceof sandkasten.Session, String(copy));
    await using one = copy;
    assert.equal((await one.exec("cat f")).stdout, "base\n");
    assert.deepEqual(one.known.labels, { a: "1", b: "2" });
  }
  await assert.rejects(source.fork(21), sandkasten.InvalidRequest);
});

test("workspaces, images, secrets and keys are kept by the daemon", async () => {
  assert.equal((await daemon.workspaces.create("w1", { sizeMb: 32 })).name, "w1");
  {
    await using one = await daemon.createSession({ workspaceId: "w1" });
    await one.write("kept", "x");
    await assert.rejects(daemon.deleteWorkspace("w1"), sandkasten.Conflict);
  }
  assert.equal(await daemon.workspaces.files("w1").readText("kept"), "x");
  await daemon.workspaces.copy("w1", "w2");
  const { sizeBytes } = await daemon.workspaces.get("w2");
  const larger = await daemon.workspaces.resize("w2", (sizeBytes ?? 0) / 1e6 + 8);
  assert.ok((larger.sizeBytes ?? 0) > (sizeBytes ?? 0));
  assert.equal((await daemon.listWorkspaces()).length, 2);
  await daemon.workspaces.delete("w1");
  await daemon.deleteWorkspace("w2");
  await session.write("root/etc/x", "");
  const archive = await session.downloadTar("root");
  const [imported] = await daemon.images.importArchive(archive, { name: "tiny:1" });
  assert.deepEqual(imported?.names, ["tiny:1"]);
  assert.deepEqual((await daemon.images.tag("tiny:1", "tiny:2")).names, ["tiny:1", "tiny:2"]);
  assert.deepEqual((await daemon.images.list()).map((one) => one.id), [imported?.id]);
  await daemon.images.remove("tiny:1");
  await daemon.images.remove("tiny:2");
  assert.equal((await daemon.images.usage()).images, 0);
  await daemon.images.collect();
  const pulled = daemon.images.pull("127.0.0.1:9/none:1", { onProgress: () => undefined });
  await assert.rejects(pulled, sandkasten.SandkastenError);
  assert.ok(daemon.images.buildable.includes("datascience"));
  await assert.rejects(daemon.images.build("nothing"), /no image is built by the name nothing/);
  await assert.rejects(daemon.images.inspect("nothing:here"), sandkasten.ImageNotFound);
  const secret = await daemon.secrets.set({ name: "TOKEN", value: "value-of-it", hosts: ["example.com"], header: "X: {value}" });
  assert.equal(secret.name, "TOKEN");
  assert.ok(!JSON.stringify(await daemon.secrets.list()).includes("value-of-it"));
  await daemon.secrets.remove("TOKEN");
  const made = await daemon.keys.create({ name: "n", scopes: ["sessions"] });
  const limited = client({ apiKey: made.key });
  await assert.rejects(limited.keys.list(), sandkasten.PolicyDenied);
  assert.ok((await daemon.keys.list()).some((one) => one.id === made.id));
  await daemon.keys.revoke(made.id);
  await assert.rejects(limited.listSessions(), sandkasten.Unauthorized);
  assert.deepEqual((await daemon.ready()).degraded, []);
  assert.ok((await daemon.settings()).length > 10);
  assert.ok((await daemon.usage()).used);
  assert.ok((await daemon.audit({ limit: 5 })).length > 0);
  const [last] = await daemon.audit({ limit: 1, kind: "change" });
  assert.equal(last?.kind, "change");
  const { seq, hash } = last;
  assert.equal((await daemon.verifyAudit({ seq, hash })).ok, true);
  assert.equal((await daemon.verifyAudit({ seq, hash: "0".repeat(64) })).ok, false);
});
