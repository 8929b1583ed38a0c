/** The file store: files that outlive sessions. */

import type { VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import type { StoredFile } from "sandkasten";
import type { Column } from "../components/data_table.js";
import { Confirm } from "../components/dialog.js";
import { saveAs } from "../components/downloads.js";
import { Failure } from "../components/failure.js";
import { Field, type Fields, FormDialog } from "../components/form_dialog.js";
import { ListPage } from "../components/list_page.js";
import { bytes } from "../components/units.js";
import { When } from "../components/when.js";
import { daemon } from "../daemon.js";

const COLUMNS: readonly Column<StoredFile>[] = [
  { title: "Key", cell: ({ key }) => <span class="mono">{key}</span>, sort: ({ key }) => key },
  { title: "Type", cell: ({ contentType }) => contentType, wide: true },
  {
    title: "Metadata",
    cell: ({ metadata }) =>
      Object.entries(metadata)
        .map((one) => one.join("="))
        .join(" "),
    wide: true,
  },
  {
    title: "Size",
    cell: ({ sizeBytes }) => bytes(sizeBytes),
    sort: ({ sizeBytes }) => sizeBytes,
    numeric: true,
  },
  {
    title: "Stored",
    cell: ({ createdAtUnix }) => <When unix={createdAtUnix} />,
    sort: ({ createdAtUnix }) => -createdAtUnix,
    numeric: true,
    wide: true,
  },
  {
    title: "Expires",
    cell: ({ expiresAtUnix }) => (expiresAtUnix === null ? "never" : <When unix={expiresAtUnix} />),
    sort: ({ expiresAtUnix }) => expiresAtUnix ?? Number.MAX_VALUE,
    numeric: true,
    wide: true,
  },
];

export default function Files(): VNode {
  const [error, setError] = useState<unknown>();
  const [storing, setStoring] = useState(false);
  const [turn, setTurn] = useState(0);
  const save = async (key: string): Promise<void> => {
    try {
      const stream = await daemon().files.get(key);
      saveAs(await new Response(stream).blob(), key.split("/").at(-1) ?? key);
      setError(undefined);
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <>
      {error !== undefined && <Failure error={error} dismiss={() => setError(undefined)} />}
      <ListPage<StoredFile>
        title="Stored files"
        load={(signal) => daemon().files.list("", { signal })}
        readKey={String(turn)}
        everyMs={10_000}
        columns={COLUMNS}
        keyOf={({ key }) => key}
        textOf={({ key, contentType, metadata }) =>
          `${key} ${contentType} ${JSON.stringify(metadata)}`
        }
        buttons={() => (
          <button type="button" class="primary" onClick={() => setStoring(true)}>
            Store a file
          </button>
        )}
        actions={({ key }, { refresh }) => (
          <>
            <button type="button" aria-label={`Download ${key}`} onClick={() => void save(key)}>
              Download
            </button>{" "}
            <Confirm
              label="Delete"
              about={key}
              question="The file cannot be recovered."
              act={() => daemon().files.delete(key)}
              done={refresh}
            />
          </>
        )}
        empty="There are no stored files. Sessions publish them, and you can store one here."
      />
      {storing && (
        <Store close={() => setStoring(false)} done={() => setTurn((one) => one + 1)} />
      )}
    </>
  );
}

function Store({ close, done }: { close: () => void; done: () => void }): VNode {
  const picker = useRef<HTMLInputElement>(null);
  const store = async (fields: Fields): Promise<void> => {
    const file = picker.current?.files?.[0];
    if (file === undefined) {
      throw new Error("Choose a file first.");
    }
    await daemon().files.put(file, {
      key: fields.text("key") ?? file.name,
      contentType: file.type || undefined,
      ttlSeconds: fields.number("ttl"),
      overwrite: fields.all("overwrite").length > 0,
    });
    done();
  };
  return (
    <FormDialog title="Store a file" label="Store" send={store} close={close}>
      <Field name="file" label="File">
        <input id="field-file" ref={picker} type="file" required />
      </Field>
      <Field name="key" label="Key" placeholder="the name of the file" />
      <Field
        name="ttl"
        label="Keep it for (seconds)"
        type="number"
        min="1"
        placeholder="until it is deleted"
      />
      <label class="tick">
        <input type="checkbox" name="overwrite" value="yes" /> Replace a file with this key
      </label>
    </FormDialog>
  );
}
