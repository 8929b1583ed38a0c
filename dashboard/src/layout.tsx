/** The frame around every page: the navigation, and what belongs to the login. */

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Identity } from "sandkasten";
import { announceLogout, Failure } from "./components/failure.js";
import { logOut } from "./daemon.js";
import type { Page } from "./pages.js";
import { address } from "./router.js";

interface LayoutProps {
  identity: Identity;
  pages: Page[];
  current: string | undefined;
  children: ComponentChildren;
}

export function Layout({ identity, pages, current, children }: LayoutProps): VNode {
  const [error, setError] = useState<unknown>();
  // On a phone the navigation is folded.
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [current]);
  const leave = async (): Promise<void> => {
    try {
      await logOut();
      announceLogout();
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <div class="layout">
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={address(["sessions"])}>
          <img src="/dashboard/icon.svg" alt="" width="22" height="22" /> Sandkasten
        </a>
        <button
          type="button"
          class="menu"
          aria-expanded={open}
          aria-controls="pages"
          onClick={() => setOpen(!open)}
        >
          {pages.find(({ name }) => name === current)?.title ?? "Menu"}
          <span aria-hidden="true">{open ? " ▴" : " ▾"}</span>
        </button>
        <nav id="pages" class={open ? "open" : ""} aria-label="Pages">
          {pages.map(({ name, title }) => (
            <a
              key={name}
              href={address([name])}
              data-title={title}
              onClick={() => setOpen(false)}
              {...(name === current ? { "aria-current": "page" as const } : {})}
            >
              {title}
            </a>
          ))}
        </nav>
        <div class={open ? "who open" : "who"}>
          <span class="muted" title={`Scopes: ${identity.scopes.join(", ")}`}>
            {identity.tenant}
          </span>
          {identity.requiresKey && (
            <button type="button" onClick={leave}>
              Log out
            </button>
          )}
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {error !== undefined && <Failure error={error} />}
        {children}
      </main>
    </div>
  );
}

// The fragment is the address of the page.
function skip(event: MouseEvent): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}
