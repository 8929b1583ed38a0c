/** A session again, command by command, with output, exit status and times; also an ended one. */

import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Failure } from "../components/failure.js";
import { plainText } from "../components/plain_text.js";
import { usePolled } from "../components/polled.js";
import { counted, duration } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import type { PastProps } from "../pages/session.js";
import { Code } from "./code_text.js";
import { ending } from "./commands.js";
import { isCommand, type PastRow, resultOf, titleOf, wasClosed } from "./past_row.js";
import { type PastOutput, pastOutput } from "./replay_output.js";
import { Player } from "./replay_player.js";
import { ReplayScreen, screenText } from "./replay_screen.js";

// The daemon remembers up to a thousand commands; these are on the page at once.
const CARDS = 40;
const MAX_SHOWN = 100_000;
const SPEEDS: readonly (readonly [string, number | undefined])[] = [
  ["1×", 1],
  ["4×", 4],
  ["instant", undefined],
];

interface Past {
  commands: readonly PastRow[];
  recorded: ReadonlySet<string>;
}

export default function ReplayTab({ id }: PastProps): VNode {
  const past = usePolled<Past>(
    async (signal) => {
      const replay = daemon().replay(id);
      const commands = await replay.commands({ signal });
      const recordings = await replay.recordings({ signal });
      return { commands, recorded: new Set(recordings.map(({ execId }) => execId)) };
    },
    0,
    id,
  );
  if (past.error !== undefined) {
    return <Failure error={past.error} />;
  }
  if (past.value === undefined) {
    return <div aria-busy="true" />;
  }
  return past.value.commands.length === 0 ? (
    <div class="empty">Nothing ran here, or it is no longer remembered.</div>
  ) : (
    <Replay id={id} past={past.value} reload={past.refresh} />
  );
}

interface ReplayProps {
  id: string;
  past: Past;
  reload: () => void;
}

