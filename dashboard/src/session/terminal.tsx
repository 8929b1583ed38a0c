/**
 * The terminal of a session: xterm.js over the PTY of the TypeScript client.
 *
 * The id of the terminal is in the address, so a reload returns to it.
 */

import { FitAddon } from "@xterm/addon-fit";
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { NotFound, type Session, type Terminal } from "sandkasten";
import { Failure } from "../components/failure.js";
import type { TabProps } from "../pages/session.js";
import { replacePlace } from "../router.js";
import { harmlessScreen, type Screen } from "./screen.js";

// How long a terminal waits for its page.
const KEEP_S = 24 * 3600;
// Old output has questions to the terminal in it, which were answered long ago.
const REPLAY_MS = 300;

export default function TerminalTab({ session, place, info }: TabProps): VNode {
  const frame = useRef<HTMLDivElement>(null);
  const [state, setState] = useState("connecting");
  const [error, setError] = useState<unknown>();
  const [turn, setTurn] = useState(0);
  const wanted = place.query.get("exec") ?? undefined;
  useEffect(() => {
    if (frame.current === null) {
      return undefined;
    }
    const attached = new Attached(session, frame.current, setState, setError);
    void attached.run(turn === 0 ? wanted : undefined);
    return () => attached.leave();
  }, [session, turn]);
  return (
    <div class="card terminal-card">
      <div class="bar">
        <span role="status">{info.status === "paused" ? "paused" : state}</span>
        <button type="button" onClick={() => setTurn((one) => one + 1)}>
          New terminal
        </button>
      </div>
      {error !== undefined && <Failure error={error} />}
      <div class="screen" ref={frame} />
    </div>
  );
}

/** A screen, and the terminal that it shows. */
class Attached {
  private readonly screen: Screen;
  private readonly fit = new FitAddon();
  private readonly control = new AbortController();
  private readonly watcher: ResizeObserver;
  private terminal: Terminal | undefined;
  private replayedAt = 0;
  private replaying = false;

  constructor(
    private readonly session: Session,
    frame: HTMLElement,
    private readonly say: (state: string) => void,
    private readonly fail: (error: unknown) => void,
  ) {
    this.screen = harmlessScreen({ cursorBlink: true });
    this.screen.loadAddon(this.fit);
    this.screen.open(frame);
    this.screen.onData((data) => this.send(data));
    this.screen.onBinary((data) => this.send(Uint8Array.from(data, (one) => one.charCodeAt(0))));
    this.screen.onResize(({ rows, cols }) => void this.terminal?.resize(rows, cols).catch(this.fail));
    this.watcher = new ResizeObserver(() => this.fit.fit());
    this.watcher.observe(frame);
    this.fit.fit();
  }

  async run(execId: string | undefined): Promise<void> {
    try {
      this.terminal = await this.opened(execId);
      this.replaying = execId === this.terminal.execId;
      this.replayedAt = performance.now();
      replacePlace(["sessions", this.session.id, "terminal"], { exec: this.terminal.execId });
      this.say("connected");
      this.screen.focus();
      for await (const data of this.terminal) {
        this.screen.write(data);
        if (this.replaying && performance.now() - this.replayedAt > REPLAY_MS) {
          this.replaying = false;
        }
      }
      const { exitCode } = await this.terminal.result();
      this.say(`ended with status ${Number.isNaN(exitCode) ? "unknown" : exitCode}`);
    } catch (error) {
      if (!this.control.signal.aborted) {
        this.say("disconnected");
        this.fail(error);
      }
    }
  }

  leave(): void {
    this.control.abort();
    this.terminal?.detach();
    this.watcher.disconnect();
    this.screen.dispose();
  }

  private async opened(execId: string | undefined): Promise<Terminal> {
    const { rows, cols } = this.screen;
    const common = { rows, cols, keepSeconds: KEEP_S, signal: this.control.signal };
    if (execId !== undefined) {
      try {
        return await this.session.terminal({ ...common, execId, offset: 0 });
      } catch (error) {
        if (!(error instanceof NotFound)) {
          throw error;
        }
      }
    }
    return this.session.terminal({ ...common, env: { TERM: "xterm-256color" } });
  }

  private send(data: string | Uint8Array): void {
    if (this.replaying && performance.now() - this.replayedAt < REPLAY_MS) {
      return;
    }
    void this.terminal?.send(data).catch(this.fail);
  }
}
