/** Client of the Sandkasten daemon. */

export { SandboxClient } from "./client.js";
export type { AuditOptions, ListOptions, OneShotOptions, SessionOptions } from "./client.js";
export { Session } from "./session.js";
export type { SessionRunOptions } from "./session.js";
export { SessionReplay } from "./replay.js";
export { CommandFailed, ExecResult, ExecStream, Process } from "./commands.js";
export type {
  CallOptions,
  Command,
  ExecOptions,
  Output,
  Signal,
  StartOptions,
} from "./commands.js";
export { FileBytes, FileTree } from "./files.js";
export type { Change, FileOptions, FilePath, ReadOptions, WriteOptions } from "./files.js";
export { PortConnection, Terminal } from "./terminal.js";
export type { TerminalOptions } from "./terminal.js";
export { Contexts } from "./code.js";
export type { CodeOptions, ContextOptions } from "./code.js";
export { Agents, RunEvents } from "./agents.js";
export type { AgentOptions, RunKind, RunOptions, RunsOptions } from "./agents.js";
export { Images, Keys, Secrets, Snapshots, StoredFiles, Workspaces } from "./stores.js";
export type { PutOptions } from "./stores.js";
export type { ConnectionOptions, Data } from "./connection.js";
export { SandkastenError } from "./errors.js";
export type { ErrorOptions } from "./errors.js";
export * from "./generated/error_classes.js";
export type * from "./generated/schema.js";