function Replay({ id, past, reload }: ReplayProps): VNode {
  const [, draw] = useState(0);
  const { player, load } = useMemo(() => opened(id, past, () => draw((one) => one + 1)), [id, past]);
  const [speed, setSpeed] = useState("1×");
  useEffect(() => player.setSpeed(SPEEDS.find(([name]) => name === speed)?.[1]), [player, speed]);
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => press(player, past.commands.length, event);
    document.addEventListener("keydown", pressed);
    return () => {
      document.removeEventListener("keydown", pressed);
      player.pause();
    };
  }, [player]);
  const { shown } = player;
  const first = Math.max(0, shown - CARDS);
  const unrecorded = past.commands.filter(
    ({ execId, stdoutBytes, stderrBytes }) =>
      stdoutBytes + stderrBytes > 0 && !past.recorded.has(execId),
  ).length;
  return (
    <section class="replay" aria-label="Replay">
      <div class="card bar controls">
        <button
          type="button"
          class="primary"
          onClick={() => (player.playing ? player.pause() : player.play())}
        >
          {player.playing ? "Pause" : "Play"}
        </button>
        <button type="button" disabled={shown === 0} onClick={() => player.back()}>
          Back
        </button>
        <button
          type="button"
          disabled={player.whole === past.commands.length}
          onClick={() => player.step()}
        >
          Step
        </button>
        <label for="speed">Speed</label>
        <select id="speed" value={speed} onChange={(event) => setSpeed(event.currentTarget.value)}>
          {SPEEDS.map(([name]) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <label for="position">Position</label>
        <input
          id="position"
          type="range"
          min={0}
          max={past.commands.length}
          value={shown}
          onInput={(event) => player.seek(Number(event.currentTarget.value))}
        />
        <span role="status">
          {shown} of {counted(past.commands.length, "command")}
        </span>
        <button type="button" onClick={reload}>
          Read again
        </button>
      </div>
      {player.error !== undefined && <Failure error={player.error} />}
      {shown === 0 && <div class="empty">Play, or step through the commands.</div>}
      {first > 0 && <p class="hint">{first} earlier commands: move the position back to see them.</p>}
      {past.commands.slice(first, shown).map((command, index) => (
        <Card
          key={command.execId}
          command={command}
          load={() => load(first + index)}
          pieces={first + index < player.whole ? undefined : player.pieces}
          newest={first + index === shown - 1}
        />
      ))}
      <details class="about-replay">
        <summary>Keys, and what is recorded</summary>
        <p class="hint">
          Space plays and pauses, → shows the next command, ← hides the last one, Home and End go to
          the start and the end. Pauses are at most five seconds long.
        </p>
        {unrecorded > 0 && (
          <p class="hint">
            Commands without a recording: {unrecorded}. Their output is shown as far as the sandbox
            still keeps it; the setting recording.enabled records that of later ones.
          </p>
        )}
        <p class="hint">
          What was typed into a terminal is recorded only where the terminal showed it.
        </p>
      </details>
    </section>
  );
}

interface Opened {
  player: Player;
  load: (index: number) => Promise<PastOutput>;
}

/** Return a player, and what loads output; that of the last few commands is loaded once. */
function opened(id: string, { commands, recorded }: Past, changed: () => void): Opened {
  const [replay, loaded] = [daemon().replay(id), new Map<number, Promise<PastOutput>>()];
  const load = (index: number): Promise<PastOutput> => {
    const command = commands[index];
    if (command === undefined) {
      throw new RangeError(`there is no command ${index}`);
    }
    const found = loaded.get(index) ?? pastOutput(replay, command, recorded);
    // The last one that was asked for is the last one to be forgotten.
    loaded.delete(index);
    loaded.set(index, found);
    found.catch(() => loaded.delete(index));
    const [oldest] = loaded.keys();
    if (loaded.size > 2 * CARDS && oldest !== undefined) {
      loaded.delete(oldest);
    }
    return found;
  };
  return { player: new Player(commands, load, changed), load };
}

function press(player: Player, count: number, event: KeyboardEvent): void {
  const target = event.target instanceof Element ? event.target : document.body;
  const typing = target.closest("input, select, textarea, dialog") !== null;
  const used = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
  if (used || event.defaultPrevented || (typing && target.closest(".xterm") === null)) {
    return;
  }
  if (event.key === " " && target.closest("button, a") === null) {
    player.playing ? player.pause() : player.play();
  } else if (event.key === "ArrowRight") {
    player.step();
  } else if (event.key === "ArrowLeft") {
    player.back();
  } else if (event.key === "Home" || event.key === "End") {
    player.seek(event.key === "Home" ? 0 : count);
  } else {
    return;
  }
  event.preventDefault();
}

interface CardProps {
  command: PastRow;
  load: () => Promise<PastOutput>;
  /** How many pieces of its output are shown; undefined: all, and how it ended. */
  pieces: number | undefined;
  newest: boolean;
}

function Card({ command, load, pieces, newest }: CardProps): VNode {
  const [output, setOutput] = useState<PastOutput>();
  const [error, setError] = useState<unknown>();
  const card = useRef<HTMLElement>(null);
  useEffect(() => void load().then(setOutput, setError), []);
  const count = pieces ?? output?.pieces.length ?? 0;
  useEffect(() => {
    if (newest) {
      card.current?.scrollIntoView({ block: "nearest" });
    }
  }, [newest, output, count, pieces === undefined]);
  return (
    <article class="card details" ref={card} {...(newest ? { "aria-current": "step" as const } : {})}>
      <div class="heading">
        <h2 class={command.command ? "mono" : ""}>
          {isCommand(command) && command.command ? "$ " : ""}
          {command.kind === "cell" ? `Cell (${command.language ?? "code"})` : titleOf(command)}
        </h2>
        <span class="muted"><When unix={command.startedAt} /></span>
      </div>
      {command.kind === "cell" && (
        <Code text={command.command ?? ""} language={command.language ?? ""} />
      )}
      {error !== undefined && <Failure error={error} />}
      {output !== undefined && <Output output={output} count={count} newest={newest} />}
      {pieces === undefined &&
        output?.notes.map((note) => (
          <p key={note} class="hint">
            {note}
          </p>
        ))}
      <p class={pieces === undefined && resultOf(command).kind === "bad" ? "bad-end end" : "muted end"}>
        {pieces !== undefined
          ? "…"
          : `${endOf(command)}, ${duration(command.durationMs)}${command.why === null || wasClosed(command) ? "" : `, ended by ${command.why.code}`}`}
      </p>
    </article>
  );
}

interface OutputProps {
  output: PastOutput;
  count: number;
  newest: boolean;
}

function Output({ output, count, newest }: OutputProps): VNode | null {
  if (output.pieces.length === 0) {
    return null;
  }
  if (!output.drawn) {
    return <Text text={lastOf(output, count)} />;
  }
  // One screen at a time: each has its own timers, styles and buffers.
  return newest ? <ReplayScreen output={output} count={count} /> : <Drawn output={output} />;
}

/** What a program drew, as text. */
function Drawn({ output }: { output: PastOutput }): VNode {
  const [text, setText] = useState("");
  useEffect(() => {
    void screenText(output).then(setText);
  }, [output]);
  return <Text text={text.slice(-MAX_SHOWN)} />;
}

function Text({ text }: { text: string }): VNode {
  const shown = useRef<HTMLPreElement>(null);
  useEffect(() => shown.current?.scrollTo({ top: shown.current.scrollHeight }), [text]);
  return (
    <pre ref={shown} tabIndex={0} aria-label="Output">
      {text}
    </pre>
  );
}

function lastOf({ pieces }: PastOutput, count: number): string {
  let text = "";
  for (let index = count - 1; index >= 0 && text.length < MAX_SHOWN; index -= 1) {
    text = (pieces[index]?.text ?? "") + text;
  }
  return plainText(text.slice(-MAX_SHOWN));
}

function endOf(command: PastRow): string {
  if (!isCommand(command)) {
    return command.errorName ?? command.status;
  }
  if (wasClosed(command)) {
    return "closed";
  }
  const told = ending(command);
  return command.exitCode === null ? (command.status === "running" ? "running" : told) : `exit ${told}`;
}
