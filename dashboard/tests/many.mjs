/** A thousand sessions, and how much a first view loads. */

import { check, key, logIn, onStage, until, url } from "./stage.mjs";

const COUNT = 1000;

await onStage(async (page) => {
  let loaded = 0;
  const sizes = [];
  page.on("requestfinished", (request) => {
    sizes.push(request.sizes().then(({ responseBodySize }) => (loaded += responseBodySize)));
  });
  await logIn(page);
  await page.getByText("There are no sessions.").waitFor();
  await Promise.all(sizes);
  check(loaded > 10_000 && loaded <= 300_000, `the first view is ${loaded} bytes`);
  const first = loaded;
  await page.reload();
  await page.getByRole("button", { name: "New session" }).waitFor();
  // Since the navigation began; printed and not checked, because a machine may be busy.
  const interactive = Math.round(await page.evaluate(() => performance.now()));

  const made = await fetch(`${url}/v1/sessions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: "{}",
  });
  const one = await made.json();
  const [listed] = await (
    await fetch(`${url}/v1/sessions`, { headers: { authorization: `Bearer ${key}` } })
  ).json();
  const rows = Array.from({ length: COUNT }, (_, at) => ({
    ...listed,
    id: `sbx_${String(at).padStart(16, "0")}`,
    labels: { number: String(at) },
  }));
  await page.route(/\/v1\/sessions(\?|$)/, (route) =>
    route.request().method() === "GET" ? route.fulfill({ json: rows }) : route.continue(),
  );
  await page.getByText(String(COUNT), { exact: true }).waitFor();
  const drawn = await page.locator("tbody tr").count();
  check(drawn < 100, `${drawn} rows are drawn`);
  const last = `sbx_${String(COUNT - 1).padStart(16, "0")}`;
  await page.locator(".table").evaluate((frame) => frame.scrollTo(0, frame.scrollHeight));
  await page.getByRole("link", { name: last }).waitFor();
  check((await page.locator("tbody tr").count()) < 100, "scrolling draws all rows");
  await page.getByLabel("Filter sessions").fill("number=777");
  await page.getByText(`1 of ${COUNT}`).waitFor();
  await until("one row", async () => (await page.locator("tbody tr:not(.space)").count()) === 1);
  await page.getByLabel("Filter sessions").fill("");
  await page.getByRole("button", { name: "Session", exact: true }).focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: last }).waitFor();
  await fetch(`${url}/v1/sessions/${one.id}`, {
    method: "DELETE",
    headers: { authorization: `Bearer ${key}` },
  });
  console.log(JSON.stringify({ first_view_bytes: first, interactive_ms: interactive, drawn }));
});
