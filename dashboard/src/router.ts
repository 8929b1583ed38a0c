/** Addresses of the pages. They are in the fragment, so that the daemon serves one page. */

import { useEffect, useState } from "preact/hooks";

export interface Place {
  /** The parts of the path: `#/sessions/sbx_1/files` is `["sessions", "sbx_1", "files"]`. */
  parts: string[];
  query: URLSearchParams;
}

/** Return the address of a page, for `href`. */
export function address(parts: readonly string[], query: Record<string, string> = {}): string {
  const path = parts.map(encodeURIComponent).join("/");
  const more = new URLSearchParams(query).toString();
  return `#/${path}${more === "" ? "" : `?${more}`}`;
}

export function go(parts: readonly string[], query: Record<string, string> = {}): void {
  location.hash = address(parts, query);
}

/** Change the address without an entry in the history. */
export function replacePlace(parts: readonly string[], query: Record<string, string> = {}): void {
  history.replaceState(null, "", address(parts, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function usePlace(): Place {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = (): void => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return placeOf(hash);
}

export function placeOf(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter((part) => part !== "");
  return { parts: parts.map(decoded), query: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
