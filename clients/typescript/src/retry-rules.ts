/**
 * Decide whether a request is sent again, and how long to wait before.  It is told the time and the chance.
 *
 * Contract
 * --------
 * - `x-should-retry` decides where it stands.  Else 429, 503, 408 and a connection that never was are tried again.
 * - Where a second run does no harm, so are a connection lost after the request was sent, 500, 502 and 504, whatever
 *   that header says.
 * - The wait is what the server says, and up to a tenth more, so that those who were told the same do not come at once.
 *   Where it says nothing, or more than `LONGEST_TOLD_SECONDS`, it doubles from `FIRST_PAUSE_SECONDS` up to
 *   `LONGEST_PAUSE_SECONDS`, less up to a quarter.
 */

import type { Problem } from "./errors.js";
import { readHttpDate } from "./http-date.js";
import type { NoReply, Reply } from "./replies.js";

/** Whether to try again: the server asks for it; it is the client's own idea, for which there is a budget; or never. */
export type Retry = "asked" | "unasked" | "never";

export const LONGEST_TOLD_SECONDS = 60;
export const FIRST_PAUSE_SECONDS = 0.5;
export const LONGEST_PAUSE_SECONDS = 8;
const RETRIED = new Set([408, 429, 503]);
const RETRIED_IF_HARMLESS = new Set<unknown>([500, 502, 504]);
const LARGEST_TOLD = 1e15;
/** A number of seconds or milliseconds; RFC 9110 has whole ones. */
const NUMBER = /^[0-9]{1,15}(\.[0-9]{1,15})?$/;

/** Whether to try again after `reply`; `harmless` says that a second run would do no harm. */
export function judgeReply(reply: Reply | NoReply, harmless: boolean): Retry {
  if (reply.kind === "no reply") {
    return harmless || !reply.sent ? "unasked" : "never";
  }
  if (reply.status < 400) {
    return "never";
  }
  const told = reply.headers.get("x-should-retry");
  if (told === "true") {
    return "asked";
  }
  if (harmless && RETRIED_IF_HARMLESS.has(reply.status)) {
    return "unasked";
  }
  return told !== "false" && RETRIED.has(reply.status) ? "unasked" : "never";
}

/**
 * Whether to send an item of a client batch again, whose outcome is `problem`.
 *
 * The server says when to come again exactly where the item may succeed then and was not at work.
 */
export function judgeItem(problem: Problem, harmless: boolean): Retry {
  if (itemSeconds(problem) !== undefined) {
    return "asked";
  }
  return harmless && RETRIED_IF_HARMLESS.has(problem["status"]) ? "unasked" : "never";
}

/** How long to wait before an item is sent again; undefined where the server does not say. */
export function itemSeconds(problem: Problem): number | undefined {
  for (const [name, perSecond] of [["retry_after_ms", 1000], ["retry_after", 1]] as const) {
    const told = problem[name];
    if (typeof told === "number" && told >= 0 && told <= LARGEST_TOLD) {
      return told / perSecond;
    }
  }
  return undefined;
}

/**
 * How long the server says to wait, by `retry-after-ms`, else by `Retry-After`; undefined where it does not say.
 *
 * `wall` is the moment in Unix seconds, for a `Retry-After` that is a date.
 */
export function toldSeconds(headers: ReadonlyMap<string, string>, wall: number): number | undefined {
  const milliseconds = readNumber(headers.get("retry-after-ms"));
  if (milliseconds !== undefined) {
    return milliseconds / 1000;
  }
  const told = headers.get("retry-after");
  const seconds = readNumber(told);
  if (seconds !== undefined || told === undefined) {
    return seconds;
  }
  const moment = readHttpDate(told.trim());
  return moment === undefined ? undefined : Math.max(0, moment - wall);
}

/**
 * How long to wait before the next try.
 *
 * `told` is what the server says, `tries` how many there were, at least 1, and `chance` a random number from 0 up to 1.
 */
export function pauseSeconds(told: number | undefined, tries: number, chance: number): number {
  if (told !== undefined && told <= LONGEST_TOLD_SECONDS) {
    return told * (1 + 0.1 * chance);
  }
  const doubled = FIRST_PAUSE_SECONDS * 2 ** Math.min(tries - 1, 10);
  return Math.min(LONGEST_PAUSE_SECONDS, doubled) * (0.75 + 0.25 * chance);
}

/**
 * How long a client sends nothing that is refused again though it sends one request at a time.
 *
 * It is never longer than the wait of the refused request, and at most `LONGEST_PAUSE_SECONDS`: also those wait for it
 * who have not been told anything.
 */
export function sharedPauseSeconds(told: number | undefined): number {
  return Math.min(LONGEST_PAUSE_SECONDS, pauseSeconds(told, 1, 0));
}

function readNumber(text: string | undefined): number | undefined {
  return text !== undefined && NUMBER.test(text.trim()) ? Number(text) : undefined;
}
