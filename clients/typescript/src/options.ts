/** The options of a client and of its calls, checked when they are given. */

import { ConfigError } from "./errors.js";

/** How a try is sent: the `fetch` of Node and of browsers, or one like it. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** What writes and reads MessagePack, such as the packages `@msgpack/msgpack` and `msgpackr`. */
export interface MessagePackCodec {
  encode(value: unknown): Uint8Array;
  decode(bytes: Uint8Array): unknown;
}

/** How a client behaves. */
export interface ClientOptions {
  /** The key that is sent with every request. */
  readonly apiKey?: string | undefined;
  /** Milliseconds for a call, every wait and every try included; Infinity is no limit.  30 000 without it. */
  readonly timeoutMs?: number | undefined;
  /** Most further tries of a request; 0 is none.  4 without it. */
  readonly maxRetries?: number | undefined;
  /** Most requests in flight, however well it goes.  64 without it. */
  readonly maxConcurrency?: number | undefined;
  /** Most bytes of a result; the connection of a larger one is closed.  2 ** 30 without it. */
  readonly maxResult?: number | undefined;
  /** The header that names the tenant, as the server's option of this name has it. */
  readonly tenantHeader?: string | undefined;
  /** Whether to try again what may have run: the model may run twice then. */
  readonly retryNonIdempotent?: boolean | undefined;
  /** What carries requests; without it the global `fetch`. */
  readonly fetch?: Fetch | undefined;
  /** The format of items that are not bytes: `"json"`, or MessagePack by a codec that is handed in. */
  readonly format?: "json" | MessagePackCodec | undefined;
}

/** What one call asks for itself. */
export interface CallOptions {
  /** Which service, where the server has several. */
  readonly service?: string | undefined;
  /** How soon it is to be served, from 0, first, to 7, last.  3 without it. */
  readonly urgency?: number | undefined;
  /** On whose behalf; needs the client's `tenantHeader`. */
  readonly tenant?: string | undefined;
  /** Milliseconds, every wait and every try included; without it the client's own. */
  readonly timeoutMs?: number | undefined;
  /** What to look for in the server's log; without it one is made. */
  readonly requestId?: string | undefined;
  /** Ends the call, and closes its connection, so that the server withdraws the item. */
  readonly signal?: AbortSignal | undefined;
}

/** The options of a client with what it has without them; times are in seconds. */
export interface Settings {
  readonly base: string;
  readonly apiKey: string | undefined;
  readonly timeout: number;
  readonly maxRetries: number;
  readonly maxConcurrency: number;
  readonly maxResult: number;
  readonly tenantHeader: string | undefined;
  readonly retryNonIdempotent: boolean;
  readonly codec: MessagePackCodec | undefined;
}

/** The options of a call with what it has without them; times are in seconds. */
export interface CallTerms {
  readonly service: string;
  readonly urgency: number;
  readonly tenant: string;
  readonly timeout: number;
  readonly requestId: string | undefined;
}

/** The names of options: a table that lacks one, or has one more, does not compile. */
export type Names<Options> = Readonly<Record<keyof Options, true>>;

const CLIENT_NAMES: Names<ClientOptions> = {
  apiKey: true,
  timeoutMs: true,
  maxRetries: true,
  maxConcurrency: true,
  maxResult: true,
  tenantHeader: true,
  retryNonIdempotent: true,
  fetch: true,
  format: true,
};
export const CALL_NAMES: Names<CallOptions> = {
  service: true,
  urgency: true,
  tenant: true,
  timeoutMs: true,
  requestId: true,
  signal: true,
};

export const USUAL_URGENCY = 3;
const WORST_URGENCY = 7;
const SERVICE_NAME = /^[A-Za-z0-9._-]+$/;
const TENANT_NAME = /^[A-Za-z0-9._-]{1,64}$/;
/** The server takes 128 characters; the parts of a call of many items have a number behind. */
const REQUEST_ID = /^[A-Za-z0-9._-]{1,120}$/;
const FIELD_NAME = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/;
const PRINTABLE = /^[ -~]*$/;

