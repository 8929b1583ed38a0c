/** Images of the store: the list, pulls and builds with their progress, and one image. */

import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ImageInfo, Layer } from "sandkasten";
import { type Column, DataTable } from "../components/data_table.js";
import { Confirm } from "../components/dialog.js";
import { Facts } from "../components/facts.js";
import { Failure } from "../components/failure.js";
import { Field, type Fields, FormDialog } from "../components/form_dialog.js";
import { ListPage } from "../components/list_page.js";
import { plainText } from "../components/plain_text.js";
import { usePolled } from "../components/polled.js";
import { bytes, counted } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import { mayUse, type PageProps } from "../pages.js";
import { address } from "../router.js";

// The end of the output of a build; all of it can be megabytes.
const MOST_LINES = 500;

const COLUMNS: readonly Column<ImageInfo>[] = [
  {
    title: "Name",
    cell: ({ id, names }) => <a href={address(["images", id])}>{names.join(", ") || "no name"}</a>,
    sort: ({ name }) => name ?? "",
  },
  { title: "Id", cell: ({ id }) => <span class="mono">{short(id)}</span>, wide: true },
  {
    title: "Platform",
    cell: ({ os, architecture, variant }) => [os, architecture, variant].filter(Boolean).join("/"),
    wide: true,
  },
  {
    title: "Used by",
    cell: ({ usedBy }) => usedBy.length || "",
    sort: ({ usedBy }) => usedBy.length,
    numeric: true,
    wide: true,
  },
  {
    title: "Size",
    cell: ({ sizeBytes }) => bytes(sizeBytes),
    sort: ({ sizeBytes }) => sizeBytes,
    numeric: true,
  },
  {
    title: "Added",
    cell: ({ createdAt }) => <When unix={createdAt} />,
    sort: ({ createdAt }) => -createdAt,
    numeric: true,
    wide: true,
  },
];

export default function Images({ place, identity }: PageProps): VNode {
  const id = place.parts[1];
  const mayChange = mayUse(identity, "images");
  return id === undefined ? <ImageList mayChange={mayChange} /> : <OneImage key={id} id={id} />;
}

function ImageList({ mayChange }: { mayChange: boolean }): VNode {
  const [open, setOpen] = useState<"pull" | "build">();
  const [turn, setTurn] = useState(0);
  const again = (): void => setTurn((one) => one + 1);
  return (
    <>
      <ListPage<ImageInfo>
        title="Images"
        load={(signal) => daemon().images.list({ signal })}
        readKey={String(turn)}
        columns={COLUMNS}
        keyOf={({ id }) => id}
        textOf={({ id, names, architecture }) => `${id} ${names.join(" ")} ${architecture}`}
        buttons={() =>
          mayChange && (
            <>
              <Confirm
                label="Remove unused"
                about="images"
                question="Images without a name that no session uses are removed."
                act={() => daemon().images.collect()}
                done={again}
              />
              <button type="button" onClick={() => setOpen("build")}>
                Build
              </button>
              <button type="button" class="primary" onClick={() => setOpen("pull")}>
                Pull
              </button>
            </>
          )
        }
        {...(mayChange
          ? {
              actions: ({ id, names }: ImageInfo) => (
                <Confirm
                  label="Remove"
                  about={names.join(", ") || short(id)}
                  question="The name is removed, and the image with its last name."
                  act={() => removed(id, names)}
                  done={again}
                />
              ),
            }
          : {})}
        empty="There are no images. Pull or build one, or import one with sandkasten image import."
      />
      {!mayChange && (
        <p class="hint">
          This key cannot pull, build or remove images: it needs the scope images.
        </p>
      )}
      <StoreUse turn={turn} />
      {open === "pull" && <Pull close={() => setOpen(undefined)} done={again} />}
      {open === "build" && <Build close={() => setOpen(undefined)} done={again} />}
    </>
  );
}

async function removed(id: string, names: readonly string[]): Promise<void> {
  for (const name of names.length > 0 ? names : [id]) {
    await daemon().images.remove(name);
  }
}

function StoreUse({ turn }: { turn: number }): VNode | null {
  const { value } = usePolled((signal) => daemon().images.usage({ signal }), 30_000, String(turn));
  if (value === undefined) {
    return null;
  }
  return (
    <p class="hint">
      The store has {counted(value.images, "image")} in {counted(value.layers, "layer")}:{" "}
      {bytes(value.bytes)}, of which {bytes(value.reclaimableBytes)} can be freed.
    </p>
  );
}

interface Progress {
  step: string;
  done: number;
  total: number | undefined;
}

interface NewImageProps {
  close: () => void;
  done: () => void;
}

function Pull(props: NewImageProps): VNode {
  return (
    <Work
      title="Pull an image"
      label="Pull"
      first="asking the registry"
      work={(fields, options) => daemon().images.pull(fields.text("name") ?? "", options)}
      {...props}
    >
      {(busy) => (
        <Field
          name="name"
          label="Image"
          placeholder="docker.io/library/python:3.12-slim"
          required
          disabled={busy}
        />
      )}
    </Work>
  );
}

