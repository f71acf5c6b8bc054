/**
 * Write values as JSON.
 *
 * Contract
 * --------
 * - What JSON cannot say is an `InvalidItem`, and not left out: a NaN, an infinity, a bigint, a function, a `Map`.
 * - Inside an item an `ArrayBuffer` or a `Uint8Array` is base64, and any other typed array is a list of its numbers.
 */

import { InvalidItem } from "./errors.js";

const encoder = new TextEncoder();
/** `String.fromCharCode` takes its characters as arguments, of which there may not be too many. */
const PIECE_BYTES = 0x8000;

/** The JSON of `value`.  Throws `InvalidItem`. */
export function writeJson(value: unknown): Uint8Array<ArrayBuffer> {
  let written: string | undefined;
  try {
    written = JSON.stringify(value, replaced);
  } catch (error) {
    throw error instanceof InvalidItem ? error : new InvalidItem(`cannot encode the item: ${String(error)}`);
  }
  if (written === undefined) {
    throw new InvalidItem(`cannot encode the item: JSON has no ${typeof value}`);
  }
  return encoder.encode(written) as Uint8Array<ArrayBuffer>;
}

/** What is written in the place of `value`.  `toJSON` of Node's `Buffer` was called before: `this[key]` is itself. */
function replaced(this: unknown, key: string, value: unknown): unknown {
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new InvalidItem("the item has a NaN or an infinity, which JSON does not support");
  }
  if (typeof value === "function" || typeof value === "symbol") {
    throw new InvalidItem(`cannot encode the item: JSON has no ${typeof value}`);
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  const given = (this as Record<string, unknown>)[key];
  if (given instanceof Map || given instanceof Set) {
    throw new InvalidItem(`cannot encode the item: JSON has no ${given.constructor.name}`);
  }
  if (given instanceof ArrayBuffer) {
    return base64(new Uint8Array(given));
  }
  if (!ArrayBuffer.isView(given)) {
    return value;
  }
  if (given instanceof Uint8Array) {
    return base64(given);
  }
  return given instanceof DataView ? value : Array.from(given as Float64Array);
}

function base64(bytes: Uint8Array): string {
  let text = "";
  for (let place = 0; place < bytes.length; place += PIECE_BYTES) {
    text += String.fromCharCode(...bytes.subarray(place, place + PIECE_BYTES));
  }
  return btoa(text);
}