/** Check the options of a client.  Throws `ConfigError`. */
export function readSettings(url: string | URL, options: ClientOptions): Settings {
  checkNames(options, CLIENT_NAMES);
  const { apiKey, maxRetries = 4, maxConcurrency = 64, maxResult = 2 ** 30 } = options;
  const { tenantHeader, retryNonIdempotent = false, format = "json" } = options;
  checkWhole("maxRetries", maxRetries, 0);
  checkWhole("maxConcurrency", maxConcurrency, 1);
  checkWhole("maxResult", maxResult, 1);
  if (apiKey !== undefined && !matches(PRINTABLE, apiKey)) {
    throw new ConfigError("apiKey must be printable ASCII characters"); // without the value: it is secret
  }
  if (tenantHeader !== undefined && !matches(FIELD_NAME, tenantHeader)) {
    throw new ConfigError(`tenantHeader must be the name of a header, got ${show(tenantHeader)}`);
  }
  if (typeof retryNonIdempotent !== "boolean") {
    throw new ConfigError(`retryNonIdempotent must be true or false, got ${show(retryNonIdempotent)}`);
  }
  const hasBoth = typeof format === "object" && format !== null && "encode" in format && "decode" in format;
  if (format !== "json" && !hasBoth) {
    throw new ConfigError(`format must be "json", or an object with encode and decode, got ${show(format)}`);
  }
  return {
    base: readBase(url),
    apiKey,
    timeout: readTimeout(options.timeoutMs ?? 30_000),
    maxRetries,
    maxConcurrency,
    maxResult,
    tenantHeader: tenantHeader?.toLowerCase(),
    retryNonIdempotent,
    codec: format === "json" ? undefined : format,
  };
}

/** Check the options of a call, the names of which were checked.  Throws `ConfigError`. */
export function readTerms(options: CallOptions, settings: Settings): CallTerms {
  const { service = "", urgency = USUAL_URGENCY, tenant = "", requestId } = options;
  if (service !== "" && (!matches(SERVICE_NAME, service) || service === "." || service === "..")) {
    throw new ConfigError(`the name of a service must be letters, digits and ._-, and not . or .., got ${show(service)}`);
  }
  if (!Number.isInteger(urgency) || urgency < 0 || urgency > WORST_URGENCY) {
    throw new ConfigError(`urgency must be a whole number from 0 (first) to 7 (last), got ${show(urgency)}`);
  }
  if (tenant !== "" && !matches(TENANT_NAME, tenant)) {
    throw new ConfigError(`the name of a tenant must be 1 to 64 letters, digits and ._-, got ${show(tenant)}`);
  }
  if (tenant !== "" && settings.tenantHeader === undefined) {
    throw new ConfigError("a tenant needs tenantHeader, the name of the header that the server reads tenants from");
  }
  if (requestId !== undefined && !matches(REQUEST_ID, requestId)) {
    throw new ConfigError(`requestId must be 1 to 120 of A-Z a-z 0-9 . _ -, got ${show(requestId)}`);
  }
  const timeout = options.timeoutMs === undefined ? settings.timeout : readTimeout(options.timeoutMs);
  return { service, urgency, tenant, timeout, requestId };
}

/** Throw `ConfigError` where `options` has one of another name: programs without types may hand in anything. */
export function checkNames(options: object, names: Readonly<Record<string, true>>): void {
  if (typeof options !== "object" || options === null) {
    throw new ConfigError(`options must be an object, got ${show(options)}`);
  }
  const unknown = Object.keys(options).find((name) => !Object.hasOwn(names, name));
  if (unknown !== undefined) {
    throw new ConfigError(`unknown option ${show(unknown)}; the options are ${Object.keys(names).join(", ")}`);
  }
}

/** Throw `ConfigError` where `value` is no whole number of at least `least`. */
export function checkWhole(name: string, value: unknown, least: number): void {
  if (!Number.isInteger(value) || (value as number) < least) {
    throw new ConfigError(`${name} must be a whole number of at least ${least}, got ${show(value)}`);
  }
}

/** Whether `value` is a text of this form; programs without types may hand in anything. */
function matches(form: RegExp, value: unknown): boolean {
  return typeof value === "string" && form.test(value);
}

/** A value for a message. */
export function show(value: unknown): string {
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

/** What every path is put behind, without a slash at its end. */
function readBase(url: string | URL): string {
  const text = String(url);
  let parts: URL;
  try {
    parts = new URL(text);
  } catch {
    throw new ConfigError(`the server must be a URL such as http://127.0.0.1:8000, got ${show(text)}`);
  }
  if (parts.protocol !== "http:" && parts.protocol !== "https:") {
    throw new ConfigError(`the server must be http:// or https:// and its address, got ${show(text)}`);
  }
  if (parts.search || parts.hash || parts.username || parts.password) {
    throw new ConfigError("the URL of a server must not have a query, a fragment or a user; pass a key as apiKey");
  }
  return (parts.origin + parts.pathname).replace(/\/+$/, "");
}

function readTimeout(milliseconds: unknown): number {
  if (typeof milliseconds !== "number" || !(milliseconds > 0)) {
    throw new ConfigError(`timeoutMs must be more than 0 milliseconds, or Infinity, got ${show(milliseconds)}`);
  }
  return milliseconds / 1000;
}
