/** A person uses the dashboard: from the login to the end of a session. */

import { deflateSync, crc32 } from "node:zlib";
import {
  accessible, ask, check, logIn, onStage, picture, pictures, screen, until, url,
} from "./stage.mjs";

const CHART = `from IPython.display import SVG, display
values = [3, 5, 4, 8, 12, 9, 14, 13, 18, 22, 19, 26]
bars = "".join(f'<rect x="{20 + 45*i}" y="{220 - 7*v}" width="32" height="{7*v}" fill="#b45309"/>' for i, v in enumerate(values))
display(SVG(f'<svg xmlns="http://www.w3.org/2000/svg" width="580" height="240">{bars}<path d="M10 220H570" stroke="#333"/></svg>'))
print("values:", len(values))
`;

const TASKS = ["clean-the-data", "train", "report", "review-42", "nightly"];

await onStage(async (page, context) => {
  await page.goto(`${url}/`);
  await page.getByLabel("API key").fill("sk-wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").getByText("This key is not valid for this daemon.").waitFor();
  check(!(await page.content()).includes("apiKey"), "the hint is for programmers");
  await accessible(page, "login");
  await picture(page, "login");
  await logIn(page);
  const kept = await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }));
  check(!kept.includes(process.env["SANDKASTEN_API_KEY"]), "the key is kept by the page");

  // ---- create
  for (const task of pictures === undefined ? [] : TASKS) {
    await ask("POST", "/v1/sessions", { labels: { task, team: "data" } });
  }
  await page.getByRole("button", { name: "New session" }).click();
  await page.getByText("None: the session has no network.").waitFor();
  await page.locator('datalist option[value="host"]').waitFor({ state: "attached" });
  await page.getByText("Limits, time, labels and packages").click();
  await page.getByLabel("Labels").fill("team=design, note=<i>x</i>");
  await page.getByLabel("Memory (MiB)").fill("400");
  await page.getByLabel("Ends when idle for (minutes)").fill("60");
  await accessible(page, "new session");
  await page.getByLabel("Allowed hosts").fill("allowed.example");
  await picture(page, "new-session");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByText("Nothing ran here yet.").waitFor();
  const id = new URL(page.url()).hash.split("/")[2];
  check(id.startsWith("sbx_"), page.url());

  const created = await ask("GET", `/v1/sessions/${id}`);
  check(created.limits.mem_limit_mb === 400 && created.ttl_seconds === 3600, JSON.stringify(created));
  check(created.labels.note === "<i>x</i>", JSON.stringify(created.labels));

  // ---- looking starts nothing; a shell without input ends with its page
  for (const name of ["Files", "Resources", "Code", "Network", "Ports", "Replay", "Commands"]) {
    await tab(page, name);
    await page.waitForFunction(() => document.querySelector("main [aria-busy=true]") === null);
  }
  check((await ask("GET", `/v1/sessions/${id}/execs`)).length === 0, "looking ran a command");
  await tab(page, "Terminal");
  await page.getByText("connected", { exact: true }).waitFor();
  await tab(page, "Commands");
  await page.locator("tbody .badge").first().waitFor();
  await until("the end of the shell", async () =>
    (await ask("GET", `/v1/sessions/${id}/execs`)).every(({ status }) => status !== "running"),
  );
  await page.locator("tbody .badge", { hasText: /^closed$/ }).waitFor();
  check((await page.locator("tbody .badge.bad").count()) === 0, "a closed shell looks like a failure");

  // ---- titles keep their places when another one is the current one
  const places = () =>
    page
      .locator("nav a")
      .evaluateAll((links) => links.map((link) => Math.round(link.getBoundingClientRect().x)).join());
  const fixed = await places();
  await tab(page, "Terminal");
  check((await places()) === fixed, "titles move");

  // ---- the terminal
  await page.getByText("connected", { exact: true }).waitFor();
  const type = async (text) => {
    await page.locator(".xterm-helper-textarea").focus();
    await page.keyboard.type(text);
  };
  await until("a prompt", async () => /[$#] /.test(await screen(page)));
  await type("cd /tmp && X=left-here && echo in-$PWD\n");
  await until("cd", async () => (await screen(page)).includes("in-/tmp"));
  await type("stty size\n");
  const wide = await until("stty", async () => /^\d+ \d{2,3}$/m.exec((await screen(page))));
  await page.setViewportSize({ width: 900, height: 700 });
  await type("clear; stty size\n");
  await until("the new size", async () => {
    const found = /^\d+ \d{2,3}$/m.exec((await screen(page)));
    return found !== null && found[0] !== wide[0];
  });
  await page.setViewportSize({ width: 1280, height: 800 });
  await type("clear; seq 500 | less\n");
  await until("less", async () => (await screen(page)).includes(":"));
  await type("q");
  await type("clear; ls -la /; echo ready\n");
  await until("ready", async () => (await screen(page)).includes("ready"));
  await accessible(page, "terminal");
  await picture(page, "terminal");
  await page.reload();
  await page.getByText("connected", { exact: true }).waitFor();
  await until("the old output", async () => (await screen(page)).includes("ready"));
  await page.waitForTimeout(500);
  await type("clear; echo $X-still\n");
  await until("the shell", async () => (await screen(page)).includes("left-here-still"));

  // ---- files
  await tab(page, "Files");
  await page.getByText("This folder is empty.").waitFor();
  await page.getByLabel("Files to upload").setInputFiles([
    { name: "picture.png", mimeType: "image/png", buffer: png(240, 120) },
    { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("first line\n") },
  ]);
  await page.getByRole("link", { name: "picture.png" }).click();
  await page.locator("img.picture").waitFor();
  const width = await until("the picture", () =>
    page.locator("img.picture").evaluate((one) => one.naturalWidth),
  );
  check(width === 240, `the picture is ${width} wide`);
  await accessible(page, "picture");
  await picture(page, "files");
  await page.getByRole("link", { name: "notes.txt" }).click();
  await page.getByLabel("Content of /workspace/notes.txt").fill("changed\n");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("Saved").waitFor();
  const read = await ask("GET", `/v1/sessions/${id}/fs/read?path=notes.txt`);
  check(read.content === "changed\n", JSON.stringify(read));
  await accessible(page, "editor");
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Download notes.txt" }).click(),
  ]);
  check(download.suggestedFilename() === "notes.txt", download.suggestedFilename());
  await page.getByRole("button", { name: "Delete notes.txt" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("link", { name: "notes.txt" }).waitFor({ state: "detached" });

  // ---- commands
  await tab(page, "Commands");
  await page.getByLabel("Command", { exact: true }).fill("echo to-see; exit 3");
  await page.getByRole("button", { name: "Run" }).click();
  const details = page.locator("article.details");
  await details.getByText("to-see", { exact: true }).waitFor();
  await details.locator("dd", { hasText: /^3$/ }).waitFor();
  await details.locator(".badge.bad", { hasText: "exit 3" }).waitFor();
  await ask("POST", `/v1/sessions/${id}/exec`, {
    cmd: ["sleep", "60"],
    timeout_ms: 300,
  });
  await page.getByRole("link", { name: /sleep 60/ }).click();
  await details.locator(".why").waitFor();
  await accessible(page, "commands");
  await picture(page, "commands");

  // ---- resources
  await tab(page, "Resources");
  const memory = page.locator("figure", { hasText: "Memory" }).locator("strong");
  await until("a value", async () => /[KM]iB/.test(await memory.textContent()));
  const before = megabytes(await memory.textContent());
  await ask("POST", `/v1/sessions/${id}/exec`, {
    cmd: "python3 -c 'b=b\"x\"*200_000_000; import time; time.sleep(600)' >/dev/null 2>&1 &",
  });
  await until("memory to rise", async () => megabytes(await memory.textContent()) > before + 150);
  const { pids_limit: most } = await ask("GET", `/v1/sessions/${id}/stats`);
  const processes = page.locator("figure", { hasText: "Processes" });
  await processes.getByText(`top: ${most}`, { exact: true }).waitFor();
  await page.waitForTimeout(8000);
  await accessible(page, "resources");
  await picture(page, "resources");

  // ---- network
  await ask("POST", `/v1/sessions/${id}/exec`, {
    cmd: "curl -s -m 5 http://refused.example/; curl -s -m 5 http://169.254.169.254/",
  });
  await tab(page, "Network");
  const metadata = page.locator("tr", { hasText: "169.254.169.254:80" });
  await metadata.getByText("operator: network.reachable").waitFor();
  await metadata.getByText("address that is not public").waitFor();
  check((await metadata.getByRole("button").count()) === 0, "a button that cannot open it");
  await page.getByRole("button", { name: "Allow refused.example:80" }).first().waitFor();
  await accessible(page, "network");
  await picture(page, "network");
  await page.getByRole("button", { name: "Allow refused.example:80" }).first().click();
  await page.locator(".badge", { hasText: "refused.example:80" }).waitFor();
  const { network } = await ask("GET", `/v1/sessions/${id}`);
  check(
    JSON.stringify(network.allow) === '["allowed.example","refused.example:80"]',
    JSON.stringify(network),
  );

  // ---- ports
  await ask("POST", `/v1/sessions/${id}/exec`, {
    cmd: "cd /workspace && (python3 -m http.server 8000 >/dev/null 2>&1 &) ; sleep 1",
  });
  await tab(page, "Ports");
  await until("the server", async () => {
    await page.getByRole("button", { name: "Find servers" }).click();
    return page.getByRole("button", { name: "8000", exact: true }).isVisible();
  });
  await page.getByRole("button", { name: "8000", exact: true }).click();
  const link = page.getByRole("link", { name: "Port 8000" });
  await link.waitFor();
  const other = new URL(await link.getAttribute("href"));
  check(other.host !== new URL(url).host, "a preview has the origin of the dashboard");
  await accessible(page, "ports");
  await picture(page, "ports");

  // ---- code cells
  await tab(page, "Code");
  const cell = page.getByLabel("Code of cell 1");
  await cell.waitFor();
  await cell.fill(CHART);
  await cell.press("Shift+Enter");
  await page.locator("img.picture").waitFor();
  await page.getByText("values: 12").waitFor();
  await page.getByLabel("Code of cell 2").fill("len(values)");
  await page.getByLabel("Code of cell 2").press("Shift+Enter");
  await page.getByLabel("Result").getByText("12").waitFor();
  await page.locator("pre.code .code-word").first().waitFor();
  await tab(page, "Commands");
  await tab(page, "Code");
  await page.locator("img.picture").waitFor();
  await accessible(page, "code");
  await picture(page, "code");

  // ---- replay
  await ask("POST", `/v1/sessions/${id}/exec`, {
    cmd: ["printf", "\\033[32mpassed\\033[0m test_one\\n\\033[31mfailed\\033[0m test_two\\n"],
  });
  await tab(page, "Replay");
  const replay = page.getByRole("region", { name: "Replay" });
  const position = page.getByRole("status").filter({ hasText: "commands" });
  await position.getByText(/^0 of \d+ commands$/).waitFor();
  const all = Number((await position.textContent()).split(" ")[2]);
  const cards = page.locator(".replay article");
  // The shell without input, then the one that was used.
  await page.keyboard.press("ArrowRight");
  await cards.nth(0).getByText(/^closed, \d/).waitFor();
  await page.keyboard.press("ArrowRight");
  await until("the terminal", async () => (await screen(page)).includes("left-here-still"));
  await page.keyboard.press("ArrowRight");
  await cards.nth(2).getByText("to-see", { exact: true }).waitFor();
  await cards.nth(2).getByText(/^exit 3, /).waitFor();
  await cards.nth(1).locator("pre", { hasText: "left-here-still" }).waitFor();
  await page.keyboard.press("ArrowRight");
  await cards.nth(3).getByText(/ended by TIMEOUT/).waitFor();
  await page.evaluate(() => scrollTo(0, 0));
  await picture(page, "replay");
  for (let left = 4; left > 0; left -= 1) {
    await page.keyboard.press("ArrowLeft");
  }
  check((await cards.count()) === 0, "the last command is not hidden");
  await page.getByLabel("Speed").selectOption("instant");
  await replay.getByRole("button", { name: "Play" }).click();
  await position.getByText(`${all} of ${all} commands`).waitFor();
  await replay.getByRole("button", { name: "Play" }).waitFor();
  check((await cards.count()) === all, "commands are missing");
  await until("colours", async () => /passed test_one\nfailed test_two/.test(await screen(page)));
  await accessible(page, "replay");

  // ---- at its pace: it can be paused while a command runs
  await page.getByLabel("Speed").selectOption("1×");
  await page.locator("main").focus();
  await page.keyboard.press("Home");
  await page.keyboard.press("Space");
  await replay.getByRole("button", { name: "Pause" }).waitFor();
  await until("the first command", async () => (await cards.count()) === 1);
  await page.keyboard.press("Space");
  await replay.getByRole("button", { name: "Play" }).waitFor();
  check(!/^exit/.test(await cards.locator(".end").textContent()), "a terminal of minutes is over");

  // ---- phone and dark
  await page.emulateMedia({ colorScheme: "dark" });
  for (const name of ["Terminal", "Files", "Commands", "Resources", "Network", "Ports", "Code", "Replay"]) {
    await tab(page, name);
    await page.waitForTimeout(500);
    await accessible(page, `${name} in the dark`);
  }
  await tab(page, "Resources");
  await page.waitForTimeout(3000);
  await picture(page, "dark");
  await page.setViewportSize({ width: 390, height: 844 });
  await accessible(page, "phone");
  await picture(page, "phone");
  for (const name of ["commands", "code", "replay"]) {
    await page.goto("about:blank");
    await page.goto(`${url}/#/sessions/${id}/${name}`);
    const seen = await until(`the tab ${name}`, () =>
      page.locator(".tabs [aria-current]").evaluate((link) => {
        const [mine, all] = [link, link.parentElement].map((one) => one.getBoundingClientRect());
        return mine.left >= all.left && mine.right <= all.right && link.href;
      }),
    );
    check(seen.endsWith(name), seen);
  }
  await page.setViewportSize({ width: 1280, height: 800 });
  await page.emulateMedia({ colorScheme: "light" });

  // ---- a session without a network says so at once
  const closed = await ask("POST", "/v1/sessions", { network: "none" });
  await page.goto(`${url}/#/sessions/${closed.id}/network`);
  await page.getByText("This session was created without a network").waitFor();
  check((await page.locator("main input").count()) === 0, "an input that can only fail");
  await accessible(page, "no network");
  await ask("DELETE", `/v1/sessions/${closed.id}`);
  await page.goto(`${url}/#/sessions/${id}`);

  // ---- a second tab has the login; a killed session is gone
  const second = await context.newPage();
  await second.goto(`${url}/`);
  await second.getByRole("link", { name: id }).waitFor();
  await accessible(second, "sessions");
  await picture(second, "sessions");
  for (const one of pictures === undefined ? [] : await ask("GET", "/v1/sessions")) {
    await (one.id !== id && ask("DELETE", `/v1/sessions/${one.id}`));
  }
  await page.getByRole("button", { name: `Kill ${id}` }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Kill" }).click();
  await page.getByRole("heading", { name: "Sessions" }).waitFor();
  await page.getByRole("link", { name: id }).waitFor({ state: "detached" });
  await second.getByRole("link", { name: id }).waitFor({ state: "detached" });

  // ---- its past stays
  await page.goto(`${url}/#/sessions/${id}`);
  await page.getByText("This session does not exist, or has ended.").waitFor();
  await page.getByText(/^0 of \d+ commands$/).waitFor();
  await page.keyboard.press("End");
  await until("its output", async () => {
    const told = (await cards.allTextContents()).join("\n").replaceAll("\u00a0", " ");
    return told.includes("failed test_two");
  });
  await cards.getByText("to-see", { exact: true }).waitFor();
  await accessible(page, "an ended session");

  // ---- the end of the login is seen by the other tab too
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("API key").waitFor();
  await second.getByLabel("API key").waitFor();
});

async function tab(page, name) {
  await page
    .getByRole("navigation", { name: "Parts of the session" })
    .getByRole("link", { name, exact: true })
    .click();
}

function megabytes(text) {
  const [value, unit] = text.split(" ");
  return Number(value) * { KiB: 1 / 1024, MiB: 1, GiB: 1024 }[unit];
}

/** Return a picture: a gradient. */
function png(width, height) {
  const rows = [];
  for (let y = 0; y < height; y += 1) {
    rows.push(0);
    for (let x = 0; x < width; x += 1) {
      rows.push(180, 83 + Math.floor((x / width) * 120), 9 + Math.floor((y / height) * 160));
    }
  }
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 2, 0, 0, 0], 8);
  const chunk = (name, data) => {
    const body = Buffer.concat([Buffer.from(name), data]);
    const [size, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
    size.writeUInt32BE(data.length);
    sum.writeUInt32BE(crc32(body) >>> 0);
    return Buffer.concat([size, body, sum]);
  };
  return Buffer.concat([
    Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]),
    chunk("IHDR", head),
    chunk("IDAT", deflateSync(Buffer.from(rows))),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}
