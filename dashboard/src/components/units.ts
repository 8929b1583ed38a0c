/** Numbers and times as people read them. */

/** Return a number with its noun: 1 step, 2 steps. */
export function counted(count: number, noun: string, plural = `${noun}s`): string {
  return `${count} ${count === 1 ? noun : plural}`;
}

/** Limits whose names end in `_mb` are in these. */
export const MIB = 1 << 20;

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined || Number.isNaN(count)) {
    return "–";
  }
  let [value, unit] = [count, 0];
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
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

/** Return a Unix time against now: "in 28 min", "5 min ago". */
export function relative(unix: number): string {
  const seconds = unix - Date.now() / 1000;
  const long = coarse(Math.abs(seconds));
  return long === undefined ? "now" : seconds > 0 ? `in ${long}` : `${long} ago`;
}

/** Return how long ago a Unix time was. */
export function ago(unix: number | null | undefined): string {
  return unix === null || unix === undefined ? "–" : (coarse(Date.now() / 1000 - unix) ?? "0 s");
}

/** Return seconds in the largest unit that fits; undefined if they are less than one. */
function coarse(seconds: number): string | undefined {
  const whole = Math.floor(seconds);
  const [count, unit] =
    whole < 60
      ? [whole, "s"]
      : whole < 3600
        ? [Math.floor(whole / 60), "min"]
        : whole < 48 * 3600
          ? [Math.floor(whole / 3600), "h"]
          : [Math.floor(whole / 86_400), "d"];
  return whole < 1 ? undefined : `${count} ${unit}`;
}

export function clock(unix: number): string {
  return new Date(unix * 1000).toLocaleString();
}
