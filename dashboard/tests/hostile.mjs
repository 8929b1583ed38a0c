/** Everything that a sandbox controls tries to act on the page; nothing of it has an effect. */

import { createServer } from "node:http";
import { ask, check, logIn, onStage, screen, until, url } from "./stage.mjs";

const elsewhere = [];
const evil = createServer((request, response) => {
  elsewhere.push(request.url);
  response.end("");
}).listen(0, "127.0.0.1");
await new Promise((resolve) => evil.once("listening", resolve));
const away = `http://127.0.0.1:${evil.address().port}`;

const MARKUP = `<img src="${away}/img" onerror="alert(1)"><script>alert(2)</script>`;
const PAGE = `${MARKUP}<meta http-equiv="refresh" content="0;url=${away}/meta">
<link rel="stylesheet" href="${away}/css"><iframe src="${away}/frame"></iframe>
<form action="${away}/form"><input name="x"></form><svg onload="alert(3)"></svg>
<a id="out" href="${away}/link" target="_top">a link</a><base href="${away}/base">
<style>@import url(${away}/import); body { background: url(${away}/background) }</style>`;
const DRAWING = `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
width="90" height="90" onload="alert(4)"><script>alert(5); fetch("${away}/svg")</script>
<image href="${away}/svg-image" width="9" height="9"/><rect width="90" height="90" fill="red"/>
<foreignObject width="9" height="9"><body xmlns="http://www.w3.org/1999/xhtml">
<iframe src="javascript:alert(6)"/></body></foreignObject></svg>`;
const CODES = [
  // The clipboard, a link, a title, a file, and a question whose answer would be typed.
  `\\033]52;c;${Buffer.from("stolen").toString("base64")}\\007`,
  `\\033]8;;${away}/osc8\\007click-me\\033]8;;\\007`,
  `\\033]8;;javascript:alert(7)\\007click-me-too\\033]8;;\\007`,
  `\\033]0;${MARKUP.replaceAll('"', "'")}\\007`,
  `\\033]1337;File=inline=1:PHN2Zz4=\\007`,
];

