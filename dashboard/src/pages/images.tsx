/** Images of the store: the list, pulls with their progress, and one image. */

import type { TargetedEvent, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ImageInfo, Layer } from "sandkasten";
import { type Column, DataTable } from "../components/data_table.js";
import { Confirm, Dialog } from "../components/dialog.js";
import { Facts } from "../components/facts.js";
import { Failure } from "../components/failure.js";
import { ListPage } from "../components/list_page.js";
import { usePolled } from "../components/polled.js";
import { bytes, counted } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";
import { mayUse, type PageProps } from "../pages.js";
import { address } from "../router.js";

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
  const [pulling, setPulling] = useState(false);
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
              <button type="button" class="primary" onClick={() => setPulling(true)}>
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
        empty="There are no images. Pull one, or import one with sandkasten image import."
      />
      {!mayChange && (
        <p class="hint">This key cannot pull or remove images: it needs the scope images.</p>
      )}
      <StoreUse turn={turn} />
      {pulling && <Pull close={() => setPulling(false)} done={again} />}
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

function Pull({ close, done }: { close: () => void; done: () => void }): VNode {
  const [progress, setProgress] = useState<Progress>();
  const [error, setError] = useState<unknown>();
  const control = useRef<AbortController>(undefined);
  useEffect(() => () => control.current?.abort(), []);
  const pull = async (event: TargetedEvent<HTMLFormElement>): Promise<void> => {
    event.preventDefault();
    const name = String(new FormData(event.currentTarget).get("name") ?? "").trim();
    control.current = new AbortController();
    const { signal } = control.current;
    setError(undefined);
    setProgress({ step: "asking the registry", done: 0, total: undefined });
    try {
      await daemon().images.pull(name, {
        signal,
        onProgress: (told) => setProgress(progressOf(told)),
      });
      done();
      close();
    } catch (problem) {
      setProgress(undefined);
      if (!signal.aborted) {
        setError(problem);
      }
    }
  };
  const busy = progress !== undefined;
  return (
    <Dialog title="Pull an image" close={close}>
      <form class="form" onSubmit={pull}>
        <div>
          <label for="name">Image</label>
          <input
            id="name"
            name="name"
            placeholder="docker.io/library/python:3.12-slim"
            spellcheck={false}
            required
            disabled={busy}
          />
        </div>
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
        {error !== undefined && <Failure error={error} />}
        <div class="buttons">
          <button type="button" onClick={close}>
            {busy ? "Stop" : "Cancel"}
          </button>
          <button type="submit" class="primary" disabled={busy}>
            Pull
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function progressOf(told: Record<string, unknown>): Progress {
  const { step, done, total } = told;
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
