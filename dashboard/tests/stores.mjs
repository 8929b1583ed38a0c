/** A person pulls and builds images, keeps workspaces and files, and removes them again. */

import { readFileSync } from "node:fs";
import { accessible, ask, check, logIn, onStage, picture, until, url } from "./stage.mjs";
import { inspect, open } from "./inspection.mjs";

const image = process.env["DASHBOARD_IMAGE"];

await onStage(async (page, context) => {
  await logIn(page);

  // ---- images
  await open(page, "images");
  await page.getByText("There are no images.").waitFor();
  await page.getByRole("button", { name: "Pull" }).click();
  await page.getByLabel("Image", { exact: true }).fill("no/such image");
  await page.getByRole("dialog").getByRole("button", { name: "Pull" }).click();
  await page.getByRole("dialog").getByRole("alert").waitFor();
  await page.getByLabel("Image", { exact: true }).fill(image);
  await page.getByRole("dialog").getByRole("button", { name: "Pull" }).click();
  await page.locator("progress").waitFor();
  await page.getByRole("dialog").getByText(/ of \d/).waitFor();
  await accessible(page, "pull");
  await picture(page, "pull");
  // The registry sends the second half when it is asked to.
  await fetch(process.env["DASHBOARD_RELEASE"]);
  const row = page.locator("tbody tr").first();
  await row.getByText("team/app").waitFor();
  await inspect(page, "images");
  await row.getByRole("link").click();
  await page.getByText("A=1").waitFor();
  await inspect(page, "image");
  await open(page, "images");
  await page.getByRole("button", { name: /^Remove .*team\/app/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true }).click();
  await page.getByText("There are no images.").waitFor();
  check((await ask("GET", "/v1/images")).images.length === 0, "the image is still there");

  // ---- a build, which ends because the mirror has no packages
  await page.getByRole("button", { name: "Build" }).click();
  const dialog = page.getByRole("dialog", { name: "Build an image" });
  const names = await dialog.getByLabel("Image", { exact: true }).locator("option").allTextContents();
  check(names.slice(0, 3).join() === "datascience,base,code-interpreter-v1", names.join());
  await dialog.getByLabel("Image", { exact: true }).selectOption("sandbox-runtime:base");
  await accessible(page, "a new build");
  await dialog.getByRole("button", { name: "Build" }).click();
  await dialog.getByText("mmdebstrap bookworm").waitFor();
  await dialog.getByRole("log").getByText("apt-get update").waitFor();
  check(await dialog.getByLabel("Image", { exact: true }).isDisabled(), "the name can be changed");
  await inspect(page, "build");
  await fetch(process.env["DASHBOARD_REFUSE"]);
  await dialog.getByRole("alert").getByText("BUILD_FAILED").waitFor();
  await accessible(page, "a failed build");
  await picture(page, "build-failed");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await dialog.waitFor({ state: "detached" });

  // ---- a key that cannot change images
  const key = await ask("POST", "/v1/keys", { name: "reader", scopes: ["sessions"] });
  const other = await context.browser().newContext();
  const reader = await other.newPage();
  await reader.goto(`${url}/#/images`);
  await reader.getByLabel("API key").fill(key.key);
  await reader.getByRole("button", { name: "Log in" }).click();
  await reader.getByText("This key cannot pull, build or remove images").waitFor();
  check((await reader.getByRole("button", { name: /Build|Pull/ }).count()) === 0, "it may build");
  await other.close();

  // ---- workspaces
  await open(page, "workspaces");
  await page.getByRole("button", { name: "New workspace" }).click();
  await page.getByLabel("Name", { exact: true }).fill("not/valid");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByRole("dialog").getByRole("alert").waitFor();
  await page.getByLabel("Name", { exact: true }).fill("project");
  await page.getByLabel("Size (MiB)", { exact: true }).fill("64");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByText("This folder is empty.").waitFor();
  const session = await ask("POST", "/v1/sessions", { workspace_id: "project" });
  const hostile = "<img src=x onerror=alert(1)>.txt";
  await ask("POST", `/v1/sessions/${session.id}/exec`, {
    cmd: ["sh", "-c", 'mkdir -p src && echo inside > src/notes.txt && echo x > "$0"', hostile],
  });
  await open(page, "workspaces");
  await page.locator("tr", { hasText: "project" }).getByText("in use").waitFor();
  await inspect(page, "workspaces");
  await page.getByRole("link", { name: "project" }).click();
  await page.getByText(hostile).waitFor();
  await inspect(page, "workspace");
  await page.getByRole("link", { name: "src/" }).click();
  const [notes] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Download notes.txt" }).click(),
  ]);
  check(readFileSync(await notes.path(), "utf8") === "inside\n", "another file was downloaded");
  await page.getByRole("button", { name: "Delete project" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByText("CONFLICT").waitFor();
  await ask("DELETE", `/v1/sessions/${session.id}`);
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("There are no workspaces.").waitFor();

  // ---- stored files
  await open(page, "files");
  await page.getByRole("button", { name: "Store a file" }).click();
  await page.getByLabel("File", { exact: true }).setInputFiles({
    name: "report.html",
    mimeType: "text/html",
    buffer: Buffer.from("<script>alert(1)</script>"),
  });
  await page.getByLabel("Key", { exact: true }).fill("team/report.html");
  await accessible(page, "store a file");
  await page.getByRole("dialog").getByRole("button", { name: "Store" }).click();
  await page.locator("td", { hasText: "team/report.html" }).first().waitFor();
  await inspect(page, "stored-files");
  const [report] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Download team/report.html" }).click(),
  ]);
  check(report.suggestedFilename() === "report.html", report.suggestedFilename());
  await page.getByRole("button", { name: "Delete team/report.html" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("There are no stored files.").waitFor();
  await until("the end of the file", async () => (await ask("GET", "/v1/files")).count === 0);
});
