/** Failing responses as the errors they were in the daemon. */

import { SandkastenError } from "./errors.js";
import {
  BackendUnavailable,
  Conflict,
  ERROR_CLASSES,
  InternalError,
  InvalidRequest,
  NotFound,
  PayloadTooLarge,
  PolicyDenied,
  QuotaExceeded,
  SessionExpired,
  Unauthorized,
} from "./generated/error_classes.js";
import { isRecord, type Json } from "./json.js";

const BY_STATUS: ReadonlyMap<number, typeof SandkastenError> = new Map<
  number,
  typeof SandkastenError
>([
  [401, Unauthorized],
  [403, PolicyDenied],
  [404, NotFound],
  [409, Conflict],
  [410, SessionExpired],
  [413, PayloadTooLarge],
  [429, QuotaExceeded],
  [502, BackendUnavailable],
  [503, BackendUnavailable],
  [504, BackendUnavailable],
  [507, QuotaExceeded],
]);
const RAW_KEY_HINT = "send Authorization:";
// More of a foreign error page than this is useless.
const SHOWN = 200;

/** Return the error of a failing response; a body that is not ours (a proxy's) is quoted. */
export function responseError(status: number, text: string, requestId?: string): SandkastenError {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  if (!isRecord(body) || typeof (body["code"] ?? body["error_code"]) !== "string") {
    const kind = kindOf(status);
    return new kind(
      `the server answered with status ${status} without an error of Sandkasten: ` +
        JSON.stringify(text.slice(0, SHOWN).trim()),
      {
        hint: "check that this is the URL of a Sandkasten daemon and not of a proxy",
        status,
        requestId,
      },
    );
  }
  return bodyError(body, status);
}

/** Return the error of an error body, as responses, streams and terminals have it. */
export function bodyError(body: Json, status?: number): SandkastenError {
  const found = body["code"] ?? body["error_code"];
  const code = typeof found === "string" ? found : undefined;
  const known = code === undefined ? undefined : ERROR_CLASSES.get(code);
  const kind = known ?? kindOf(status ?? 500);
  let hint = typeof body["hint"] === "string" ? body["hint"] : "";
  if (kind === Unauthorized && hint.startsWith(RAW_KEY_HINT)) {
    // That is for programs that speak HTTP themselves.
    hint = "pass a key of this daemon as apiKey";
  }
  const requestId = body["request_id"];
  return new kind(String(body["message"] ?? body["error"] ?? "the daemon gave no reason"), {
    hint,
    details: isRecord(body["details"]) ? body["details"] : {},
    status,
    requestId: typeof requestId === "string" ? requestId : undefined,
    retryable: typeof body["retryable"] === "boolean" ? body["retryable"] : undefined,
    code,
  });
}

function kindOf(status: number): typeof SandkastenError {
  const known = BY_STATUS.get(status);
  if (known !== undefined) {
    return known;
  }
  return status >= 300 && status < 500 ? InvalidRequest : InternalError;
}
