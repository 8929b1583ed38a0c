/** One session: what it is, and a tab for everything that can be done with it. */

import type { ComponentType, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { NotFound, type Session, type SessionInfo } from "sandkasten";
import { Badge } from "../components/badge.js";
import { Confirm } from "../components/dialog.js";
import { Facts } from "../components/facts.js";
import { Failure } from "../components/failure.js";
import { usePolled } from "../components/polled.js";
import { ago, bytes, clock, MIB } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import { address, go, type Place } from "../router.js";

export interface TabProps {
  session: Session;
  info: SessionInfo;
  place: Place;
  /** Read the description of the session again. */
  refresh: () => void;
}

/** The tab that an ended session has too. */
export interface PastProps {
  id: string;
}

interface Tab<Props> {
  /** The third part of the address. */
  name: string;
  title: string;
  load: () => Promise<{ default: ComponentType<Props> }>;
}

const TABS: readonly Tab<TabProps>[] = [
  // The first one only reads: opening a session must not start anything in it.
  { name: "commands", title: "Commands", load: () => import("../session/commands.js") },
  { name: "terminal", title: "Terminal", load: () => import("../session/terminal.js") },
  { name: "files", title: "Files", load: () => import("../session/file_browser.js") },
  { name: "use", title: "Resources", load: () => import("../session/resources.js") },
  { name: "code", title: "Code", load: () => import("../session/code_cells.js") },
  { name: "network", title: "Network", load: () => import("../session/network.js") },
  { name: "ports", title: "Ports", load: () => import("../session/port_links.js") },
];
const REPLAY: Tab<PastProps> = {
  name: "replay",
  title: "Replay",
  load: () => import("../session/replay.js"),
};

export function SessionPage({ id, place }: { id: string; place: Place }): VNode {
  const found = usePolled((signal) => daemon().getSession(id, { signal }), 5000, id);
  // One object for the tabs, however often its description is read.
  const [session, setSession] = useState<Session>();
  useEffect(() => {
    setSession((one) => (one?.id === id ? one : found.value));
    document.title = `${id} · Sandkasten`;
  }, [found.value, id]);
  const ended = found.error instanceof NotFound;
  const past = ended || place.parts[2] === REPLAY.name;
  const tab = past ? undefined : (TABS.find(({ name }) => name === place.parts[2]) ?? TABS[0]);
  const info = ended ? undefined : found.value?.known;
  const shown = (tab ?? REPLAY).name;
  const tabs = useRef<HTMLElement>(null);
  // On a phone the tabs are wider than the screen.
  useEffect(() => {
    const current = tabs.current?.querySelector("[aria-current]");
    current?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [id, shown]);
  return (
    <section class="session">
      <div class="heading">
        <a href={address(["sessions"])}>Sessions</a>
        <span aria-hidden="true">/</span>
        <h1 class="mono">{id}</h1>
        {info !== undefined && <Badge state={info.status} />}
        {info !== undefined && (
          <div class="tools">
            <Pause info={info} session={found.value} refresh={found.refresh} />
            <Confirm
              label="Kill"
              about={id}
              question="Everything in this session is lost, except a named workspace."
              act={async () => (await daemon().getSession(id)).destroy()}
              done={() => go(["sessions"])}
            />
          </div>
        )}
      </div>
      {found.error !== undefined && !ended && <Failure error={found.error} />}
      {ended && (
        <p class="why">
          This session does not exist, or has ended. The replay has what the daemon remembers of it.
        </p>
      )}
      {info !== undefined && <About info={info} />}
      <nav class="tabs" aria-label="Parts of the session" ref={tabs}>
        {[...(ended ? [] : TABS), REPLAY].map(({ name, title }) => (
          <a
            key={name}
            href={address(["sessions", id, name])}
            data-title={title}
            {...(name === shown ? { "aria-current": "page" as const } : {})}
          >
            {title}
          </a>
        ))}
      </nav>
      {session !== undefined && info !== undefined && tab !== undefined && (
        <LoadedTab
          key={`${id} ${tab.name}`}
          tab={tab}
          given={{ session, info, place, refresh: found.refresh }}
        />
      )}
      {past && <LoadedTab key={`${id} replay`} tab={REPLAY} given={{ id }} />}
    </section>
  );
}

function About({ info }: { info: SessionInfo }): VNode {
  const labels = Object.entries(info.labels);
  return (
    <details class="about" open={matchMedia("(min-width: 45rem)").matches}>
      <summary>
        {info.image}, ends <When unix={info.expiresAtUnix} />
      </summary>
      <Facts
        facts={[
          ["Image", info.image],
          ["Backend", info.backend],
          ["Profile", info.profile ?? undefined],
          ["Memory", bytes((info.limits["mem_limit_mb"] ?? NaN) * MIB)],
          ["Workspace", info.workspaceId ?? undefined],
          ["Age", <span title={clock(info.createdAtUnix)}>{ago(info.createdAtUnix)}</span>],
          ["Ends", info.expiresAtUnix === null ? undefined : <When unix={info.expiresAtUnix} />],
          [
            "Labels",
            labels.length === 0
              ? undefined
              : labels.map((one) => (
                  <span key={one[0]} class="badge chip">
                    {one.join("=")}
                  </span>
                )),
          ],
        ]}
      />
    </details>
  );
}

interface PauseProps {
  info: SessionInfo;
  session: Session | undefined;
  refresh: () => void;
}

function Pause({ info, session, refresh }: PauseProps): VNode {
  const [error, setError] = useState<unknown>();
  const paused = info.status === "paused";
  const turn = async (): Promise<void> => {
    try {
      await (paused ? session?.resume() : session?.pause());
      setError(undefined);
    } catch (problem) {
      setError(problem);
    }
    refresh();
  };
  return (
    <>
      {error !== undefined && <Failure error={error} />}
      <button type="button" onClick={turn}>
        {paused ? "Resume" : "Pause"}
      </button>
    </>
  );
}

interface LoadedProps<Props> {
  tab: Tab<Props>;
  given: Props;
}

function LoadedTab<Props extends object>({ tab, given }: LoadedProps<Props>): VNode {
  const [Shown, setShown] = useState<ComponentType<Props>>();
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    tab.load().then((module) => setShown(() => module.default), setError);
  }, [tab]);
  if (error !== undefined) {
    return <Failure error={error} />;
  }
  return Shown === undefined ? <div aria-busy="true" /> : <Shown {...given} />;
}
