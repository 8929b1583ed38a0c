/** Data that is read again and again while the page is visible. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

export interface Polled<T> {
  /** Undefined until the first answer. */
  value: T | undefined;
  /** Why the last attempt failed; the value is the one before. */
  error: unknown;
  /** Read it now. */
  refresh: () => void;
}

/** Read with `load` now, when `key` changes, and `everyMs` after each answer (0: never). */
export function usePolled<T>(
  load: (signal: AbortSignal) => Promise<T>,
  everyMs: number,
  key: string = "",
): Polled<T> {
  const [value, setValue] = useState<T>();
  const [error, setError] = useState<unknown>();
  const [turn, setTurn] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    const control = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async (): Promise<void> => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const found = await latest.current(control.signal);
          if (control.signal.aborted) {
            return;
          }
          setValue(() => found);
          setError(undefined);
        } catch (problem) {
          if (control.signal.aborted) {
            return;
          }
          setError(problem);
        }
      }
      if (everyMs > 0) {
        timer = setTimeout(() => void read(), everyMs);
      }
    };
    const shown = (): void => {
      if (!document.hidden && everyMs > 0) {
        void read();
      }
    };
    document.addEventListener("visibilitychange", shown);
    void read();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [everyMs, key, turn]);
  const refresh = useCallback(() => setTurn((one) => one + 1), []);
  return { value, error, refresh };
}
