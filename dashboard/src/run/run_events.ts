/** The events of a run as they happen. */

import { useEffect, useState } from "preact/hooks";
import type { RunEvent } from "sandkasten";
import { daemon } from "../daemon.js";

// The newest ones stay. A run of thousands of steps must not fill the memory of the page.
const MOST = 5000;
// Events come in bursts; the page is drawn once for all of them.
const DRAW_MS = 100;

export interface FollowedRun {
  events: readonly RunEvent[];
  /** Events before those that are shown. */
  dropped: number;
  ended: boolean;
  error: unknown;
}

const NONE: FollowedRun = { events: [], dropped: 0, ended: false, error: undefined };

/** Follow a run to its end. `turn` changes when it goes on after an end. */
export function useRunEvents(runId: string, turn: number): FollowedRun {
  const [followed, setFollowed] = useState<FollowedRun>(NONE);
  useEffect(() => {
    const control = new AbortController();
    let [events, dropped]: [RunEvent[], number] = [[], 0];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const draw = (more: Partial<FollowedRun> = {}): void => {
      clearTimeout(timer);
      timer = undefined;
      if (!control.signal.aborted) {
        setFollowed({ ...NONE, events: [...events], dropped, ...more });
      }
    };
    const read = async (): Promise<void> => {
      for await (const event of daemon().runEvents(runId, { signal: control.signal })) {
        events.push(event);
        if (events.length > MOST * 1.2) {
          dropped += events.length - MOST;
          events = events.slice(-MOST);
        }
        timer ??= setTimeout(draw, DRAW_MS);
      }
    };
    setFollowed(NONE);
    read().then(
      () => draw({ ended: true }),
      (error: unknown) => draw({ error }),
    );
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [runId, turn]);
  return followed;
}
