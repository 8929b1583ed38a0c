/** A browser on a daemon: what the scenarios share. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const require = createRequire(import.meta.url);
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const url = required("SANDKASTEN_URL");
export const key = required("SANDKASTEN_API_KEY");
/** Where pictures of the pages go; nowhere by default. */
export const pictures = process.env["DASHBOARD_PICTURES"];

function required(name) {
  const value = process.env[name];
  if (value === undefined) {
    throw new Error(`${name} is not set`);
  }
  return value;
}

export function check(condition, message) {
  if (!condition) {
    throw new Error(message);
  }
}

/**
 * Run a scenario in a new browser. Fails on a dialog, on a request elsewhere, and on script errors.
 *
 * `hostile`: what the policy blocks is what the scenario is about.
 */
export async function onStage(scenario, options = {}, { hostile = false } = {}) {
  const browser = await chromium.launch({
    executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  });
  try {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    context.setDefaultTimeout(60_000);
    const wrong = [];
    context.on("request", (request) => {
      const address = request.url();
      // A hostile page counts what arrives: the browser also tells of requests that it blocks.
      if (!hostile && !address.startsWith(`${url}/`) && !/^(blob|about):/.test(address)) {
        wrong.push(`a request to ${address}`);
      }
      if (address.includes(key)) {
        wrong.push("the key is in an address");
      }
    });
    context.on("page", (page) => watch(page, wrong, hostile));
    const page = await context.newPage();
    await scenario(page, context);
    check(wrong.length === 0, `the page did what it must not:\n${wrong.join("\n")}`);
  } finally {
    await browser.close();
  }
}

function watch(page, wrong, hostile) {
  page.on("dialog", (dialog) => {
    wrong.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("pageerror", (error) => wrong.push(`an error of a script: ${error.message}`));
  page.on("console", (message) => {
    if (!hostile && /Content Security Policy/.test(message.text())) {
      wrong.push(message.text());
    }
  });
}

export async function logIn(page) {
  await page.goto(`${url}/`);
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Sessions" }).waitFor();
}

/** Fail on everything that axe finds. */
export async function accessible(page, what) {
  // Through the protocol of the browser, which the policy of the page does not restrict.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map(
    ({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(" ")}`,
  );
  check(found.length === 0, `${what}:\n${found.join("\n")}`);
}

/** Keep a picture of the page. */
export async function picture(page, name) {
  if (pictures !== undefined) {
    await page.screenshot({ path: `${pictures}/${name}.png` });
  }
}

/** Ask the API beside the page. */
export async function ask(method, path, body) {
  const answer = await fetch(`${url}${path}`, {
    method,
    headers: {
      authorization: `Bearer ${key}`,
      ...(body === undefined ? {} : { "content-type": "application/json" }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await answer.text();
  check(answer.ok, `${method} ${path} answered ${answer.status}: ${text}`);
  return JSON.parse(text);
}

/** Wait until `look` returns something true, and return it. */
export async function until(what, look, patienceMs = 60_000) {
  const end = Date.now() + patienceMs;
  let seen;
  while (Date.now() < end) {
    seen = await look();
    if (seen) {
      return seen;
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`${what} did not happen; last seen: ${String(seen)}`);
}

/** Return what the terminal of the page shows. */
export async function screen(page) {
  const rows = await page.locator(".xterm-rows > div").allTextContents();
  return rows.join("\n").replaceAll("\u00a0", " ");
}
