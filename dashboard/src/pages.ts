/**
 * The table of pages. A page is one file in `pages/`, which is loaded when it is opened.
 *
 * `docs/guides/dashboard.md` says how to add one.
 */

import type { ComponentType } from "preact";
import type { Identity } from "sandkasten";
import type { Place } from "./router.js";

export interface PageProps {
  place: Place;
  identity: Identity;
}

export interface Page {
  /** The first part of its address. */
  name: string;
  /** Its title in the navigation. */
  title: string;
  /** The scope that the key needs; other keys do not see the page. */
  scope?: string;
  load: () => Promise<{ default: ComponentType<PageProps> }>;
}

export const PAGES: readonly Page[] = [
  { name: "sessions", title: "Sessions", load: () => import("./pages/sessions.js") },
];

/** Return the pages that the key may use. */
export function pagesOf(identity: Identity): Page[] {
  const { scopes } = identity;
  return PAGES.filter(
    ({ scope }) => scope === undefined || scopes.includes(scope) || scopes.includes("admin"),
  );
}