await onStage(
  async (page, context) => {
    await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: url });
    const session = await ask("POST", "/v1/sessions", {
      labels: { note: "<img src=x onerror=alert(8)>" },
    });
    const at = `/v1/sessions/${session.id}`;
    const write = (path, content) => ask("POST", `${at}/fs/write`, { path, content });
    await write(`<img src=x onerror=alert(9)>.txt`, MARKUP);
    await write(`"><script>alert(10)<\u2215script>.html`, PAGE);
    await write("javascript:alert(11)", MARKUP);
    await write("\u202Egnp.exe", "turned around");
    await write("two\nlines", "x");
    await write("drawing.svg", DRAWING);
    await write("page.html", PAGE);
    await ask("POST", `${at}/exec`, { cmd: ["printf", `%b${MARKUP}`, CODES.join("")] });

    await logIn(page);
    await page.evaluate(() => navigator.clipboard.writeText("untouched"));
    await page.getByText("note=<img src=x onerror=alert(8)>").waitFor();

    const open = (tab, query = "") => page.goto(`${url}/#/sessions/${session.id}/${tab}${query}`);
    await open("files");
    await page.getByRole("link", { name: "<img src=x onerror=alert(9)>.txt" }).click();
    const field = page.locator("textarea");
    await until("the file", async () => (await field.inputValue()) === MARKUP);
    await page.getByRole("link", { name: "page.html" }).last().click();
    await until("the page", async () => (await field.inputValue()) === PAGE);
    await page.getByRole("link", { name: "drawing.svg" }).click();
    await until("the drawing", () =>
      page.locator("img.picture").evaluate((one) => one.naturalWidth === 90),
    );
    await open("files", `?open=${encodeURIComponent("javascript:alert(12)")}&path=%2Fworkspace`);
    await page.getByRole("alert").waitFor();

    await open("commands");
    await page.locator("td a").first().click();
    await page.locator("article.details pre").getByText("alert(2)").waitFor();

    await open("terminal");
    await page.getByText("connected", { exact: true }).waitFor();
    await until("a prompt", async () => /[$#] /.test(await screen(page)));
    await page.locator(".xterm-helper-textarea").focus();
    await page.keyboard.type(`printf '%b' '${CODES.join("").replaceAll("'", "'\\''")}'; echo; echo done-$((1+1))\n`);
    await until("the codes", async () => (await screen(page)).includes("done-2"));
    const click = async (row) => {
      const box = await row.boundingBox();
      for (const right of [20, 120]) {
        for (const modifier of [[], ["Control"], ["Alt"]]) {
          await Promise.all(modifier.map((key) => page.keyboard.down(key)));
          await page.mouse.click(box.x + right, box.y + 5);
          await Promise.all(modifier.map((key) => page.keyboard.up(key)));
        }
      }
    };
    await click(page.locator(".xterm-rows > div", { hasText: /^click-meclick-me-too/ }).last());
    check(!(await page.title()).includes("alert"), await page.title());

    await open("replay");
    await page.getByText(/^0 of \d+ commands?$/).waitFor();
    await page.keyboard.press("End");
    await until("the terminal again", async () => (await screen(page)).includes("done-2"));
    await click(page.locator(".xterm-rows > div", { hasText: /^click-meclick-me-too/ }).last());
    await page.keyboard.press("ArrowLeft");
    await until("the command again", async () => (await screen(page)).includes("alert(2)"));
    check((await page.locator(".replay img, .replay script").count()) === 0, "output became markup");

    await open("code");
    await page.getByLabel("Code of cell 1").fill(
      [
        "from IPython.display import HTML, SVG, Javascript, Markdown, display",
        `display(HTML(${JSON.stringify(PAGE)}))`,
        `display(SVG(${JSON.stringify(DRAWING)}))`,
        "display(Javascript('alert(13)'))",
        `display(Markdown(${JSON.stringify(MARKUP)}))`,
        `print(${JSON.stringify(MARKUP)})`,
      ].join("\n"),
    );
    await page.getByLabel("Code of cell 1").press("Shift+Enter");
    await page.locator("article").first().locator(".badge", { hasText: "ok" }).waitFor();
    const frame = page.locator("iframe.result").contentFrame();
    await frame.getByText("a link").waitFor();
    check(
      (await page.locator("iframe.result").getAttribute("sandbox")) === "",
      "the frame has rights",
    );
    await frame.locator("#out").click();

    // Cells of the history, as an agent could have made them.
    await page.route(/\/execs\?/, async (route) => {
      const rows = await (await route.fetch()).json();
      const cell = { ...rows[0], kind: "cell", status: "error", exit_code: null, signal: null };
      const more = { command: `if 1: # ${MARKUP}`, language: MARKUP, error_name: MARKUP };
      await route.fulfill({ json: [...rows, { ...cell, ...more, exec_id: "cel_0123456789abcdef" }] });
    });
    await open("commands");
    await page.getByRole("link", { name: `if 1: # ${MARKUP}` }).click();
    await page.locator("article.details .badge.bad", { hasText: MARKUP }).waitFor();
    await page.locator("article.details pre.code .code-comment", { hasText: MARKUP }).waitFor();
    await open("code");
    await page.getByRole("article", { name: /^Earlier cell cel_/ }).getByText(`# ${MARKUP}`).waitFor();
    check((await page.locator("pre.code img, pre.code script").count()) === 0, "code became markup");
    await page.waitForTimeout(1500);
    check(page.url().startsWith(`${url}/`), `the page went to ${page.url()}`);
    check(context.pages().length === 1, "another page was opened");
    const clipboard = await page.evaluate(() => navigator.clipboard.readText());
    check(clipboard === "untouched", `the clipboard has ${clipboard}`);
    check(elsewhere.length === 0, `requests to another origin: ${elsewhere.join(" ")}`);
    await ask("DELETE", at);
  },
  {},
  { hostile: true },
);
evil.close();
