/**
 * A WebSocket client for Node: version 20 has none, and no version's own reports why a server
 * refused.
 *
 * Implements what a client of one daemon needs of RFC 6455: no extensions, no subprotocols.
 */

import { createHash, randomBytes } from "node:crypto";
import { type IncomingMessage, request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";
import type { Duplex } from "node:stream";

import { HandshakeRefused, type Socket, type SocketRequest } from "../runtime.js";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
// The daemon sends messages of up to 16 MiB.
const MAX_MESSAGE = 32 << 20;
const MAX_ERROR = 1 << 20;
// More than this unread: the peer waits.
const MAX_QUEUED = 4 << 20;
// A peer that is silent for two of these is gone.
const HEARTBEAT_MS = 20_000;
const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;

export function openNodeSocket(request: SocketRequest): Promise<Socket> {
  const key = randomBytes(16).toString("base64");
  const url = new URL(request.url.replace(/^ws/, "http"));
  const headers: Record<string, string> = {
    Connection: "Upgrade",
    Upgrade: "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": key,
  };
  if (request.apiKey !== undefined) {
    headers["Authorization"] = `Bearer ${request.apiKey}`;
  }
  if (request.tenant !== undefined) {
    headers["X-Sandkasten-Tenant"] = request.tenant;
  }
  if (request.ticket !== undefined) {
    headers["Sec-WebSocket-Protocol"] = `sandkasten, sandkasten.ticket.${request.ticket}`;
  }
  const send = url.protocol === "https:" ? httpsRequest : httpRequest;
  return new Promise((resolve, reject) => {
    const sent = send(url, {
      headers,
      ...(request.socketPath === undefined ? {} : { socketPath: request.socketPath }),
      ...(request.signal === undefined ? {} : { signal: request.signal }),
    });
    sent.on("error", reject);
    sent.on("response", (response) => {
      void refusal(response).then(reject, reject);
    });
    sent.on("upgrade", (response, stream, head) => {
      const expected = createHash("sha1").update(key + GUID).digest("base64");
      if (response.headers["sec-websocket-accept"] !== expected) {
        stream.destroy();
        reject(new Error("the server does not speak WebSocket"));
        return;
      }
      resolve(new NodeSocket(stream, head));
    });
    sent.end();
  });
}

async function refusal(response: IncomingMessage): Promise<Error> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of response as AsyncIterable<Buffer>) {
    parts.push(part);
    size += part.length;
    if (size > MAX_ERROR) {
      break;
    }
  }
  return new HandshakeRefused(response.statusCode ?? 0, Buffer.concat(parts).toString());
}

class NodeSocket implements Socket {
  private readonly queue: (Uint8Array | string)[] = [];
  private queued = 0;
  private ended = false;
  private alive = true;
  private wake: (() => void) | undefined;
  private unread: Buffer[] = [];
  private unreadSize = 0;
  private fragments: Buffer[] = [];
  private fragmentKind = 0;
  private readonly heart: ReturnType<typeof setInterval>;

  constructor(
    private readonly stream: Duplex,
    head: Buffer,
  ) {
    this.heart = setInterval(() => this.beat(), HEARTBEAT_MS);
    this.heart.unref();
    stream.on("data", (data: Buffer) => this.take(data));
    stream.on("error", () => this.finish());
    stream.on("end", () => this.finish());
    stream.on("close", () => this.finish());
    if (head.length > 0) {
      this.take(head);
    }
  }

  async send(data: Uint8Array | string): Promise<void> {
    if (this.ended) {
      throw new Error("the WebSocket is closed");
    }
    const isText = typeof data === "string";
    const body = isText ? Buffer.from(data) : data;
    await new Promise<void>((resolve, reject) => {
      this.stream.write(frame(isText ? TEXT : BINARY, body), (error) =>
        error ? reject(error) : resolve(),
      );
    });
  }

