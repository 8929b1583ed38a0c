/** Time: pauses, deadlines and retries. Everything ends early when the caller's signal aborts. */

import { BackendUnavailable } from "./generated/error_classes.js";

// Timers count in 32 bits; a longer one would fire at once.
const LONGEST_MS = 2 ** 31 - 1;
// How long a known daemon may be unreachable: after a crash it is back within seconds.
const AWAY_MS = 30_000;

/** Return the pause after that many failures: it doubles, and half of it is random. */
export function backoffMs(failures: number, firstMs: number, maxMs: number): number {
  const doubled = firstMs * 2 ** Math.min(failures - 1, 64);
  return Math.min(maxMs, doubled) * (0.5 + Math.random() / 2);
}

/**
 * Return the milliseconds that a server asks to wait; 0 if it sends none, or none that is valid.
 */
export function retryAfterMs(headers: Headers, now: number): number {
  const milliseconds = headers.get("retry-after-ms")?.trim() ?? "";
  if (/^\d{1,11}$/.test(milliseconds)) {
    return Number(milliseconds);
  }
  const value = headers.get("retry-after")?.trim() ?? "";
  if (/^\d{1,9}(\.\d{1,9})?$/.test(value)) {
    return Number(value) * 1000;
  }
  const at = value === "" ? Number.NaN : Date.parse(value);
  return Number.isNaN(at) ? 0 : Math.max(0, at - now);
}

export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Let a program end although this clock still runs. Browsers have nothing of the kind. */
function doesNotHold(timer: ReturnType<typeof setTimeout>): void {
  (timer as { unref?: () => void }).unref?.();
}

/** A signal that aborts with the caller's, or when the time is over. */
export class Deadline {
  /** Whether the time was over before `stop`. */
  expired = false;
  readonly signal: AbortSignal;
  private readonly controller = new AbortController();
  private readonly follow: () => void;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly parent: AbortSignal | undefined,
    ms: number | null,
  ) {
    this.signal = this.controller.signal;
    this.follow = () => this.controller.abort(parent?.reason);
    if (parent?.aborted === true) {
      this.follow();
    }
    parent?.addEventListener("abort", this.follow, { once: true });
    if (ms !== null) {
      this.timer = setTimeout(() => {
        this.expired = true;
        this.controller.abort(new Error("the time is over"));
      }, Math.min(ms, LONGEST_MS));
      doesNotHold(this.timer);
    }
  }

  /** Stop the clock. The caller's signal still counts. */
  stop(): void {
    clearTimeout(this.timer);
  }

  /** Forget the caller's signal too. */
  release(): void {
    this.stop();
    this.parent?.removeEventListener("abort", this.follow);
  }
}

/** Return what a promise gives; raise `late` if it takes longer. */
export async function within<T>(promise: Promise<T>, ms: number, late: () => Error): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const clock = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(late()), ms);
    doesNotHold(timer);
  });
  try {
    return await Promise.race([promise, clock]);
  } finally {
    clearTimeout(timer);
  }
}

/** A client that follows something waits for an unreachable daemon, and then continues. */
export class Patience {
  /** Whether the daemon was reached before. If not, the first failure is the answer. */
  reached = false;
  private since: number | undefined;
  private failures = 0;

  /** Note that the daemon answers, for the first time or again. */
  there(): void {
    this.reached = true;
    this.since = undefined;
    this.failures = 0;
  }

  /** Pause before the next attempt; BackendUnavailable if it was unreachable for too long. */
  async wait(what: string, hint: string, cause: unknown, signal?: AbortSignal): Promise<void> {
    const now = performance.now();
    this.since ??= now;
    if (now - this.since > AWAY_MS || !this.reached) {
      throw new BackendUnavailable(what, { hint, cause });
    }
    this.failures += 1;
    await sleep(backoffMs(this.failures, 100, 1000), signal);
  }
}
