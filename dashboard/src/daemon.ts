/**
 * The daemon that serves this page, and the login of this browser.
 *
 * The key is sent once and kept nowhere. The cookie of the login is hidden from scripts. Its proof
 * is in local storage, so that other tabs have it; it is worth nothing without the cookie.
 */

import { type Identity, SandboxClient, SandkastenError } from "sandkasten";

const PROOF = "sandkasten.login-proof";

let current: SandboxClient = connected();

/** Return the client of this page. */
export function daemon(): SandboxClient {
  return current;
}

/** Return tenant and scopes; undefined if a key is required. */
export async function whoAmI(): Promise<Identity | undefined> {
  try {
    return await current.identity();
  } catch (error) {
    if (error instanceof SandkastenError && error.code === "UNAUTHORIZED") {
      return undefined;
    }
    throw error;
  }
}

export async function logIn(apiKey: string): Promise<Identity> {
  const made = await new SandboxClient({ baseUrl: location.origin }).login(apiKey);
  localStorage.setItem(PROOF, made.proof);
  current = connected();
  return made;
}

export async function logOut(): Promise<void> {
  try {
    await current.logout();
  } finally {
    localStorage.removeItem(PROOF);
    current = connected();
  }
}

function connected(): SandboxClient {
  const loginProof = localStorage.getItem(PROOF) ?? undefined;
  return new SandboxClient({ baseUrl: location.origin, loginProof, tickets: true });
}
