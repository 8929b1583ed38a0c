/** An operator makes and revokes keys, reads the audit and looks at the daemon. */

import { accessible, ask, check, logIn, onStage, picture, pictures, url } from "./stage.mjs";
import { inspect, open } from "./inspection.mjs";

const NAME = pictures === undefined ? "<b onclick=alert(1)>reader</b>" : "report reader";

await onStage(async (page, context) => {
  await logIn(page);

  // ---- keys
  await open(page, "keys");
  await page.getByRole("button", { name: "New key" }).click();
  await page.getByLabel("Name", { exact: true }).fill(NAME);
  for (const scope of ["sessions", "workspaces"]) {
    await page.getByRole("checkbox", { name: scope }).uncheck();
  }
  await page.getByLabel("Expires after").selectOption({ label: "30 days" });
  await accessible(page, "new key");
  await picture(page, "new-key");
  await page.getByRole("button", { name: "Create" }).click();
  const key = await page.getByLabel("Key", { exact: true }).textContent();
  check(key.startsWith("sk"), "no key is shown");
  await accessible(page, "the new key");
  await page.getByRole("button", { name: "Done" }).click();
  check(!(await page.content()).includes(key), "the key is still in the page");
  const row = page.locator("tbody tr", { hasText: NAME });
  await row.getByText("active").waitFor();
  await inspect(page, "keys");

  // ---- what that key sees
  const other = await context.browser().newContext();
  const reader = await other.newPage();
  await reader.goto(`${url}/#/files`);
  await reader.getByLabel("API key").fill(key);
  await reader.getByRole("button", { name: "Log in" }).click();
  await reader.getByRole("heading", { name: "Stored files" }).waitFor();
  const links = await reader.getByRole("navigation", { name: "Pages" }).getByRole("link").all();
  const titles = await Promise.all(links.map((link) => link.textContent()));
  check(titles.join() === "Files,System", titles.join());
  for (const [place, scope] of [["keys", "admin"], ["runs", "sessions"], ["workspaces", "workspaces"]]) {
    await open(reader, place);
    await reader.getByText(`This page needs a key with the scope ${scope}.`).waitFor();
  }
  await accessible(reader, "a page without its scope");
  await open(reader, "system");
  await reader.getByText("shown to keys with the scope admin").waitFor();

  // ---- its end
  await page.getByRole("button", { name: /^Revoke/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await row.getByText("revoked").waitFor();
  await reader.goto(`${url}/#/files`);
  await reader.getByLabel("API key").waitFor();
  await other.close();

  // ---- audit, with a row whose badge is long
  const unknown = await fetch(`${url}/v1/sessions/sbx_${"0".repeat(16)}`, {
    method: "DELETE",
    headers: { authorization: `Bearer ${process.env["SANDKASTEN_API_KEY"]}` },
  });
  check(unknown.status === 404, `an unknown session answered ${unknown.status}`);
  await open(page, "audit");
  await page.locator("tr", { hasText: "SESSION NOT FOUND" }).waitFor();
  await page.locator("tr", { hasText: "key.revoke" }).waitFor();
  await inspect(page, "audit");
  await page.getByLabel("Only this action").fill("key.create");
  await page.getByRole("button", { name: "Search" }).click();
  await page.locator("tr", { hasText: "key.revoke" }).waitFor({ state: "detached" });
  await page.locator("tr", { hasText: "key.create" }).getByRole("button").click();
  await page.getByRole("dialog").getByText("req_").waitFor();
  await accessible(page, "an entry of the audit");
  await page.keyboard.press("Escape");
  await page.reload();
  await page.locator("tr", { hasText: "key.create" }).waitFor();

  // ---- records of a session, and whether all are as they were written
  const session = await ask("POST", "/v1/sessions", {});
  await ask("POST", `/v1/sessions/${session.id}/exec`, { cmd: "echo <b>hi</b>" });
  await open(page, `audit?kind=exec&session=${session.id}`);
  await page.locator("tbody tr").first().getByRole("button").click();
  await page.getByRole("dialog").getByRole("link", { name: session.id }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Verify" }).click();
  await page.getByRole("dialog").getByText("records are as they were written").waitFor();
  await accessible(page, "verify");

  // ---- the daemon
  await open(page, "system");
  await page.locator(".badge", { hasText: "ready" }).first().waitFor();
  await page.locator(".meters", { hasText: "Sessions1" }).waitFor();
  await page.locator("tr", { hasText: "data_dir" }).waitFor();
  const machine = page.getByRole("list", { name: "Requirements of the machine" });
  await machine.getByText("bubblewrap").first().waitFor();
  await page.getByRole("list", { name: "Kinds of sandboxes" }).getByText("(default)").waitFor();
  const backends = page.getByRole("list", { name: "Backends" }).getByRole("listitem");
  await backends.filter({ hasText: /ready local \(default\): isolation standard; 1 sandbox(;|$)/ }).waitFor();
  const west = backends.filter({ hasText: "docker/west" });
  await west.getByText("not ready").waitFor();
  await west.getByText("0 of 5 sandboxes; zone=eu; ").waitFor();
  await west.getByText("dockerd runs there").waitFor();
  await inspect(page, "system");
  await page.getByLabel("Filter settings").fill("no such setting");
  await page.getByText("Nothing matches").waitFor();

  await ask("DELETE", `/v1/sessions/${session.id}`);
});
