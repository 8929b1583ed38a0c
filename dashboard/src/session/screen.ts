/** A terminal screen of xterm.js on which a program can only draw. */

import "@xterm/xterm/css/xterm.css";
import { type ITerminalInitOnlyOptions, type ITerminalOptions, Terminal as Screen } from "@xterm/xterm";
import { useAllowedStyles } from "./screen_styles.js";

export type { Screen };

// OSC codes: a link, the clipboard, a notification.
const WITHOUT_EFFECT = [8, 9, 52, 777, 1337];

export function harmlessScreen(options: ITerminalOptions & ITerminalInitOnlyOptions = {}): Screen {
  useAllowedStyles();
  const screen = new Screen({
    fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace',
    fontSize: 14,
    scrollback: 5000,
    screenReaderMode: true,
    theme: { background: "#16181d", foreground: "#e6e6e6", cursor: "#f0a35e" },
    linkHandler: { activate: () => undefined, allowNonHttpProtocols: false },
    ...options,
  });
  for (const code of WITHOUT_EFFECT) {
    screen.parser.registerOscHandler(code, () => true);
  }
  return screen;
}
