/** The past of a session: its commands, and what is recorded or kept of their output. */

import { type CallOptions, type Output, Process } from "./commands.js";
import { type Connection, lost, pieces, sessionPath } from "./connection.js";
import { Commands } from "./exec_requests.js";
import { PayloadTooLarge } from "./generated/error_classes.js";
import type { ExecPast, RecordingEntry } from "./generated/schema.js";
import { decoded, decodedList } from "./json.js";

const MOST_COMMANDS = 1000;
// A daemon bounds its recordings; this bounds what another server sends.
const MAX_RECORDING = 256 << 20;
const STALL_MS = 60_000;

/** What a session did, also after its end, as far back as the daemon remembers. */
export class SessionReplay {
  /** Made by `replay` of a client. */
  constructor(
    private readonly connection: Connection,
    readonly id: string,
  ) {}

  /** Return the newest 1,000 commands, or `limit`, oldest first. */
  async commands(options: CallOptions & { limit?: number | undefined } = {}): Promise<ExecPast[]> {
    const query = { limit: options.limit ?? MOST_COMMANDS };
    const found = decodedList("ExecPast", await this.question("execs", options, query));
    return found.sort((a, b) => a.startedAt - b.startedAt);
  }

  /** Return the recordings, oldest first. Without `recording.enabled` there are none. */
  async recordings(options: CallOptions = {}): Promise<RecordingEntry[]> {
    return decoded("RecordingList", await this.question("recordings", options)).recordings;
  }

  /** Return a recording as asciicast v2; FileNotFound if there is none. */
  async recording(execId: string, options: CallOptions = {}): Promise<string> {
    const path = this.path(`recordings/${encodeURIComponent(execId)}`);
    const { signal } = options;
    const response = await this.connection.stream({ method: "GET", path, repeatable: true, signal });
    const decoder = new TextDecoder();
    let [text, length] = ["", 0];
    try {
      for await (const piece of pieces(response, STALL_MS, signal)) {
        length += piece.length;
        if (length > MAX_RECORDING) {
          throw new PayloadTooLarge(`the recording of ${execId} has more than ${MAX_RECORDING} bytes`, {
            hint: `download it with another client: GET ${path}`,
          });
        }
        text += decoder.decode(piece, { stream: true });
      }
    } catch (error) {
      throw lost(this.connection, "a recording was read", error);
    }
    return text + decoder.decode();
  }

  /** Return the output that the sandbox itself keeps of a command, while it lives. */
  output(execId: string, options: CallOptions = {}): Promise<Output[]> {
    return new Process(new Commands(this.connection, this.id), execId).output(options);
  }

  private question(
    verb: string,
    options: CallOptions,
    query?: Record<string, number>,
  ): Promise<unknown> {
    const { signal } = options;
    return this.connection.ask({ method: "GET", path: this.path(verb), query, repeatable: true, signal });
  }

  private path(verb: string): string {
    return sessionPath(this.id, verb);
  }
}
