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
  /** The scope that the key needs; others do not see it in the navigation, and are told why. */
  scope?: string;
  load: () => Promise<{ default: ComponentType<PageProps> }>;
}

export const PAGES: readonly Page[] = [
  {
    name: "sessions",
    title: "Sessions",
    scope: "sessions",
    load: () => import("./pages/sessions.js"),
  },
  {
    name: "runs",
    title: "Runs",
    scope: "sessions",
    load: () => import("./pages/runs.js"),
  },
  {
    name: "agents",
    title: "Agents",
    scope: "sessions",
    load: () => import("./pages/agents.js"),
  },
  {
    name: "images",
    title: "Images",
    scope: "sessions",
    load: () => import("./pages/images.js"),
  },
  {
    name: "workspaces",
    title: "Workspaces",
    scope: "workspaces",
    load: () => import("./pages/workspaces.js"),
  },
  { name: "files", title: "Files", scope: "files", load: () => import("./pages/files.js") },
  { name: "keys", title: "Keys", scope: "admin", load: () => import("./pages/keys.js") },
  { name: "audit", title: "Audit", scope: "admin", load: () => import("./pages/audit.js") },
  { name: "system", title: "System", load: () => import("./pages/system.js") },
];

/** Return the pages that the key may use. */
export function pagesOf(identity: Identity): Page[] {
  return PAGES.filter(({ scope }) => scope === undefined || mayUse(identity, scope));
}

/** Return whether the key has a scope. */
export function mayUse({ scopes }: Identity, scope: string): boolean {
  return scopes.includes(scope) || scopes.includes("admin");
}
