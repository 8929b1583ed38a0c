/** Dialogs and buttons that ask before they act. */

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure } from "./failure.js";

interface DialogProps {
  title: string;
  close: () => void;
  children: ComponentChildren;
}

/** A modal dialog; Escape closes it. */
export function Dialog({ title, close, children }: DialogProps): VNode {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    element.current?.showModal();
  }, []);
  return (
    <dialog ref={element} aria-label={title} onClose={close}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

interface ConfirmProps {
  /** The text of the button. */
  label: string;
  /** What it acts on, for screen readers and the question. */
  about: string;
  question: string;
  act: () => Promise<unknown>;
  /** Called after success. */
  done?: () => void;
}

/** A button that asks before it acts, and shows an error if the act fails. */
export function Confirm({ label, about, question, act, done }: ConfirmProps): VNode {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const close = (): void => {
    setOpen(false);
    setError(undefined);
  };
  const run = async (): Promise<void> => {
    setBusy(true);
    try {
      await act();
      close();
      done?.();
    } catch (problem) {
      setError(problem);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" class="danger" aria-label={`${label} ${about}`} onClick={() => setOpen(true)}>
        {label}
      </button>
      {open && (
        <Dialog title={`${label} ${about}`} close={close}>
          <p>{question}</p>
          {error !== undefined && <Failure error={error} />}
          <div class="buttons">
            <button type="button" onClick={close}>
              Cancel
            </button>
            <button type="button" class="danger" disabled={busy} onClick={run}>
              {label}
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}
