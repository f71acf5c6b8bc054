/**
 * The wire of the client: `fetch`.
 *
 * Contract
 * --------
 * - A connection that cannot be had is a `NoReply` with `sent` false, any that is lost later one with `sent` true: what
 *   was sent may have run.  A browser tells nothing of either; there it is always true.
 * - Whoever is ended leaves no connection with a request on it: it is closed, and the server withdraws the item.
 * - An answer has at most as many bytes as its request says, and one that is no success `LARGEST_PAGE_BYTES`; the
 *   connection of a larger one is closed.
 */

import type { Bytes } from "./bodies.js";
import { untilAborted } from "./interruption.js";
import type { Fetch } from "./options.js";
import type { NoReply, Reply } from "./replies.js";

/** Most bytes of an answer that is no result: of an error, a page of the server, a job. */
export const LARGEST_PAGE_BYTES = 2 ** 20;
/** What Node calls while it makes a connection. */
const CONNECTING = new Set<unknown>(["connect", "getaddrinfo"]);
/** Codes of undici and of TLS for a connection that could not be made. */
const NEVER_CONNECTED = /^(UND_ERR_CONNECT_TIMEOUT|ERR_TLS_.*|ERR_SSL_.*|.*CERT.*|UNABLE_TO_.*)$/;

/** One try, as it is sent. */
export interface OutgoingRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Bytes | undefined;
  /** Most bytes of a success. */
  readonly largest: number;
}

/** The answer, once it is here as a whole; rejects with the reason of `signal`. */
export async function exchange(fetch: Fetch, request: OutgoingRequest, signal: AbortSignal): Promise<Reply | NoReply> {
  const { method, url, headers, body = null } = request;
  let response: Response;
  try {
    // Nothing is sent elsewhere than to this server: an answer that leads elsewhere is no result.
    const init: RequestInit = { method, headers: { ...headers }, body, signal, redirect: "manual" };
    response = await untilAborted(fetch(url, init), signal);
  } catch (error) {
    signal.throwIfAborted();
    const sent = !neverConnected(error);
    const what = sent ? "connection lost before the response" : "cannot connect to the server";
    return { kind: "no reply", sent, detail: `${what}: ${words(error)}`, cause: error };
  }
  const most = response.ok ? request.largest : LARGEST_PAGE_BYTES;
  let read: Uint8Array | undefined;
  try {
    read = await untilAborted(readBody(response, most), signal);
  } catch (error) {
    signal.throwIfAborted();
    const detail = `connection lost within the response: ${words(error)}`;
    return { kind: "no reply", sent: true, detail, cause: error };
  }
  if (read === undefined) {
    return { kind: "no reply", sent: true, detail: `the response has more than ${most} bytes` };
  }
  return { kind: "reply", status: response.status, headers: new Map(response.headers), body: read };
}

/** The body; undefined where it has more than `most` bytes. */
async function readBody(response: Response, most: number): Promise<Uint8Array | undefined> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = response.body?.getReader();
  for (let piece = await reader?.read(); piece?.value !== undefined; piece = await reader?.read()) {
    size += piece.value.length;
    if (size > most) {
      void reader?.cancel().catch(() => undefined); // it is of no use any more
      return undefined;
    }
    pieces.push(piece.value);
  }
  const [first] = pieces;
  if (first !== undefined && pieces.length === 1) {
    return first;
  }
  const whole = new Uint8Array(size);
  let place = 0;
  for (const piece of pieces) {
    whole.set(piece, place);
    place += piece.length;
  }
  return whole;
}

/** Whether an error of `fetch` says that there was no connection.  Node tells by the `cause` or the error itself. */
function neverConnected(error: unknown): boolean {
  if (typeof error !== "object" || error === null) {
    return false;
  }
  const { cause, code, syscall, errors } = error as Partial<Record<"cause" | "code" | "syscall" | "errors", unknown>>;
  if (CONNECTING.has(syscall) || (typeof code === "string" && NEVER_CONNECTED.test(code))) {
    return true;
  }
  // A name with several addresses has an error for each.
  return Array.isArray(errors) && errors.length > 0 ? errors.every(neverConnected) : neverConnected(cause);
}

function words(error: unknown): string {
  if (!(error instanceof Error)) {
    return String(error);
  }
  return error.cause instanceof Error ? words(error.cause) : error.message || error.name;
}
