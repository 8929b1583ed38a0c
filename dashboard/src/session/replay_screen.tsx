/** A screen that draws recorded output again, and the text that is left on it. */

import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { PastOutput, Piece } from "./replay_output.js";
import { harmlessScreen, type Screen } from "./screen.js";

export function ReplayScreen({ output, count }: { output: PastOutput; count: number }): VNode {
  const frame = useRef<HTMLDivElement>(null);
  const drawing = useRef<{ screen: Screen; count: number } | null>(null);
  useEffect(() => {
    if (frame.current === null) {
      return undefined;
    }
    const screen = screenFor(output);
    // Keys are those of the page, except for scrolling.
    screen.attachCustomKeyEventHandler(
      ({ key, shiftKey }) => shiftKey && (key === "PageUp" || key === "PageDown"),
    );
    screen.open(frame.current);
    drawing.current = { screen, count: 0 };
    return () => {
      drawing.current = null;
      screen.dispose();
    };
  }, [output]);
  useEffect(() => {
    const now = drawing.current;
    if (now === null) {
      return;
    }
    if (count < now.count) {
      now.screen.reset();
      now.screen.resize(output.size.cols, rowsOf(output));
      now.count = 0;
    }
    for (const piece of output.pieces.slice(now.count, count)) {
      draw(now.screen, piece);
    }
    now.count = count;
  }, [output, count]);
  return <div class="replay-screen" ref={frame} />;
}

/** Return what is on the screen at the end, with what was scrolled out of it. */
export async function screenText(output: PastOutput): Promise<string> {
  const screen = screenFor(output);
  try {
    for (const piece of output.pieces) {
      draw(screen, piece);
    }
    await new Promise<void>((resolve) => screen.write("", resolve));
    const { active } = screen.buffer;
    const lines = Array.from({ length: active.length }, (_, row) =>
      (active.getLine(row)?.translateToString(true) ?? ""),
    );
    return lines.join("\n").trimEnd();
  } finally {
    screen.dispose();
  }
}

function screenFor(output: PastOutput): Screen {
  return harmlessScreen({
    cols: output.size.cols,
    rows: rowsOf(output),
    convertEol: !output.terminal,
    // Nothing is there that could read an answer.
    disableStdin: true,
    cursorInactiveStyle: "none",
  });
}

/** Return the rows of a terminal; lines of a command get as many as they need. */
function rowsOf({ pieces, size, terminal }: PastOutput): number {
  if (terminal) {
    return size.rows;
  }
  const lines = pieces.reduce((sum, { text }) => sum + text.split("\n").length - 1, 1);
  return Math.max(2, Math.min(size.rows, lines));
}

function draw(screen: Screen, { text, size }: Piece): void {
  if (size !== undefined) {
    // After what was written before: the screen draws later than it is told.
    screen.write("", () => screen.resize(size.cols, size.rows));
  }
  screen.write(text);
}
