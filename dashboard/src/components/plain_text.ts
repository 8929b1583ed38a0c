/** Output of a command without the codes for colours and the cursor. */

// CSI, OSC and the other sequences of ECMA-48, and single control characters but tab and newline.
const CODES =
  // eslint-disable-next-line no-control-regex
  /\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f]/g;

export function plainText(output: string): string {
  return output.replaceAll("\r\n", "\n").replace(CODES, "");
}
