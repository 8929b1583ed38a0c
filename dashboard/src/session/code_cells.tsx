/** Code cells: code runs in a context of the session, and results are shown below it. */

import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { CodeDisplay, CodeResult, Session } from "sandkasten";
import { Badge } from "../components/badge.js";
import { Failure } from "../components/failure.js";
import { usePolled } from "../components/polled.js";
import { plainText } from "../components/plain_text.js";
import { duration } from "../components/units.js";
import type { TabProps } from "../pages/session.js";

interface Cell {
  id: number;
  language: string;
}

export default function CodeTab({ session }: TabProps): VNode {
  const languages = usePolled(
    (signal) => session.contexts.languages({ signal }),
    0,
    session.id,
  );
  const [cells, setCells] = useState<Cell[]>([{ id: 1, language: "python" }]);
  const add = (language: string): void =>
    setCells((all) => [...all, { id: (all.at(-1)?.id ?? 0) + 1, language }]);
  if (languages.error !== undefined) {
    return <Failure error={languages.error} />;
  }
  if (languages.value === undefined) {
    return <div aria-busy="true" />;
  }
  if (languages.value.length === 0) {
    return <p class="empty">The image of this session has no kernel for code cells.</p>;
  }
  return (
    <div class="cells">
      {cells.map(({ id, language }) => (
        <CellView
          key={id}
          id={id}
          session={session}
          languages={languages.value ?? []}
          first={language}
          next={(chosen) => id === cells.at(-1)?.id && add(chosen)}
          remove={() => setCells((all) => all.filter((one) => one.id !== id))}
        />
      ))}
      <button type="button" onClick={() => add(cells.at(-1)?.language ?? "python")}>
        Add a cell
      </button>
    </div>
  );
}

interface CellProps {
  id: number;
  session: Session;
  languages: readonly string[];
  first: string;
  /** Called when the code has run, with its language. */
  next: (language: string) => void;
  remove: () => void;
}

function CellView({ id, session, languages, first, next, remove }: CellProps): VNode {
  const [language, setLanguage] = useState(languages.includes(first) ? first : languages[0] ?? "");
  const [running, setRunning] = useState(false);
  const [output, setOutput] = useState("");
  const [displays, setDisplays] = useState<CodeDisplay[]>([]);
  const [result, setResult] = useState<CodeResult>();
  const [error, setError] = useState<unknown>();
  const code = useRef<HTMLTextAreaElement>(null);
  const control = useRef<AbortController>(undefined);
  useEffect(() => () => control.current?.abort(), []);
  const run = async (): Promise<void> => {
    control.current = new AbortController();
    setRunning(true);
    setOutput("");
    setDisplays([]);
    setResult(undefined);
    setError(undefined);
    const show = (text: string): void => setOutput((all) => (all + text).slice(-200_000));
    try {
      setResult(
        await session.runCode(code.current?.value ?? "", {
          language,
          signal: control.current.signal,
          onStdout: show,
          onStderr: show,
          onResult: (one) => setDisplays((all) => [...all, one]),
        }),
      );
      next(language);
    } catch (problem) {
      if (!control.current.signal.aborted) {
        setError(problem);
      }
    }
    setRunning(false);
  };
  return (
    <article class="card cell" aria-label={`Cell ${id}`}>
      <label class="hidden" for={`code-${id}`}>
        Code of cell {id}
      </label>
      <textarea
        id={`code-${id}`}
        ref={code}
        rows={5}
        spellcheck={false}
        placeholder="Shift and Enter runs it"
        onKeyDown={(event) => {
          if (event.key === "Enter" && event.shiftKey) {
            event.preventDefault();
            void run();
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
          onChange={(event) => setLanguage(event.currentTarget.value)}
        >
          {languages.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <button class="primary" type="button" disabled={running} onClick={run}>
          Run
        </button>
        {running && (
          <button type="button" onClick={() => control.current?.abort()}>
            Interrupt
          </button>
        )}
        <button type="button" aria-label={`Remove cell ${id}`} onClick={remove}>
          Remove
        </button>
        <span role="status" class="muted">
          {running ? "running" : ""}
          {result !== undefined && <Badge state={result.status} />}{" "}
          {result !== undefined && duration(result.durationMs)}
        </span>
      </div>
      {error !== undefined && <Failure error={error} />}
      {output !== "" && <pre tabIndex={0} aria-label="Output">{plainText(output)}</pre>}
      {displays.map((one, at) => (
        <Display key={at} display={one} />
      ))}
      {result?.error !== undefined && result.error !== null && (
        <pre class="bad" tabIndex={0} aria-label="Error">
          {plainText(result.error.traceback || `${result.error.name}: ${result.error.value}`)}
        </pre>
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
