/** As much of MessagePack as the tests need: small whole numbers, short texts, short lists and objects. */

import type { MessagePackCodec } from "../src/options.js";

export const messagePack: MessagePackCodec = {
  encode: (value) => Uint8Array.from(write(value)),
  decode(bytes) {
    const reading = { bytes, place: 0 };
    const value = read(reading);
    if (reading.place !== bytes.length) {
      throw new Error("there are bytes behind the value");
    }
    return value;
  },
};

function write(value: unknown): number[] {
  if (typeof value === "number" && Number.isInteger(value) && value >= 0 && value < 128) {
    return [value];
  }
  if (typeof value === "number") {
    return [0xcb, ...new Uint8Array(new Float64Array([value]).buffer).reverse()];
  }
  if (typeof value === "string") {
    const text = new TextEncoder().encode(value);
    return [0xa0 | text.length, ...text];
  }
  if (value instanceof Uint8Array) {
    return [0xc4, value.length, ...value];
  }
  if (Array.isArray(value)) {
    return [0x90 | value.length, ...value.flatMap(write)];
  }
  if (typeof value === "object" && value !== null) {
    const members = Object.entries(value);
    return [0x80 | members.length, ...members.flatMap(([name, member]) => [...write(name), ...write(member)])];
  }
  throw new TypeError(`not written here: ${String(value)}`);
}

interface Reading {
  readonly bytes: Uint8Array;
  place: number;
}

function take(reading: Reading, count: number): Uint8Array {
  reading.place += count;
  return reading.bytes.slice(reading.place - count, reading.place);
}

function read(reading: Reading): unknown {
  const [first = 0xc1] = take(reading, 1);
  const many = <T>(count: number, one: () => T): T[] => Array.from({ length: count }, one);
  if (first < 0x80) {
    return first;
  }
  if (first < 0x90) {
    return Object.fromEntries(many(first & 0x0f, () => [read(reading) as string, read(reading)]));
  }
  if (first < 0xa0) {
    return many(first & 0x0f, () => read(reading));
  }
  if (first < 0xc0) {
    return new TextDecoder().decode(take(reading, first & 0x1f));
  }
  switch (first) {
    case 0xc0:
      return null;
    case 0xc4:
      return take(reading, take(reading, 1)[0] ?? 0);
    case 0xcb:
      return new DataView(take(reading, 8).buffer).getFloat64(0);
    case 0xd9:
      return new TextDecoder().decode(take(reading, take(reading, 1)[0] ?? 0));
    default:
      throw new TypeError(`not read here: ${first}`);
  }
}
