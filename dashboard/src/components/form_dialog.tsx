/** A dialog with a form: it sends what was entered, and shows why that failed. */

import type { ComponentChildren, TargetedEvent, VNode } from "preact";
import { useState } from "preact/hooks";
import { Dialog } from "./dialog.js";
import { Failure } from "./failure.js";

/** The fields of a form, trimmed; an empty one is undefined. */
export class Fields {
  constructor(private readonly data: FormData) {}

  text(name: string): string | undefined {
    const found = this.data.get(name);
    return typeof found === "string" && found.trim() !== "" ? found.trim() : undefined;
  }

  number(name: string): number | undefined {
    const found = this.text(name);
    return found === undefined ? undefined : Number(found);
  }

  /** The names of the ticked boxes. */
  all(name: string): string[] {
    return this.data.getAll(name).map(String);
  }
}

interface FormDialogProps {
  title: string;
  /** The text of the button that sends it. */
  label: string;
  /** What it does; the dialog is closed afterwards. */
  send: (fields: Fields) => Promise<unknown>;
  close: () => void;
  closeLabel?: string;
  children: ComponentChildren;
}

export function FormDialog({
  title,
  label,
  send,
  close,
  closeLabel = "Cancel",
  children,
}: FormDialogProps): VNode {
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const submit = async (event: TargetedEvent<HTMLFormElement>): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await send(new Fields(new FormData(event.currentTarget)));
      close();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} close={close}>
      <form class="form" onSubmit={submit}>
        {children}
        {error !== undefined && <Failure error={error} />}
        <div class="buttons">
          <button type="button" onClick={close}>
            {closeLabel}
          </button>
          <button type="submit" class="primary" disabled={busy}>
            {label}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface FieldProps {
  name: string;
  label: string;
  hint?: string | undefined;
  children?: ComponentChildren;
}

/** A label with its field; without children a line of text. */
export function Field({
  name,
  label,
  hint,
  children,
  ...more
}: FieldProps & preact.InputHTMLAttributes): VNode {
  return (
    <div>
      <label for={`field-${name}`}>{label}</label>
      {children ?? <input id={`field-${name}`} name={name} spellcheck={false} {...more} />}
      {hint !== undefined && <p class="hint under">{hint}</p>}
    </div>
  );
}
