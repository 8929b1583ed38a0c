/** Links to servers in a session. A preview has an origin of its own and opens in its own tab. */

import type { TargetedEvent, VNode } from "preact";
import { useState } from "preact/hooks";
import type { Session } from "sandkasten";
import { Failure } from "../components/failure.js";
import type { TabProps } from "../pages/session.js";

interface Link {
  port: number;
  url: string;
  isPublic: boolean;
}

export default function PortsTab({ session }: TabProps): VNode {
  const [links, setLinks] = useState<Link[]>([]);
  const [open, setOpen] = useState<number[]>();
  const [error, setError] = useState<unknown>();
  const attempt = async (act: () => Promise<void>): Promise<void> => {
    try {
      await act();
      setError(undefined);
    } catch (problem) {
      setError(problem);
    }
  };
  const link = (port: number, isPublic: boolean): Promise<void> =>
    attempt(async () => {
      const url = await session.url(port, isPublic ? { public: true } : {});
      setLinks((all) => [{ port, url, isPublic }, ...all.filter((one) => one.port !== port)]);
    });
  const close = (one: Link): Promise<void> =>
    attempt(async () => {
      await (one.isPublic ? session.url(one.port, { public: false }) : session.revokeUrl(one.url));
      setLinks((all) => all.filter(({ port }) => port !== one.port));
    });
  const submit = (event: TargetedEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    void link(Number(form.get("port")), form.get("who") === "public");
  };
  return (
    <div class="card">
      <h2>Open a port</h2>
      <form class="line-form" onSubmit={submit}>
        <label class="hidden" for="port">
          Port
        </label>
        <input id="port" name="port" type="number" min="1" max="65535" placeholder="8000" required />
        <label class="hidden" for="who">
          Who may open it
        </label>
        <select id="who" name="who">
          <option value="link">who has the link, for an hour</option>
          <option value="public">everybody who reaches the daemon</option>
        </select>
        <button class="primary" type="submit">
          Make a link
        </button>
        <button type="button" onClick={() => attempt(async () => setOpen(await listening(session)))}>
          Find servers
        </button>
      </form>
      {error !== undefined && <Failure error={error} />}
      {open !== undefined && (
        <p class="chips" role="status">
          {open.length === 0 ? "No server listens." : "Servers listen on: "}
          {open.map((port) => (
            <button key={port} type="button" onClick={() => link(port, false)}>
              {port}
            </button>
          ))}
        </p>
      )}
      <ul class="plain">
        {links.map((one) => (
          <li key={one.port}>
            <a href={safe(one.url)} target="_blank" rel="noopener noreferrer">
              Port {one.port}
            </a>{" "}
            <span class="muted">{one.isPublic ? "public" : "private link"}</span>{" "}
            <button type="button" onClick={() => close(one)}>
              {one.isPublic ? "Make private" : "Revoke"}
            </button>
          </li>
        ))}
      </ul>
      <p class="hint">
        A preview has an origin of its own, so its page cannot use this dashboard. It can still look
        like anything: do not enter secrets into it.
      </p>
    </div>
  );
}

function safe(url: string): string {
  return /^https?:\/\//.test(url) ? url : "#";
}

/** Return the TCP ports that something inside listens on. */
async function listening(session: Session): Promise<number[]> {
  const { stdout } = await session.exec(["cat", "/proc/net/tcp", "/proc/net/tcp6"]);
  const ports = stdout.split("\n").flatMap((line) => {
    const [, local, , state] = line.trim().split(/\s+/);
    const port = parseInt(local?.split(":")[1] ?? "", 16);
    // 0A: it listens.
    return state === "0A" && port > 0 ? [port] : [];
  });
  return [...new Set(ports)].sort((a, b) => a - b);
}
