/** The page as a whole: the login, or the navigation and the page of the address. */

import type { ComponentType, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Identity } from "sandkasten";
import { whoAmI } from "./daemon.js";
import { Failure } from "./components/failure.js";
import { Layout } from "./layout.js";
import { Login } from "./login.js";
import { type Page, PAGES, pagesOf, type PageProps } from "./pages.js";
import { usePlace } from "./router.js";

export function App(): VNode {
  const [identity, setIdentity] = useState<Identity | undefined | "unknown">("unknown");
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    whoAmI().then(setIdentity, setError);
    // Any answer may say that the login has ended.
    const ended = (): void => setIdentity(undefined);
    addEventListener("sandkasten:logged-out", ended);
    return () => removeEventListener("sandkasten:logged-out", ended);
  }, []);
  if (error !== undefined) {
    return (
      <main class="alone">
        <Failure error={error} />
      </main>
    );
  }
  if (identity === "unknown") {
    return <main class="alone" aria-busy="true" />;
  }
  if (identity === undefined) {
    return <Login done={setIdentity} />;
  }
  return <Inside identity={identity} />;
}

function Inside({ identity }: { identity: Identity }): VNode {
  const place = usePlace();
  const pages = pagesOf(identity);
  const page = PAGES.find(({ name }) => name === place.parts[0]) ?? pages[0];
  return (
    <Layout identity={identity} pages={pages} current={page?.name}>
      {page === undefined || !pages.includes(page) ? (
        <Refused page={page} identity={identity} />
      ) : (
        <Loaded key={page.name} page={page} place={place} identity={identity} />
      )}
    </Layout>
  );
}

function Refused({ page, identity }: { page: Page | undefined; identity: Identity }): VNode {
  return (
    <>
      <h1>{page?.title}</h1>
      <div class="empty">
        <p>
          This page needs a key with the scope <strong>{page?.scope}</strong>.
        </p>
        <p>Your key has {identity.scopes.join(", ") || "no scopes"}.</p>
      </div>
    </>
  );
}

function Loaded({ page, place, identity }: PageProps & { page: Page }): VNode {
  const [Shown, setShown] = useState<ComponentType<PageProps>>();
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    document.title = `${page.title} · Sandkasten`;
    page.load().then((module) => setShown(() => module.default), setError);
  }, [page]);
  if (error !== undefined) {
    return <Failure error={error} />;
  }
  return Shown === undefined ? (
    <div aria-busy="true" />
  ) : (
    <Shown place={place} identity={identity} />
  );
}
