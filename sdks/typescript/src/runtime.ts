/**
 * What differs between runtimes: the environment, sockets, and bodies that are streams.
 *
 * This module has the answers of a browser. The entry point for Node replaces them.
 */

import { toBase64 } from "./json.js";

/** A WebSocket that one reader awaits. */
export interface Socket {
  send(data: Uint8Array | string): Promise<void>;
  /** Return the next message; null when the connection has ended. */
  receive(): Promise<Uint8Array | string | null>;
  close(): void;
}

export interface SocketRequest {
  /** An address with ws: or wss:. */
  url: string;
  apiKey: string | undefined;
  tenant: string | undefined;
  /** A single-use ticket instead of the key. */
  ticket: string | undefined;
  /** The Unix socket to connect to instead of the host of the URL. */
  socketPath: string | undefined;
  signal: AbortSignal | undefined;
}

/** Raised by `openSocket` if the server answered the handshake with another status. */
export class HandshakeRefused extends Error {
  constructor(
    readonly status: number,
    readonly body: string,
  ) {
    super(`the server refused the WebSocket with status ${status}`);
  }
}

export interface Runtime {
  /** Return a variable of the environment. */
  variable(name: string): string | undefined;
  /** The address of a daemon if neither the caller nor the environment names one. */
  defaultUrl(): string;
  /** Whether a request body may be a stream; otherwise it is collected first. */
  streamsBodies: boolean;
  openSocket(request: SocketRequest): Promise<Socket>;
  /** Return further arguments of `fetch` for one daemon. */
  fetchOptions(socketPath: string | undefined): Promise<FetchOptions>;
}

export interface FetchOptions {
  init: Record<string, unknown>;
  close(): Promise<void>;
}

// The name that the daemon chooses; it never chooses one that has a key in it.
const PROTOCOL = "sandkasten";
// More than this in the send buffer: the caller waits.
const MAX_BUFFERED = 4 << 20;
const DRAIN_MS = 20;

export const browser: Runtime = {
  variable: () => undefined,
  defaultUrl: () =>
    typeof location === "object" && location.protocol.startsWith("http")
      ? location.origin
      : "http://localhost:8080",
  streamsBodies: false,
  openSocket,
  fetchOptions: () => Promise.resolve({ init: {}, close: () => Promise.resolve() }),
};

let current = browser;

export function runtime(): Runtime {
  return current;
}

export function useRuntime(next: Runtime): void {
  current = next;
}

/** Open a WebSocket. Pages cannot send headers with it, so the key is in a subprotocol. */
export async function openSocket(request: SocketRequest): Promise<Socket> {
  const protocols = [PROTOCOL];
  if (request.apiKey !== undefined) {
    protocols.push(`${PROTOCOL}.bearer.${base64url(request.apiKey)}`);
  }
  if (request.tenant !== undefined) {
    protocols.push(`${PROTOCOL}.tenant.${base64url(request.tenant)}`);
  }
  if (request.ticket !== undefined) {
    protocols.push(`${PROTOCOL}.ticket.${request.ticket}`);
  }
  const socket = new WebSocket(request.url, protocols);
  socket.binaryType = "arraybuffer";
  const { signal } = request;
  await new Promise<void>((resolve, reject) => {
    const stop = (): void => {
      socket.close();
      reject(signal?.reason);
    };
    if (signal?.aborted === true) {
      stop();
      return;
    }
    signal?.addEventListener("abort", stop, { once: true });
    socket.onopen = (): void => {
      signal?.removeEventListener("abort", stop);
      resolve();
    };
    socket.onerror = socket.onclose = (): void => {
      signal?.removeEventListener("abort", stop);
      // A page cannot read why.
      reject(new HandshakeRefused(0, ""));
    };
  });
  return new PageSocket(socket);
}

class PageSocket implements Socket {
  private readonly messages: (Uint8Array | string | null)[] = [];
  private wake: (() => void) | undefined;

  constructor(private readonly socket: WebSocket) {
    socket.onmessage = (event: MessageEvent<ArrayBuffer | string>): void => {
      this.push(typeof event.data === "string" ? event.data : new Uint8Array(event.data));
    };
    socket.onerror = socket.onclose = (): void => this.push(null);
  }

  async send(data: Uint8Array | string): Promise<void> {
    if (this.socket.readyState !== WebSocket.OPEN) {
      throw new Error("the WebSocket is closed");
    }
    this.socket.send(data as string | Uint8Array<ArrayBuffer>);
    while (
      this.socket.readyState === WebSocket.OPEN &&
      this.socket.bufferedAmount > MAX_BUFFERED
    ) {
      await new Promise((resolve) => setTimeout(resolve, DRAIN_MS));
    }
  }

  async receive(): Promise<Uint8Array | string | null> {
    while (this.messages.length === 0) {
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
    // The end stays: every later read sees it again.
    return this.messages[0] === null ? null : (this.messages.shift() ?? null);
  }

  close(): void {
    this.socket.close();
  }

  private push(message: Uint8Array | string | null): void {
    this.messages.push(message);
    this.wake?.();
  }
}

function base64url(text: string): string {
  return toBase64(new TextEncoder().encode(text))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
