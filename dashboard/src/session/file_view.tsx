/** One file: a picture, or text that can be changed. */

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Session } from "sandkasten";
import { Failure } from "../components/failure.js";
import { bytes } from "../components/units.js";

// Above this, a text field is slow.
const MAX_TEXT = 1_000_000;
const MAX_PICTURE = 30_000_000;
const PICTURES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
  avif: "image/avif",
  bmp: "image/bmp",
  // As a picture it runs no script and loads nothing.
  svg: "image/svg+xml",
};

type Content =
  | { kind: "picture"; url: string }
  | { kind: "text"; text: string }
  | { kind: "other"; size: number };

interface FileViewProps {
  session: Session;
  path: string;
  /** The address without this file. */
  closed: string;
}

export function FileView({ session, path, closed }: FileViewProps): VNode {
  const [content, setContent] = useState<Content>();
  const [error, setError] = useState<unknown>();
  const [said, setSaid] = useState("");
  const [changed, setChanged] = useState<string>();
  useEffect(() => {
    const control = new AbortController();
    let made: Content | undefined;
    read(session, path, control.signal).then((found) => {
      made = found;
      setContent(found);
    }, setError);
    return () => {
      control.abort();
      if (made?.kind === "picture") {
        URL.revokeObjectURL(made.url);
      }
    };
  }, [session, path]);
  const save = async (): Promise<void> => {
    try {
      await session.write(path, changed ?? "");
      setSaid("Saved");
      setChanged(undefined);
      setError(undefined);
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <article class="card details">
      <div class="heading">
        <h2 class="mono">{path}</h2>
        <span role="status" class="muted">
          {changed === undefined ? said : "Changed"}
        </span>
        <div class="tools">
          {content?.kind === "text" && (
            <button type="button" class="primary" disabled={changed === undefined} onClick={save}>
              Save
            </button>
          )}
          <a href={closed}>Close</a>
        </div>
      </div>
      {error !== undefined && <Failure error={error} />}
      {content?.kind === "picture" && <img class="picture" src={content.url} alt={path} />}
      {content?.kind === "text" && (
        <textarea
          aria-label={`Content of ${path}`}
          rows={18}
          spellcheck={false}
          value={changed ?? content.text}
          onInput={(event) => setChanged(event.currentTarget.value)}
        />
      )}
      {content?.kind === "other" && (
        <p class="muted">{bytes(content.size)} that are not text. Download it to see it.</p>
      )}
    </article>
  );
}

async function read(session: Session, path: string, signal: AbortSignal): Promise<Content> {
  const { size } = await session.stat(path, { signal });
  const type = PICTURES[path.split(".").at(-1)?.toLowerCase() ?? ""];
  if (type !== undefined && size <= MAX_PICTURE) {
    const data = await session.read(path, { signal });
    return { kind: "picture", url: URL.createObjectURL(new Blob([data], { type })) };
  }
  if (size > MAX_TEXT) {
    return { kind: "other", size };
  }
  try {
    const data = await session.read(path, { signal, maxBytes: MAX_TEXT });
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
    return text.includes("\0") ? { kind: "other", size } : { kind: "text", text };
  } catch (error) {
    if (error instanceof TypeError) {
      return { kind: "other", size };
    }
    throw error;
  }
}