function Build(props: NewImageProps): VNode {
  const images = daemon().images;
  return (
    <Work
      title="Build an image"
      label="Build"
      first="waiting for the daemon"
      work={(fields, options) => {
        const refresh = fields.text("refresh") !== undefined;
        return images.build(fields.text("name") ?? "", { ...options, refresh });
      }}
      {...props}
    >
      {(busy) => (
        <>
          <Field
            name="name"
            label="Image"
            hint="The daemon builds it from packages of Debian and of the Python index. It takes minutes."
          >
            <select id="field-name" name="name" disabled={busy}>
              {images.buildable.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </Field>
          <label class="tick">
            <input type="checkbox" name="refresh" value="yes" disabled={busy} /> Build it again,
            without the cache
          </label>
        </>
      )}
    </Work>
  );
}

interface WorkProps extends NewImageProps {
  title: string;
  label: string;
  /** The step until the daemon reports one. */
  first: string;
  work: (
    fields: Fields,
    options: { signal: AbortSignal; onProgress: (report: Record<string, unknown>) => void },
  ) => Promise<unknown>;
  /** The fields, which are disabled while it works. */
  children: (busy: boolean) => VNode;
}

/** A dialog for work that takes minutes: it shows progress and output, and closing it stops it. */
function Work({ title, label, first, work, close, done, children }: WorkProps): VNode {
  const [progress, setProgress] = useState<Progress>();
  const [lines, setLines] = useState<readonly string[]>([]);
  const control = useRef(new AbortController());
  useEffect(() => () => control.current.abort(), []);
  const send = async (fields: Fields): Promise<void> => {
    setLines([]);
    setProgress({ step: first, done: 0, total: undefined });
    try {
      await work(fields, {
        signal: control.current.signal,
        onProgress: (report) => {
          setProgress(progressOf(report));
          const { text } = report;
          if (typeof text === "string" && text !== "") {
            setLines((before) => [...before.slice(1 - MOST_LINES), plainText(text)]);
          }
        },
      });
      done();
    } finally {
      setProgress(undefined);
    }
  };
  const busy = progress !== undefined;
  return (
    <FormDialog title={title} label={label} send={send} close={close} closeLabel={busy ? "Stop" : "Cancel"}>
      {children(busy)}
      {busy && (
        <div>
          <label for="progress" class="muted">
            {progress.step}
            {progress.total !== undefined &&
              `, ${bytes(progress.done)} of ${bytes(progress.total)}`}
          </label>
          <progress
            id="progress"
            {...(progress.total === undefined || progress.total === 0
              ? {}
              : { value: progress.done, max: progress.total })}
          />
        </div>
      )}
      {/* The error of a build has the end of its output. */}
      {busy && lines.length > 0 && <Output lines={lines} />}
    </FormDialog>
  );
}

function Output({ lines }: { lines: readonly string[] }): VNode {
  const shown = useRef<HTMLPreElement>(null);
  useEffect(() => shown.current?.scrollTo({ top: shown.current.scrollHeight }), [lines]);
  return (
    <pre ref={shown} class="output" role="log" aria-label="Output" tabIndex={0}>
      {lines.join("\n")}
    </pre>
  );
}

function progressOf(report: Record<string, unknown>): Progress {
  const { step, done, total } = report;
  return {
    step: typeof step === "string" ? step : "",
    done: typeof done === "number" ? done : 0,
    total: typeof total === "number" ? total : undefined,
  };
}

const LAYERS: readonly Column<Layer>[] = [
  { title: "Layer", cell: ({ id }) => <span class="mono">{short(id)}</span> },
  { title: "Size", cell: (layer) => bytes(layer.bytes), numeric: true },
  {
    title: "Images with it",
    cell: ({ shared }) => shared,
    numeric: true,
  },
];

function OneImage({ id }: { id: string }): VNode {
  const found = usePolled((signal) => daemon().images.inspect(id, { signal }), 10_000);
  const image = found.value;
  return (
    <section>
      <div class="heading">
        <a href={address(["images"])}>Images</a>
        <span aria-hidden="true">/</span>
        <h1>{image?.name ?? short(id)}</h1>
      </div>
      {found.error !== undefined && <Failure error={found.error} />}
      {image !== undefined && (
        <>
          <Facts
            facts={[
              ["Names", image.names.join(", ") || undefined],
              ["Id", <span class="mono">{image.id}</span>],
              ["Platform", [image.os, image.architecture, image.variant].filter(Boolean).join("/")],
              ["Size", bytes(image.sizeBytes)],
              ["Added", <When unix={image.createdAt} />],
              ["Source", image.source || undefined],
              [
                "Sessions",
                image.usedBy.length === 0
                  ? "none"
                  : image.usedBy.map((one) => (
                      <a key={one} class="mono" href={address(["sessions", one])}>
                        {one}
                      </a>
                    )),
              ],
            ]}
          />
          <h2>Layers</h2>
          <DataTable
            caption="Layers"
            rows={image.layers}
            columns={LAYERS}
            keyOf={(layer) => layer.id}
            empty="It has no layers."
          />
          <h2 class="later">Environment</h2>
          <pre tabIndex={0}>
            {Object.entries(image.env)
              .map(([name, value]) => `${name}=${value}`)
              .join("\n") || "empty"}
          </pre>
        </>
      )}
    </section>
  );
}

function short(id: string): string {
  return id.replace(/^sha256:/, "").slice(0, 12);
}
