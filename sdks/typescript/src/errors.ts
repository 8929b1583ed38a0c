/** The base class of every failure that is raised on purpose; `generated/error_classes` has the rest. */

/** What an error carries beside its message. */
export interface ErrorOptions {
  hint?: string;
  details?: Record<string, unknown>;
  /** The HTTP status of the response; absent if there was none. */
  status?: number | undefined;
  /** The id of the failed request in the log of the daemon. */
  requestId?: string | undefined;
  retryable?: boolean | undefined;
  cause?: unknown;
  /** A code that this version of the client has no class for. */
  code?: string | undefined;
}

/** A failure with a stable code. A command that ran and failed is a result, not an error. */
export class SandkastenError extends Error {
  static readonly code: string = "INTERNAL_ERROR";
  static readonly isRetryable: boolean = false;

  readonly code: string;
  /** What to do about it. */
  readonly hint: string;
  /** Whether the same request may succeed later. */
  readonly retryable: boolean;
  readonly details: Record<string, unknown>;
  readonly status: number | undefined;
  readonly requestId: string | undefined;

  constructor(message: string, options: ErrorOptions = {}) {
    super(message, "cause" in options ? { cause: options.cause } : undefined);
    const kind = new.target;
    this.name = kind.name;
    this.code = options.code ?? kind.code;
    this.hint = options.hint ?? "";
    this.retryable = options.retryable ?? kind.isRetryable;
    this.details = options.details ?? {};
    this.status = options.status;
    this.requestId = options.requestId;
  }

  override toString(): string {
    return `${this.name}: ${this.message}${this.hint === "" ? "" : `\nhint: ${this.hint}`}`;
  }
}
