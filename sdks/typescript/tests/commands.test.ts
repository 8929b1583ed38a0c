/** Sessions, commands, streams and terminals on a real daemon. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import * as sandkasten from "sandkasten";

import { client, KEY, proxy, until, URL_OF_DAEMON } from "./stage.js";

const daemon = client();
let session: sandkasten.Session;

before(async () => {
  session = await daemon.createSession({ labels: { made_by: "tests" }, ttlSeconds: 600 });
});

after(async () => {
  await session.destroy();
  await session.destroy();
  await daemon.close();
});

test("a session is found by its id, in the list and by its key", async () => {
  const again = await daemon.getSession(session.id);
  assert.equal(again.id, session.id);
  const [listed] = (await daemon.listSessions()).filter((one) => one.id === session.id);
  // Keys that are data keep their names.
  assert.deepEqual([listed?.status, listed?.labels], ["running", { made_by: "tests" }]);
  const labelled = await daemon.listSessions({ label: "made_by=tests", status: "running" });
  assert.deepEqual(labelled.map((one) => one.id), [session.id]);
  await using keyed = await daemon.createSession({ sessionKey: "agent:r1:k" });
  {
    await using found = await daemon.createSession({ sessionKey: "agent:r1:k" });
    assert.deepEqual([found.id, found.known.created], [keyed.id, false]);
  }
  // Leaving the block of what was found, and not created, destroys nothing.
  assert.equal((await keyed.info()).status, "running");
});

test("the end of a block destroys a session unless it is detached", async () => {
  let id;
  {
    await using one = await daemon.createSession();
    id = one.id;
  }
  await assert.rejects(daemon.getSession(id), sandkasten.NotFound);
  {
    await using one = await daemon.createSession();
    id = one.detach();
  }
  await (await daemon.getSession(id)).destroy();
});

test("a session can be changed, paused, resumed and looked at", async () => {
  const changed = await session.update({ labels: { made_by: "tests", other: "x" } });
  assert.equal(changed.labels.other, "x");
  assert.equal((await session.pause()).status, "paused");
  await assert.rejects(session.exec(["true"]), sandkasten.Conflict);
  assert.equal((await session.resume()).status, "running");
  assert.equal(typeof (await session.reclaim()), "number");
  const stats = await session.stats();
  assert.ok((stats.memoryBytes ?? 1) > 0, JSON.stringify(stats));
  assert.ok((await session.processes()).every((one) => typeof one.pid === "number"));
});

test("the shell remembers, a list is a fresh process, and failure is a result", async () => {
  await session.exec("cd /tmp && export A=ä");
  const told = await session.exec("echo $A; pwd; exit_with() { return $1; }; exit_with 3");
  assert.deepEqual(
    [told.output, told.cwd, told.exitCode, told.ok, told.exitStatus, told.truncated],
    ["ä\n/tmp\n", "/tmp", 3, false, 3, false],
  );
  assert.ok(told instanceof sandkasten.ExecResult);
  assert.equal(typeof told.durationMs, "number");
  const fresh = await session.exec(["sh", "-c", "pwd; cat; echo $B >&2"], {
    cwd: "/workspace",
    env: { B: "b" },
    stdin: "typed",
    timeoutMs: 30_000,
  });
  assert.deepEqual([fresh.stdout, fresh.stderr], ["/workspace\ntyped", "b\n"]);
  assert.equal(fresh.check(), fresh);
  await session.closeShell();
  assert.equal((await session.exec("echo -n $A")).output, "");
  const all = await session.execs({ limit: 3 });
  assert.equal(all.at(-1)?.exitCode, 0);
});

test("bytes that are not UTF-8 come whole", async () => {
  const told = await session.exec(["printf", "a\\377"], { rawOutput: true });
  assert.deepEqual([...told.stdoutData], [97, 255]);
  assert.deepEqual([...(await session.exec(["cat"], { stdin: new Uint8Array([255]) })).outputData], [255]);
  const pieces = [];
  for await (const one of session.execStream(["printf", "\\303\\244\\377"])) {
    pieces.push(...one.data);
  }
  assert.deepEqual(pieces, [0xc3, 0xa4, 0xff]);
});

test("a timeout is a result, and with check an error", async () => {
  const told = await session.exec(["sleep", "99"], { timeoutMs: 50 });
  const exitCode: number = told.exitCode;
  assert.deepEqual([told.timedOut, told.status, exitCode], [true, "timed_out", Number.NaN]);
  assert.equal(JSON.parse(JSON.stringify(told)).exitCode, null);
  assert.throws(() => told.check(), sandkasten.CommandTimeout);
  const failed = session.exec(["sh", "-c", "echo why >&2; exit 4"], { check: true });
  await assert.rejects(failed, (error) => {
    assert.ok(error instanceof sandkasten.CommandFailed);
    assert.deepEqual([error.result.exitCode, error.message.includes("why")], [4, true]);
    return true;
  });
});

test("errors have a class, a code, a hint, a status and a request id", async () => {
  await assert.rejects(session.exec(["no-such-program"]), (error) => {
    assert.ok(error instanceof sandkasten.CommandNotFound);
    assert.ok(error instanceof sandkasten.NotFound && error instanceof sandkasten.SandkastenError);
    assert.deepEqual([error.name, error.code], ["CommandNotFound", "COMMAND_NOT_FOUND"]);
    assert.ok(error.status === 404 || error.status === 422 || error.status === 400, `${error.status}`);
    assert.notEqual(error.hint, "");
    assert.match(error.requestId ?? "", /^req_/);
    assert.equal(error.retryable, false);
    return true;
  });
  await assert.rejects(daemon.getSession("sbx_0123456789abcdef"), sandkasten.SessionNotFound);
  await assert.rejects(daemon.createSession({ image: "no image" }), sandkasten.SandkastenError);
  await assert.rejects(client({ apiKey: "wrong" }).listSessions(), (error) => {
    assert.ok(error instanceof sandkasten.Unauthorized);
    assert.deepEqual([error.status, error.hint], [401, "pass a key of this daemon as apiKey"]);
    return true;
  });
  for (const baseUrl of ["ftp://x", "nothing", "http://a:b@x", "http://x/?y"]) {
    assert.throws(() => client({ baseUrl }), sandkasten.InvalidRequest);
  }
});

test("a daemon that is not there is an error with a hint, after some attempts", async () => {
  let attempts = 0;
  const counted: typeof fetch = (url, init) => {
    attempts += 1;
    return fetch(url, init);
  };
  const nowhere = client({ baseUrl: "http://127.0.0.1:9", fetch: counted });
  await assert.rejects(nowhere.version(), (error) => {
    assert.ok(error instanceof sandkasten.BackendUnavailable);
    assert.match(error.message, /no daemon answers at http:\/\/127.0.0.1:9/);
    assert.match(error.hint, /sandkasten serve/);
    return true;
  });
  assert.equal(attempts, 5);
});

test("only a request that may be repeated is sent again after a lost answer", async () => {
  const bodies: unknown[] = [];
  const losing: typeof fetch = async (url, init) => {
    bodies.push(init?.body);
    const response = await fetch(url, init);
    if (bodies.length === 1) {
      await response.body?.cancel();
      throw new TypeError("fetch failed", { cause: new Error("other side closed") });
    }
    return response;
  };
  const lossy = await client({ fetch: losing }).getSession(session.id);
  bodies.length = 0;
  await lossy.exec(["sh", "-c", "echo x >> /tmp/once"]);
  assert.deepEqual([bodies.length, bodies[0]], [2, bodies[1]]);
  assert.equal((await session.exec(["cat", "/tmp/once"])).stdout, "x\n");
  bodies.length = 0;
  // A second creation would make a second session.
  const lost = { labels: { answer: "lost" } };
  await assert.rejects(client({ fetch: losing }).createSession(lost), sandkasten.BackendUnavailable);
  assert.equal(bodies.length, 1);
  // The daemon has made it all the same.
  const made = (await daemon.listSessions()).filter((info) => info.labels.answer === "lost");
  assert.equal(made.length, 1);
  await (await daemon.getSession(made[0]!.id)).destroy();
});

test("a busy daemon is asked again when it says", async () => {
  const answers = [429, 503];
  const busy: typeof fetch = async (url, init) => {
    const status = answers.shift();
    if (status === undefined) {
      return fetch(url, init);
    }
    const body = { code: status === 429 ? "QUOTA_EXCEEDED" : "BUSY", message: "m", retryable: true };
    return new Response(JSON.stringify(body), { status, headers: { "Retry-After-Ms": "1" } });
  };
  assert.ok((await client({ fetch: busy }).version()).version);
  const sessions = { code: "QUOTA_EXCEEDED", message: "m", details: { quota: "sessions" } };
  let asked = 0;
  const full = async () => {
    asked += 1;
    return new Response(JSON.stringify(sessions), { status: 429 });
  };
  await assert.rejects(client({ fetch: full }).version(), sandkasten.QuotaExceeded);
  assert.equal(asked, 1);
});

test("an answer that takes too long, or is not from a daemon, is an error", async () => {
  const foreign = async () => new Response("<html>", { status: 502 });
  await assert.rejects(client({ fetch: foreign }).createSession(), (error) => {
    assert.ok(error instanceof sandkasten.BackendUnavailable);
    assert.match(error.message, /<html>/);
    return true;
  });
  const page = async () => new Response("<html>");
  await assert.rejects(client({ fetch: page }).version(), sandkasten.ProtocolViolation);
});

test("output comes as it is written, and the result at the end", async () => {
  const stream = session.execStream("echo one; read x; echo $x >&2", { stdin: "two\n" });
  assert.throws(() => stream.result, sandkasten.InvalidRequest);
  const told: Record<string, string> = { stdout: "", stderr: "" };
  for await (const piece of stream) {
    told[piece.stream] += piece.text;
  }
  assert.deepEqual([told, stream.result.exitCode], [{ stdout: "one\n", stderr: "two\n" }, 0]);
});

test("leaving a stream or aborting it stops the stream and not the command", async () => {
  const command = "echo $$; while [ ! -e /tmp/go ]; do sleep 0.05; done; touch /tmp/gone";
  const stream = session.execStream(["sh", "-c", command]);
  for await (const piece of stream) {
    assert.match(piece.text, /^\d+\n/);
    break;
  }
  const controller = new AbortController();
  const aborted = session.execStream(["sh", "-c", "echo; sleep 99"], { signal: controller.signal });
  await assert.rejects(async () => {
    for await (const _ of aborted) {
      controller.abort();
    }
  }, { name: "AbortError" });
  await assert.rejects(session.exec(["true"], { signal: controller.signal }), { name: "AbortError" });
  await session.write("/tmp/go", "");
  await until("the command went on", () => session.exists("/tmp/gone"));
});

test("a stream goes on after a lost connection, and nothing comes twice", async () => {
  const between = await proxy();
  try {
    const far = await client({ baseUrl: between.url }).getSession(session.id);
    const lines = [];
    const loop = "for i in 1 2 3 4 5 6; do echo $i; while [ ! -e /tmp/s$i ]; do sleep 0.02; done; done";
    const stream = far.execStream(["sh", "-c", loop]);
    for await (const piece of stream) {
      lines.push(...piece.text.trim().split("\n"));
      if (lines.length % 2 === 0) {
        assert.ok(between.cut() > 0);
      }
      await session.write(`/tmp/s${lines.at(-1)}`, "");
    }
    assert.deepEqual([lines, stream.result.exitCode], [["1", "2", "3", "4", "5", "6"], 0]);
  } finally {
    await between.close();
  }
});

test("the past of a session is read, also after its end", async () => {
  const other = await daemon.createSession();
  await other.exec("echo first; exit 3");
  await other.exec(["printf", "é"]);
  for (const ended of [false, true]) {
    const replay = daemon.replay(other.id);
    const commands = await replay.commands();
    assert.deepEqual(commands.map(({ exitCode }) => exitCode), [3, 0]);
    assert.deepEqual((await replay.commands({ limit: 1 })).map(({ exitCode }) => exitCode), [0]);
    const last = commands[1]?.execId ?? "";
    assert.ok((await replay.recordings()).some(({ execId }) => execId === last));
    const [head, event] = (await replay.recording(last)).split("\n").map((one) => one && JSON.parse(one));
    assert.deepEqual([head.version, event.slice(1)], [2, ["o", "é"]]);
    await assert.rejects(replay.recording("exe_0000000000000000"), sandkasten.FileNotFound);
    if (ended) {
      await assert.rejects(replay.output(last), sandkasten.NotFound);
    } else {
      assert.equal((await replay.output(last)).map(({ text }) => text).join(""), "é");
      await other.destroy();
    }
  }
  await assert.rejects(daemon.replay("sbx_0000000000000000").commands(), sandkasten.SessionNotFound);
});

test("the machine of the daemon is examined", async () => {
  const found = await daemon.doctor();
  assert.equal(found.ready, true);
  assert.equal(found.tiers[0]?.default, true);
});

test("a command in the background is followed, fed, signalled and awaited", async () => {
  const one = await session.start(["cat"], { keepStdinOpen: true });
  assert.equal((await one.poll()).running, true);
  assert.equal((await one.wait({ timeoutMs: 10 })).running, true);
  await one.writeStdin("a");
  await one.writeStdin(new Uint8Array([98]));
  await one.closeStdin();
  const ended = await session.process(one.execId).wait();
  assert.deepEqual([ended.stdout, ended.exitCode], ["ab", 0]);
  assert.equal((await one.output()).map((piece) => piece.text).join(""), "ab");
  assert.equal((await one.follow().wait()).exitCode, 0);
  const other = await session.start(["sleep", "99"]);
  await other.signal("TERM");
  assert.equal((await other.wait()).signal, 15);
  const third = await session.start(["sleep", "99"]);
  await third.kill();
  assert.equal((await third.wait()).exitStatus, 137);
});

test("a large stdin is sent in pieces", async () => {
  const size = 9 << 20;
  const told = await session.exec(["wc", "-c"], { stdin: new Uint8Array(size) });
  assert.equal(told.stdout.trim(), String(size));
});

test("a terminal takes keys, has a size, and is left by hanging up", async () => {
  const terminal = await session.terminal({ command: ["sh"], rows: 10, cols: 40 });
  let shown = "";
  const reading = (async () => {
    for await (const data of terminal) {
      shown += new TextDecoder().decode(data);
    }
  })();
  await terminal.send("stty size; echo $((40+2))\n");
  await until("the size was shown", () => shown.includes("10 40") && shown.includes("42"));
  await terminal.resize(20, 60);
  await terminal.send("stty size\n");
  await until("the new size was shown", () => shown.includes("20 60"));
  await terminal.send("exit 7\n");
  await reading;
  assert.equal((await terminal.result()).exitCode, 7);
  await terminal.close();
  await assert.rejects(session.terminal({ execId: "exe_none" }), sandkasten.SandkastenError);
});

test("a terminal goes on after a lost connection, and can be left and found again", async () => {
  const between = await proxy();
  try {
    const far = await client({ baseUrl: between.url }).getSession(session.id);
    await using terminal = await far.terminal({ command: ["cat"] });
    let shown = "";
    const reading = (async () => {
      for await (const data of terminal) {
        shown += new TextDecoder().decode(data);
      }
    })();
    await terminal.send("before\n");
    await until("it was shown", () => shown.includes("before\r\nbefore"));
    assert.ok(between.cut() > 0);
    // What is typed into a connection that is just breaking is lost, as on any terminal.
    await until("it was shown", async () => {
      await terminal.send("after\n");
      return shown.includes("after\r\nafter");
    });
    assert.equal(shown.split("before").length, 3);
    await terminal.signal("KILL");
    await reading;
    assert.equal((await terminal.result()).signal, 9);
    const left = await session.terminal({ command: ["cat"] });
    const execId = left.detach();
    await using again = await session.terminal({ execId, offset: left.offset });
    await again.send("x\n");
    assert.match(new TextDecoder().decode((await again[Symbol.asyncIterator]().next()).value), /x/);
  } finally {
    await between.close();
  }
});

test("code runs in a fresh process with files beside it", async () => {
  const told = await session.run("import sys, other; print(other.X, sys.argv[1:])", {
    files: { "other.py": "X = 5" },
    args: ["a"],
  });
  assert.equal(told.stdout, "5 ['a']\n");
  await assert.rejects(session.run("1", { runtime: "cobol" }), sandkasten.InvalidRequest);
  const out: string[] = [];
  const once = await daemon.run("echo $1; cat f; cat; exit 2", {
    runtime: "bash",
    args: ["arg"],
    files: { f: new Uint8Array([0x66, 0x0a]), "made/g": "g" },
    stdin: "in",
    artifacts: ["made/*"],
    onStdout: (text) => out.push(text),
  });
  assert.deepEqual([once.ok, once.exitCode, once.stdout, out.join("")], [false, 2, "arg\nf\nin", "arg\nf\nin"]);
  assert.deepEqual(once.artifacts.map((one) => [one.path, one.sizeBytes]), [["made/g", 1]]);
});

test("a Unix socket is an address too", { skip: !process.env.SANDKASTEN_SOCKET }, async () => {
  const local = client({ baseUrl: `unix://${process.env.SANDKASTEN_SOCKET}`, apiKey: undefined });
  const found = await local.getSession(session.id);
  assert.equal((await found.exec(["echo", "x"])).stdout, "x\n");
  await using terminal = await found.terminal({ command: ["echo", "shown"] });
  assert.equal((await terminal.result()).exitCode, 0);
  await local.close();
});

test("the environment names the daemon if the caller does not", async () => {
  const found = new sandkasten.SandboxClient();
  assert.equal(found.baseUrl, URL_OF_DAEMON);
  assert.ok((await found.version()).version);
  assert.ok(KEY);
});
