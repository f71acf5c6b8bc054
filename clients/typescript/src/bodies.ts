/**
 * Write items as bodies of requests, and read bodies of answers as results.
 *
 * Contract
 * --------
 * - Bytes travel as they are, and everything else as JSON or as MessagePack.
 * - In a client batch every item is JSON, or MessagePack, and is written once however often it is sent.  There bytes
 *   are base64 in JSON, as the server reads them.
 */

import { InvalidItem } from "./errors.js";
import { writeJson } from "./json.js";
import type { MessagePackCodec } from "./options.js";

export const JSON_TYPE = "application/json";
export const MESSAGE_PACK_TYPE = "application/msgpack";
export const BYTES_TYPE = "application/octet-stream";

/** `Uint8Array` over memory that `fetch` takes. */
export type Bytes = Uint8Array<ArrayBuffer>;

/** The body of a request, and what its header says of it. */
export interface Body {
  readonly bytes: Bytes;
  readonly contentType: string;
}

/** What a media type stands for; undefined where it stands for no result that is known. */
export type Format = "json" | "msgpack" | "bytes" | undefined;

/** The body is not what its media type says, or of a type that stands for no result. */
export class UnreadableBody extends Error {}

const FORMATS = new Map<string, Format>([
  [JSON_TYPE, "json"],
  [MESSAGE_PACK_TYPE, "msgpack"],
  ["application/x-msgpack", "msgpack"],
  ["application/vnd.msgpack", "msgpack"],
  [BYTES_TYPE, "bytes"],
]);
/** In MessagePack, an array whose length is in the four bytes behind. */
const ARRAY = 0xdd;
const decoder = new TextDecoder("utf-8", { fatal: true });

/** The bytes that `item` is; undefined where it is something else. */
export function bytesOf(item: unknown): Bytes | undefined {
  if (item instanceof Uint8Array) {
    return item.buffer instanceof ArrayBuffer ? (item as Bytes) : new Uint8Array(item);
  }
  return item instanceof ArrayBuffer ? new Uint8Array(item) : undefined;
}

/** The body of a request of one item.  Throws `InvalidItem`. */
export function writeItem(item: unknown, codec: MessagePackCodec | undefined): Body {
  const bytes = bytesOf(item);
  if (bytes !== undefined) {
    return { bytes, contentType: BYTES_TYPE };
  }
  return { bytes: writeItemOfBatch(item, codec), contentType: codec === undefined ? JSON_TYPE : MESSAGE_PACK_TYPE };
}

/** One item of a client batch.  Throws `InvalidItem`. */
export function writeItemOfBatch(item: unknown, codec: MessagePackCodec | undefined): Bytes {
  if (codec === undefined) {
    return writeJson(item);
  }
  try {
    const written = codec.encode(item instanceof ArrayBuffer ? new Uint8Array(item) : item);
    return new Uint8Array(written); // a copy: a codec may use its memory again
  } catch (error) {
    throw new InvalidItem(`cannot encode the item: ${String(error)}`);
  }
}

/** The body of a client batch of items that are written already. */
export function joinItems(items: readonly Bytes[], codec: MessagePackCodec | undefined): Body {
  if (codec === undefined) {
    const [open, comma, close] = ["[", ",", "]"].map((mark) => new TextEncoder().encode(mark)) as [Bytes, Bytes, Bytes];
    const parts = items.flatMap((item, place) => (place === 0 ? [item] : [comma, item]));
    return { bytes: join([open, ...parts, close]), contentType: JSON_TYPE };
  }
  const head = new DataView(new ArrayBuffer(5));
  head.setUint8(0, ARRAY);
  head.setUint32(1, items.length);
  return { bytes: join([new Uint8Array(head.buffer), ...items]), contentType: MESSAGE_PACK_TYPE };
}

/** What stands for a result in a body of this media type; undefined where that is not known, or not there. */
export function formatOf(contentType: string): Format {
  const [name = "", ...parameters] = contentType.toLowerCase().split(";").map((part) => part.trim());
  const isOtherText = parameters.some((one) => one.startsWith("charset=") && !/^charset="?utf-?8"?$/.test(one));
  return isOtherText ? undefined : FORMATS.get(name);
}

/**
 * The value that a body stands for.  Throws `UnreadableBody` where it is not what its media type says.
 *
 * With `otherwiseBytes` a media type that is not known is given as bytes, and is no error.
 */
export function readResult(
  body: Uint8Array,
  contentType: string,
  codec: MessagePackCodec | undefined,
  otherwiseBytes = false,
): unknown {
  const format = formatOf(contentType);
  if (format === "bytes" || (format === undefined && otherwiseBytes)) {
    return body;
  }
  if (format === undefined) {
    throw new UnreadableBody(`a body of type ${JSON.stringify(contentType.slice(0, 100))}`);
  }
  if (format === "msgpack" && codec === undefined) {
    throw new UnreadableBody("a MessagePack body, but the client has no codec for MessagePack");
  }
  try {
    return format === "json" ? readJson(body) : codec?.decode(body);
  } catch (error) {
    const told = format === "json" ? JSON_TYPE : MESSAGE_PACK_TYPE;
    throw new UnreadableBody(`an invalid ${told} body (${String(error)})`);
  }
}

/** The value of JSON in UTF-8; throws where it is none. */
export function readJson(body: Uint8Array): unknown {
  return JSON.parse(decoder.decode(body));
}

/** Whether `value` is an object with members. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !ArrayBuffer.isView(value);
}

function join(parts: readonly Bytes[]): Bytes {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}
