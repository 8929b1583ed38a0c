/** What the tests share: a client, patience, and a proxy that breaks connections. */

import { type AddressInfo, connect, createServer, type Socket } from "node:net";

import { type ConnectionOptions, SandboxClient } from "sandkasten";

export const URL_OF_DAEMON = process.env.SANDKASTEN_URL ?? "";
export const KEY = process.env.SANDKASTEN_API_KEY;
export const PATIENCE_MS = 40_000;

export function client(more: ConnectionOptions = {}): SandboxClient {
  return new SandboxClient({ baseUrl: URL_OF_DAEMON, apiKey: KEY, ...more });
}

/** Return what a function returns as soon as that is true. */
export async function until<T>(what: string, ask: () => T | Promise<T>): Promise<T> {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await ask();
    if (found) {
      return found;
    }
    if (Date.now() > end) {
      throw new Error(`${what} did not happen`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** A TCP proxy to the daemon. */
export interface Proxy {
  url: string;
  /** Break the connections that are open; return how many. */
  cut(): number;
  close(): Promise<void>;
}

export async function proxy(): Promise<Proxy> {
  const { hostname, port } = new URL(URL_OF_DAEMON);
  const open = new Set<Socket>();
  const server = createServer((socket) => {
    const inner = connect(Number(port), hostname);
    for (const one of [socket, inner]) {
      open.add(one);
      one.on("error", () => undefined);
      one.on("close", () => {
        open.delete(one);
        socket.destroy();
        inner.destroy();
      });
    }
    socket.pipe(inner).pipe(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const made: Proxy = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    cut() {
      const count = open.size;
      for (const one of open) {
        one.destroy();
      }
      return count;
    },
    async close() {
      made.cut();
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
      });
    },
  };
  return made;
}
