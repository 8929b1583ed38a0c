/** A person starts a workflow and an agent, watches them and cancels one. */

import { ask, check, logIn, onStage, pictures, until } from "./stage.mjs";
import { inspect, open, settled } from "./inspection.mjs";

// Without quotes: the scripted model writes it into JSON as it is.
const TEXT =
  pictures === undefined
    ? "<img src=x onerror=alert(1)></textarea><script>alert(2)</script>"
    : "The harbour opens at six.";

await onStage(async (page) => {
  await logIn(page);

  // ---- the library
  await page.getByRole("link", { name: "Agents", exact: true }).click();
  await settled(page);
  await page.locator("tr", { hasText: "broken" }).getByText("invalid").waitFor();
  check(
    (await page.getByRole("button", { name: "Run broken" }).count()) === 0,
    "a broken agent can be started",
  );
  await inspect(page, "agents");
  await open(page, "agents/workflow/review");
  await page.getByRole("heading", { name: "Graph" }).waitFor();
  check((await page.locator(".node").count()) === 4, "the graph does not have four steps");
  await inspect(page, "workflow");

  // ---- a workflow run
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByLabel("Input, as JSON").fill("{");
  await page.getByRole("button", { name: "Start" }).click();
  await page.getByText("not valid JSON").waitFor();
  await page.getByLabel("Input, as JSON").fill(JSON.stringify({ text: TEXT }));
  await page.getByRole("button", { name: "Start" }).click();
  await page.locator(".heading .badge", { hasText: "completed" }).waitFor();
  await until("every step", async () => (await page.locator(".node.completed").count()) === 4);
  check((await page.locator(".edge.taken").count()) === 3, "the followed edges are not marked");
  const row = page.locator("tr", { hasText: "write" }).first();
  await row.locator("td", { hasText: /^30$/ }).waitFor();
  await page.getByText("The run ended: completed.").waitFor();
  await inspect(page, "run");

  // ---- the transcript of a step
  await row.getByRole("link", { name: "writer" }).click();
  await page.getByRole("heading", { name: "writer" }).waitFor();
  await page.locator(".message.user pre", { hasText: TEXT }).waitFor();
  await page.locator("summary", { hasText: "sandbox_exec" }).click();
  await page.locator(".message.tool pre", { hasText: "note.txt" }).first().waitFor();
  await page.getByRole("region", { name: "Cost by model" }).getByText("scripted").waitFor();
  await inspect(page, "transcript");
  check((await page.locator("main img, main script").count()) === 0, "input became markup");

  // ---- a run that is cancelled
  await open(page, "agents");
  await page.getByRole("button", { name: "Run writer" }).click();
  await page.getByLabel("Task").fill("hang");
  await page.getByRole("button", { name: "Start" }).click();
  await page.locator("summary", { hasText: "sandbox_exec" }).waitFor();
  await page.getByRole("button", { name: "Cancel writer" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).last().click();
  await page.locator(".heading .badge", { hasText: "cancelled" }).waitFor();
  const { runs } = await ask("GET", "/v1/runs?status=cancelled");
  check(runs.length === 1, JSON.stringify(runs));

  // ---- the list
  await page.getByRole("link", { name: "Runs", exact: true }).first().click();
  await page.getByRole("heading", { name: "Runs" }).waitFor();
  await settled(page);
  await inspect(page, "runs");
  await page.getByLabel("Kind").selectOption("workflow");
  await until("the filter", async () => (await page.locator("tbody tr").count()) === 1);
  await page.getByLabel("State").selectOption("failed");
  await page.getByText("There are no runs.").waitFor();
  await open(page, "runs/run_0000000000000000");
  await page.getByText("RUN_NOT_FOUND").first().waitFor();
});
