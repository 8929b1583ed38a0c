/** Where a replay is, and its pace. */

import type { ExecPast } from "sandkasten";
import type { PastOutput } from "./replay_output.js";

// A session that waited for an hour should not make its reader wait.
const LONGEST_PAUSE_S = 5;
// Shorter pauses are added up: a browser draws sixty times in a second.
const SHORTEST_PAUSE_S = 0.016;

export class Player {
  /** How many commands are shown whole. */
  whole = 0;
  /** How many pieces are shown of the output of the next one; undefined: it has not begun. */
  pieces: number | undefined;
  playing = false;
  error: unknown;
  /** Undefined does not wait. */
  private speed: number | undefined = 1;
  private debt = 0;
  private control = new AbortController();

  constructor(
    private readonly commands: readonly ExecPast[],
    private readonly load: (index: number) => Promise<PastOutput>,
    private readonly changed: () => void,
  ) {}

  /** How many commands are shown, the last one maybe in part. */
  get shown(): number {
    return this.whole + (this.pieces === undefined ? 0 : 1);
  }

  play(): void {
    if (this.whole === this.commands.length) {
      this.whole = 0;
    }
    this.control.abort();
    this.control = new AbortController();
    this.playing = true;
    this.debt = 0;
    this.error = undefined;
    this.changed();
    void this.run(this.control.signal);
  }

  pause(): void {
    this.control.abort();
    this.playing = false;
    this.changed();
  }

  /** Show the rest of this command, or the next one whole. */
  step(): void {
    this.seek(this.whole + 1);
  }

  /** Hide the last command. */
  back(): void {
    this.seek(this.shown - 1);
  }

  /** Pause with that many commands. */
  seek(count: number): void {
    this.whole = Math.max(0, Math.min(count, this.commands.length));
    this.pieces = undefined;
    this.pause();
  }

  /** Play that many times as fast; undefined does not wait. */
  setSpeed(speed: number | undefined): void {
    this.speed = speed;
    if (this.playing) {
      this.play();
    }
  }

  private async run(signal: AbortSignal): Promise<void> {
    try {
      while (this.whole < this.commands.length) {
        await this.playOne(this.whole, signal);
        signal.throwIfAborted();
        this.whole += 1;
        this.pieces = undefined;
        this.changed();
      }
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      this.error = error;
    }
    this.pause();
  }

  private async playOne(index: number, signal: AbortSignal): Promise<void> {
    const [command, before] = [this.commands[index], this.commands[index - 1]];
    if (command === undefined) {
      return;
    }
    if (this.pieces === undefined) {
      const ended = before === undefined ? command.startedAt : endOf(before);
      await this.wait(command.startedAt - ended, signal);
      this.pieces = 0;
    }
    const output = await this.load(index);
    signal.throwIfAborted();
    let last = output.pieces[this.pieces - 1]?.at ?? 0;
    while (this.pieces < output.pieces.length) {
      const { at } = output.pieces[this.pieces] ?? { at: last };
      await this.wait(at - last, signal);
      last = Math.max(last, at);
      this.pieces += 1;
    }
    await this.wait(command.durationMs / 1000 - last, signal);
  }

  private async wait(seconds: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.speed === undefined) {
      return;
    }
    this.debt += Math.max(0, seconds) / this.speed;
    if (this.debt < SHORTEST_PAUSE_S) {
      return;
    }
    const pause = Math.min(this.debt, LONGEST_PAUSE_S);
    this.debt = 0;
    this.changed();
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, pause * 1000);
      const stop = (): void => (clearTimeout(timer), resolve());
      signal.addEventListener("abort", stop, { once: true });
    });
    signal.throwIfAborted();
  }
}

function endOf(command: ExecPast): number {
  return command.startedAt + command.durationMs / 1000;
}
