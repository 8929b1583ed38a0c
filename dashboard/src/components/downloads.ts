/** Files that the browser saves. */

/** Save bytes as a file; the browser removes what must not be in a file name. */
export function saveAs(content: Blob, name: string): void {
  // As octets, so that no browser shows HTML or SVG of a sandbox in this origin.
  const address = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
