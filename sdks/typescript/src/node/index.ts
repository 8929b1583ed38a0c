/** The entry point for Node, Deno and Bun: all of the client, and what needs a file system. */

import { browser, openSocket, useRuntime, type FetchOptions } from "../runtime.js";
import { InvalidRequest } from "../generated/error_classes.js";
import { openNodeSocket } from "./socket.js";

export * from "../index.js";
export { forward, PortForward } from "./forward.js";
export { download, type Transfer, upload } from "./transfer.js";

// Deno and Bun have a WebSocket that works as in a browser.
const isNode = typeof process === "object" && !("deno" in process.versions || "bun" in process.versions);

useRuntime({
  variable: (name) => process.env[name] || undefined,
  defaultUrl: () => "http://localhost:8080",
  streamsBodies: true,
  openSocket: isNode ? openNodeSocket : openSocket,
  fetchOptions: isNode ? fetchOptions : browser.fetchOptions,
});

interface Dispatcher {
  constructor: { name: string };
  close(): Promise<void>;
}

/**
 * Return a dispatcher that has no time limits.
 *
 * Node's `fetch` gives up when an answer takes 5 minutes to begin, and commands may take longer. Its
 * dispatcher cannot be imported as a module; the global one has the class. Where it is another
 * one (a program that has set up a proxy), it stays.
 */
async function fetchOptions(socketPath: string | undefined): Promise<FetchOptions> {
  const name = Symbol.for("undici.globalDispatcher.1");
  const found = (): Dispatcher | undefined =>
    (globalThis as unknown as Record<symbol, Dispatcher | undefined>)[name];
  if (found() === undefined) {
    // It exists after the first use of `fetch`.
    await fetch("data:,").catch(() => undefined);
  }
  const current = found();
  if (current?.constructor.name !== "Agent") {
    if (socketPath !== undefined) {
      throw new InvalidRequest("this runtime cannot connect to a Unix socket", {
        hint: "use the HTTP address of the daemon",
      });
    }
    return browser.fetchOptions(undefined);
  }
  const Agent = current.constructor as unknown as new (options: object) => Dispatcher;
  const dispatcher = new Agent({
    headersTimeout: 0,
    bodyTimeout: 0,
    ...(socketPath === undefined ? {} : { connect: { socketPath } }),
  });
  return { init: { dispatcher }, close: () => dispatcher.close() };
}
