/**
 * Code with its comments, strings, numbers and words in colours.
 *
 * The text comes from a sandbox or an agent: it is cut into spans of text, and never becomes markup.
 */

import type { VNode } from "preact";

type Kind = "comment" | "string" | "number" | "word";

const WORDS =
  "and as assert async await break case catch class const continue def del do done elif else esac " +
  "except export extends False fi finally for from function global if import in is lambda let local " +
  "new None nonlocal not null or pass raise return switch then throw True true false try typeof " +
  "undefined var void while with yield";
const HASH = String.raw`#[^\n]*`;
const SLASHES = String.raw`//[^\n]*|/\*[\s\S]*?(?:\*/|$)`;
const STRINGS = String.raw`"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?`;
const BACKTICKS = "|`(?:\\\\.|[^`\\\\])*`?";
// A longer text is shown without colours.
const MOST = 32 * 1024;

export function Code({ text, language }: { text: string; language: string }): VNode {
  return (
    <pre class="code" tabIndex={0} aria-label="Code">
      {text.length > MOST
        ? text
        : tokens(text, language).map(([part, kind], at) =>
            kind === undefined ? (
              part
            ) : (
              <span key={at} class={`code-${kind}`}>
                {part}
              </span>
            ),
          )}
    </pre>
  );
}

/** Return the parts of a text in order, each with its kind. */
export function tokens(text: string, language: string): [string, Kind | undefined][] {
  const slashes = /^(javascript|typescript|java|rust|go|c|cpp)/.test(language);
  const pattern = new RegExp(
    `(${slashes ? SLASHES : HASH})|(${STRINGS}${slashes ? BACKTICKS : ""})|` +
      String.raw`\b(\d[\w.]*)\b|\b(${WORDS.replaceAll(" ", "|")})\b`,
    "g",
  );
  const parts: [string, Kind | undefined][] = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > end) {
      parts.push([text.slice(end, match.index), undefined]);
    }
    const [whole, comment, string, number] = match;
    const kind: Kind =
      comment !== undefined
        ? "comment"
        : string !== undefined
          ? "string"
          : number !== undefined
            ? "number"
            : "word";
    parts.push([whole, kind]);
    end = match.index + whole.length;
  }
  return end < text.length ? [...parts, [text.slice(end), undefined]] : parts;
}
