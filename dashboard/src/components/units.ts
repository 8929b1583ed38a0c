/** Numbers and times as people read them. */

/** Return a number with its noun: 1 step, 2 steps. */
export function counted(count: number, noun: string, plural = `${noun}s`): string {
  return `${count} ${count === 1 ? noun : plural}`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) {
    return "–";
  }
  let [value, unit] = [count, 0];
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) {
    return "–";
  }
  if (ms < 1000) {
    return `${Math.round(ms)} ms`;
  }
  const seconds = ms / 1000;
  if (seconds < 60) {
    return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  }
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) {
    return `${minutes} min ${Math.floor(seconds % 60)} s`;
  }
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d`;
}

/** Return how long ago a Unix time was. */
export function ago(unix: number | null | undefined): string {
  return unix === null || unix === undefined ? "–" : duration(Math.max(0, Date.now() - unix * 1000));
}

export function clock(unix: number | null | undefined): string {
  return unix === null || unix === undefined ? "–" : new Date(unix * 1000).toLocaleString();
}

/** Return a time of today without its date. */
export function timestamp(unix: number | null | undefined): string {
  if (unix === null || unix === undefined) {
    return "–";
  }
  const [then, now] = [new Date(unix * 1000), new Date()];
  return then.toDateString() === now.toDateString() ? then.toLocaleTimeString() : clock(unix);
}
