/** A look at one page: on a desk and on a phone, light and dark. */

import { accessible, check, picture, url } from "./stage.mjs";

const SIZES = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 800 } };

/** Open an address of the dashboard and wait until it has its data. */
export async function open(page, place) {
  await page.goto(`${url}/#/${place}`);
  await settled(page);
}

export async function settled(page) {
  await page.locator("main h1").first().waitFor();
  await page.waitForFunction(() => document.querySelector("main [aria-busy=true]") === null);
}

/** Check accessibility and width, and keep pictures: `name`, `name-dark` and `name-phone`. */
export async function inspect(page, name) {
  for (const [size, viewport] of Object.entries(SIZES)) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize(viewport);
      await page.emulateMedia({ colorScheme });
      await accessible(page, `${name}, ${size}, ${colorScheme}`);
      const spare = await page.evaluate(
        () => document.documentElement.clientWidth - document.documentElement.scrollWidth,
      );
      check(spare >= 0, `${name} is wider than its ${size} by ${-spare} pixels`);
      const cut = await page
        .locator(".table tbody tr:not(.space)")
        .evaluateAll((rows) =>
          rows.filter((row) => {
            const end = row.getBoundingClientRect().bottom;
            const frame = row.closest(".table");
            return (
              (innerWidth < 720 && frame.scrollWidth > frame.clientWidth) ||
              [...row.cells].some((cell) => cell.getBoundingClientRect().bottom > end + 1)
            );
          }).map((row) => row.textContent),
        );
      check(cut.length === 0, `${name}: rows are cut on the ${size}: ${cut.join(" | ")}`);
      const dark = colorScheme === "dark";
      if (size === "desk" || !dark) {
        await picture(page, `${name}${size === "phone" ? "-phone" : dark ? "-dark" : ""}`);
      }
    }
  }
  await page.setViewportSize(SIZES.desk);
  await page.emulateMedia({ colorScheme: "light" });
}
