/** The daemon's JSON as values of this client: keys become camelCase, and back. */

import { ProtocolViolation } from "./generated/error_classes.js";
import { HELD, type Types } from "./generated/schema.js";

export type Json = Record<string, unknown>;

const camels = new Map<string, string>();

export function isRecord(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Return a value of the daemon's answer. Unknown fields are kept: a daemon may be newer. */
export function decoded<N extends keyof Types>(type: N, value: unknown): Types[N] {
  if (!isRecord(value)) {
    throw invalidAnswer(type);
  }
  return renamed(type, value, camel, (key) => key) as unknown as Types[N];
}

/** Return the values of an array. */
export function decodedList<N extends keyof Types>(type: N, value: unknown): Types[N][] {
  if (!Array.isArray(value)) {
    throw invalidAnswer(`list of ${type}`);
  }
  return value.map((one) => decoded(type, one));
}

/** Return a request body for the daemon, without the fields that are undefined. */
export function encoded<N extends keyof Types>(type: N, value: Types[N]): Json {
  return renamed(type, value as unknown as Json, snake, snake);
}

export function invalidAnswer(what: string): ProtocolViolation {
  return new ProtocolViolation(`the daemon's answer has no valid ${what}`, {
    hint: "check that the client is as new as the daemon",
  });
}

function renamed(
  type: string,
  value: Json,
  rename: (key: string) => string,
  inJson: (key: string) => string,
): Json {
  const held = HELD[type] ?? {};
  const made: Json = {};
  for (const [key, one] of Object.entries(value)) {
    if (one === undefined) {
      continue;
    }
    const inner = Object.hasOwn(held, inJson(key)) ? held[inJson(key)] : undefined;
    const again = (part: unknown): unknown =>
      inner !== undefined && isRecord(part) ? renamed(inner, part, rename, inJson) : part;
    made[rename(key)] = Array.isArray(one) ? one.map(again) : again(one);
  }
  return made;
}

function camel(key: string): string {
  let found = camels.get(key);
  if (found === undefined) {
    found = key.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
    // Keys of the daemon's types are few; whatever else it sends must not stay for ever.
    if (camels.size < 1000) {
      camels.set(key, found);
    }
  }
  return found;
}

function snake(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Return bytes of base64. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const data = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) {
    data[at] = binary.charCodeAt(at);
  }
  return data;
}

export function toBase64(data: Uint8Array): string {
  let binary = "";
  // A call has a limited number of arguments.
  for (let at = 0; at < data.length; at += 8192) {
    binary += String.fromCharCode(...data.subarray(at, at + 8192));
  }
  return btoa(binary);
}

/** Return bytes as a string where they are UTF-8, which is shorter than base64. */
export function inputFields(name: string, data: string | Uint8Array | null | undefined): Json {
  if (data === undefined || data === null) {
    return {};
  }
  if (typeof data === "string") {
    return { [name]: data };
  }
  try {
    return { [name]: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data) };
  } catch {
    return { [`${name}_b64`]: toBase64(data) };
  }
}

/** Return random bytes as text. Pages without TLS have no `randomUUID`. */
export function randomHex(bytes: number): string {
  const data = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(data, (one) => one.toString(16).padStart(2, "0")).join("");
}
