/**
 * Code cells: what ran in the contexts of the session, and a field for the next one.
 *
 * Cells that ran on this page keep their charts until it is closed. Those of agents, of other pages
 * and of earlier visits come from the history, with the text that was recorded of them.
 */

import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { CodeDisplay, CodeResult, Session } from "sandkasten";
import { Badge } from "../components/badge.js";
import { Failure } from "../components/failure.js";
import { plainText } from "../components/plain_text.js";
import { usePolled } from "../components/polled.js";
import { duration } from "../components/units.js";
import { When } from "../components/when.js";
import type { TabProps } from "../pages/session.js";
import { Code } from "./code_text.js";
import { type PastRow, recordedText, resultOf } from "./past_row.js";

const HISTORY = 500;
const SHOWN = 30;
const MAX_OUTPUT = 200_000;

/** A cell that this page runs or ran. */
interface Cell {
  id: number;
  language: string;
  code: string;
  output: string;
  displays: CodeDisplay[];
  result: CodeResult | undefined;
  error: unknown;
  running: boolean;
  control: AbortController;
}

/** The cells of one session, which stay when another tab is opened. */
class Notebook {
  cells: readonly Cell[] = [];
  changed: () => void = () => undefined;

  constructor(private readonly session: Session) {}

  async run(code: string, language: string): Promise<void> {
    const control = new AbortController();
    const id = (this.cells.at(-1)?.id ?? 0) + 1;
    const none = { output: "", displays: [], result: undefined, error: undefined };
    this.cells = [...this.cells, { id, language, code, ...none, running: true, control }];
    this.changed();
    const print = (text: string): void =>
      this.set(id, ({ output }) => ({ output: (output + text).slice(-MAX_OUTPUT) }));
    try {
      const result = await this.session.runCode(code, {
        language,
        signal: control.signal,
        onStdout: print,
        onStderr: print,
        onResult: (one) => this.set(id, ({ displays }) => ({ displays: [...displays, one] })),
      });
      this.set(id, () => ({ result, running: false }));
    } catch (error) {
      this.set(id, () => ({ running: false, ...(control.signal.aborted ? {} : { error }) }));
    }
  }

  remove(id: number): void {
    this.cells = this.cells.filter((cell) => cell.id !== id);
    this.changed();
  }

  private set(id: number, change: (cell: Cell) => Partial<Cell>): void {
    this.cells = this.cells.map((cell) => (cell.id === id ? { ...cell, ...change(cell) } : cell));
    this.changed();
  }
}

let notebook: { id: string; cells: Notebook } | undefined;

function notebookOf(session: Session): Notebook {
  if (notebook?.id !== session.id) {
    notebook = { id: session.id, cells: new Notebook(session) };
  }
  return notebook.cells;
}

export default function CodeTab({ session }: TabProps): VNode {
  const book = notebookOf(session);
  const [, draw] = useState(0);
  useEffect(() => {
    book.changed = () => draw((one) => one + 1);
    return () => {
      book.changed = () => undefined;
    };
  }, [book]);
  const history = usePolled(
    (signal) => session.execs({ signal, limit: HISTORY }),
    3000,
    session.id,
  );
  const earlier = others((history.value ?? []) as PastRow[], book.cells);
  const [left, setLeft] = useState(SHOWN);
  return (
    <div class="cells">
      {history.error !== undefined && <Failure error={history.error} />}
      {earlier.length > left && (
        <button type="button" onClick={() => setLeft(left + SHOWN)}>
          Show {Math.min(SHOWN, earlier.length - left)} earlier cells
        </button>
      )}
      {earlier.slice(-left).map((row) => (
        <PastCell key={row.execId} session={session} row={row} />
      ))}
      {book.cells.map((cell) => (
        <OwnCell key={cell.id} cell={cell} remove={() => book.remove(cell.id)} />
      ))}
      <Editor session={session} id={(book.cells.at(-1)?.id ?? 0) + 1} book={book} />
    </div>
  );
}

/** Return the cells of the history, oldest first, without those that this page ran. */
function others(rows: readonly PastRow[], own: readonly Cell[]): PastRow[] {
  const left = own.map(({ code }) => code);
  const found = rows.filter(({ kind }) => kind === "cell").reverse();
  return found
    .filter(({ command }) => {
      const at = command === null ? -1 : left.lastIndexOf(command);
      if (at >= 0) {
        left.splice(at, 1);
      }
      return at < 0;
    })
    .reverse();
}

interface EditorProps {
  session: Session;
  /** The number of the cell that it makes. */
  id: number;
  book: Notebook;
}