  async receive(): Promise<Uint8Array | string | null> {
    for (;;) {
      const message = this.queue.shift();
      if (message !== undefined) {
        this.queued -= message.length;
        if (this.queued < MAX_QUEUED && this.stream.isPaused()) {
          this.stream.resume();
        }
        return message;
      }
      if (this.ended) {
        return null;
      }
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }

  close(): void {
    if (!this.ended) {
      this.stream.end(frame(CLOSE, new Uint8Array([0x03, 0xe8])));
      this.finish();
    }
  }

  private finish(): void {
    if (!this.ended) {
      this.ended = true;
      clearInterval(this.heart);
      // What the peer still sends is dropped.
      setTimeout(() => this.stream.destroy(), 1000).unref();
      this.stream.resume();
      this.wake?.();
    }
  }

  private beat(): void {
    // A paused stream receives no answer.
    if (!this.alive && !this.stream.isPaused()) {
      this.stream.destroy();
      this.finish();
      return;
    }
    this.alive = false;
    this.stream.write(frame(PING, new Uint8Array()));
  }

  private take(data: Buffer): void {
    if (this.ended) {
      return;
    }
    this.alive = true;
    this.unread.push(data);
    this.unreadSize += data.length;
    try {
      while (this.parse()) {
        // Until a frame is incomplete.
      }
    } catch {
      this.stream.destroy();
      this.finish();
    }
  }

  /** Take one frame off the unread bytes; return whether there was a whole one. */
  private parse(): boolean {
    const start = this.peek(14);
    if (start.length < 2) {
      return false;
    }
    const [first = 0, second = 0] = start;
    let length = second & 0x7f;
    let header = 2;
    if (length === 126) {
      header = 4;
    } else if (length === 127) {
      header = 10;
    }
    if (start.length < header) {
      return false;
    }
    if (header === 4) {
      length = start.readUInt16BE(2);
    } else if (header === 10) {
      length = Number(start.readBigUInt64BE(2));
    }
    // A server never masks, and no extension was agreed on.
    if ((second & 0x80) !== 0 || (first & 0x70) !== 0 || length > MAX_MESSAGE) {
      throw new Error("the server does not speak WebSocket");
    }
    if (this.unreadSize < header + length) {
      return false;
    }
    const whole = this.unread.length === 1 ? this.unread[0] : Buffer.concat(this.unread);
    const all = whole ?? Buffer.alloc(0);
    const rest = all.subarray(header + length);
    this.unread = rest.length === 0 ? [] : [rest];
    this.unreadSize = rest.length;
    this.handle(first & 0x0f, (first & 0x80) !== 0, all.subarray(header, header + length));
    return true;
  }

  private handle(kind: number, final: boolean, body: Buffer): void {
    if (kind === PING) {
      this.stream.write(frame(PONG, body));
    } else if (kind === CLOSE) {
      this.close();
    } else if (kind !== PONG) {
      if (kind !== 0) {
        this.fragmentKind = kind;
      }
      this.fragments.push(body);
      if (this.fragments.reduce((sum, part) => sum + part.length, 0) > MAX_MESSAGE) {
        throw new Error("a message is too large");
      }
      if (final) {
        const message = Buffer.concat(this.fragments);
        this.fragments = [];
        this.push(this.fragmentKind === TEXT ? message.toString() : new Uint8Array(message));
      }
    }
  }

  private push(message: Uint8Array | string): void {
    this.queue.push(message);
    this.queued += message.length;
    if (this.queued > MAX_QUEUED) {
      this.stream.pause();
    }
    this.wake?.();
  }

  private peek(size: number): Buffer {
    const first = this.unread[0] ?? Buffer.alloc(0);
    if (first.length >= size || this.unread.length < 2) {
      return first.subarray(0, size);
    }
    return Buffer.concat(this.unread).subarray(0, size);
  }
}

/** Return a frame of a client, which masks what it sends. */
function frame(kind: number, body: Uint8Array): Buffer {
  const { length } = body;
  const header = length < 126 ? 2 : length < 65_536 ? 4 : 10;
  const made = Buffer.allocUnsafe(header + 4 + length);
  made[0] = 0x80 | kind;
  if (header === 2) {
    made[1] = 0x80 | length;
  } else if (header === 4) {
    made[1] = 0x80 | 126;
    made.writeUInt16BE(length, 2);
  } else {
    made[1] = 0x80 | 127;
    made.writeBigUInt64BE(BigInt(length), 2);
  }
  const mask = randomBytes(4);
  mask.copy(made, header);
  for (let at = 0; at < length; at += 1) {
    made[header + 4 + at] = (body[at] ?? 0) ^ (mask[at & 3] ?? 0);
  }
  return made;
}