function Editor({ session, id, book }: EditorProps): VNode {
  // Listing the kernels runs a program in the session, so only who wants to run code causes it.
  const [wanted, setWanted] = useState(false);
  const [languages, setLanguages] = useState<readonly string[]>(["python"]);
  const [error, setError] = useState<unknown>();
  const [language, setLanguage] = useState(book.cells.at(-1)?.language ?? "python");
  const code = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (wanted) {
      session.contexts.languages().then((found) => {
        setLanguages(found);
        setLanguage((one) => (found.includes(one) ? one : (found[0] ?? one)));
      }, setError);
    }
  }, [wanted]);
  if (languages.length === 0) {
    return <p class="empty">The image of this session has no kernel for code cells.</p>;
  }
  const run = (): void => {
    const text = code.current?.value ?? "";
    if (code.current !== null && text.trim() !== "") {
      code.current.value = "";
      void book.run(text, language);
    }
  };
  return (
    <div class="card cell">
      <label class="hidden" for={`code-${id}`}>
        Code of cell {id}
      </label>
      <textarea
        id={`code-${id}`}
        ref={code}
        rows={5}
        spellcheck={false}
        placeholder="Shift and Enter runs it"
        onFocus={() => setWanted(true)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && event.shiftKey) {
            event.preventDefault();
            run();
          }
        }}
      />
      <div class="bar">
        <label class="hidden" for={`language-${id}`}>
          Language of cell {id}
        </label>
        <select
          id={`language-${id}`}
          value={language}
          onFocus={() => setWanted(true)}
          onChange={(event) => setLanguage(event.currentTarget.value)}
        >
          {languages.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <button class="primary" type="button" onClick={run}>
          Run
        </button>
      </div>
      {error !== undefined && <Failure error={error} />}
    </div>
  );
}

function OwnCell({ cell, remove }: { cell: Cell; remove: () => void }): VNode {
  const { id, language, code, output, displays, result, error, running, control } = cell;
  const failure = result?.error;
  return (
    <article class="card cell" aria-label={`Cell ${id}`}>
      <Code text={code} language={language} />
      <div class="bar">
        <span role="status" class="muted">
          {language} {running ? "running" : ""}{" "}
          {result !== undefined && <Badge state={result.status} />}{" "}
          {result !== undefined && duration(result.durationMs)}
        </span>
        <div class="tools">
          {running ? (
            <button type="button" onClick={() => control.abort()}>
              Interrupt
            </button>
          ) : (
            <button type="button" aria-label={`Remove cell ${id}`} onClick={remove}>
              Remove
            </button>
          )}
        </div>
      </div>
      {error !== undefined && <Failure error={error} />}
      {output !== "" && (
        <pre tabIndex={0} aria-label="Output">
          {plainText(output)}
        </pre>
      )}
      {displays.map((one, at) => (
        <Display key={at} display={one} />
      ))}
      {failure !== undefined && failure !== null && (
        <pre class="bad" tabIndex={0} aria-label="Error">
          {plainText(failure.traceback || `${failure.name}: ${failure.value}`)}
        </pre>
      )}
    </article>
  );
}

/** A cell of the history: its code, and the text that was recorded of it. */
function PastCell({ session, row }: { session: Session; row: PastRow }): VNode {
  const recorded = usePolled(
    (signal) => recordedText(session.id, row.execId, signal),
    row.status === "running" ? 2000 : 0,
    `${row.execId} ${row.status}`,
  );
  const printed = row.stdoutBytes + row.stderrBytes > 0;
  return (
    <article class="card cell" aria-label={`Earlier cell ${row.execId}`}>
      <Code text={row.command ?? ""} language={row.language ?? ""} />
      <div class="bar muted">
        {row.language} <Badge {...resultOf(row)} /> {duration(row.durationMs)}
        <span class="tools">
          <When unix={row.startedAt} />
        </span>
      </div>
      {recorded.error !== undefined && <Failure error={recorded.error} />}
      {recorded.value !== undefined && recorded.value !== "" && (
        <pre tabIndex={0} aria-label="Output">
          {plainText(recorded.value).slice(-MAX_OUTPUT)}
        </pre>
      )}
      {recorded.value === undefined && printed && (
        <p class="hint">Its output was not recorded; the setting recording.enabled does that.</p>
      )}
    </article>
  );
}

/** The richest form of a result. It comes from the sandbox: pictures and frames without rights. */
function Display({ display }: { display: CodeDisplay }): VNode {
  const { png, jpeg, svg, html, text } = display;
  if (png !== null || jpeg !== null) {
    const data = Uint8Array.from(atob(png ?? jpeg ?? ""), (one) => one.charCodeAt(0));
    return <Picture data={data} type={png === null ? "image/jpeg" : "image/png"} text={text} />;
  }
  if (svg !== null) {
    return <Picture data={svg} type="image/svg+xml" text={text} />;
  }
  if (html !== null) {
    return <iframe class="result" title="Result" sandbox="" srcDoc={html} />;
  }
  return (
    <pre tabIndex={0} aria-label="Result">
      {text ?? display.markdown ?? JSON.stringify(display.json)}
    </pre>
  );
}

interface PictureProps {
  data: string | Uint8Array<ArrayBuffer>;
  type: string;
  text: string | null;
}

function Picture({ data, type, text }: PictureProps): VNode {
  const [url, setUrl] = useState<string>();
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([data], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, []);
  return <img class="picture" src={url} alt={text ?? "A picture"} />;
}
