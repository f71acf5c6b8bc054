/** What items become, and what answers stand for. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { formatOf, joinItems, readResult, UnreadableBody, writeItem, writeItemOfBatch } from "../src/bodies.js";
import { InvalidItem } from "../src/errors.js";
import { readHttpDate } from "../src/http-date.js";
import { messagePack } from "./message-pack.js";

function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

describe("items", () => {
  const big = Uint8Array.from({ length: 100_000 }, (_, place) => place % 251);
  const items: [what: string, item: unknown, written: string][] = [
    ["an object", { x: [1, "ü", null, true], left: undefined }, '{"x":[1,"ü",null,true]}'],
    ["a date", new Date(0), '"1970-01-01T00:00:00.000Z"'],
    ["bytes inside", { b: new Uint8Array([0, 255]) }, '{"b":"AP8="}'],
    ["an array buffer inside", [new Uint8Array([1]).buffer], '["AQ=="]'],
    ["a buffer of Node inside", [Buffer.from("ab")], '["YWI="]'],
    ["many bytes inside", [big], `["${Buffer.from(big).toString("base64")}"]`],
    ["a view of a part", [big.subarray(1, 3)], '["AQI="]'],
    ["a typed array", new Float32Array([1, 0.5]), "[1,0.5]"],
    ["a typed array inside", { x: new Int16Array([-1]) }, '{"x":[-1]}'],
  ];
  for (const [what, item, written] of items) {
    test(`${what} is written as JSON`, () => {
      const body = writeItem(item, undefined);
      assert.deepEqual([text(body.bytes), body.contentType], [written, "application/json"]);
    });
  }

  const loop: unknown[] = [];
  loop.push(loop);
  const numbers = [NaN, -Infinity, [NaN], new Float64Array([Infinity]), 10n, new BigInt64Array(1)];
  const others = [undefined, Symbol("x"), () => 1, { x: () => 1 }, loop, [new Map([[1, 2]])], new Set([1])];
  for (const item of [...numbers, ...others]) {
    test(`JSON cannot say ${typeof item === "symbol" ? "a symbol" : Object.prototype.toString.call(item)}`, () => {
      assert.throws(() => writeItem(item, undefined), InvalidItem);
    });
  }

  test("bytes are sent as they are, whatever the codec", () => {
    for (const codec of [undefined, messagePack]) {
      const whole = new Uint8Array([1, 2]);
      for (const item of [whole, whole.buffer, Buffer.from([1, 2]), new Uint8Array([0, 1, 2]).subarray(1)]) {
        const body = writeItem(item, codec);
        assert.deepEqual([[...body.bytes], body.contentType], [[1, 2], "application/octet-stream"]);
      }
    }
    assert.deepEqual([...writeItem(new Uint8Array(new SharedArrayBuffer(1)), undefined).bytes], [0]);
  });

  test("a client batch is a list", () => {
    const items = [1, "a", new Uint8Array([1])].map((item) => writeItemOfBatch(item, undefined));
    assert.equal(text(joinItems(items, undefined).bytes), '[1,"a","AQ=="]');
    const written = [1, "a", new Uint8Array([1]).buffer].map((item) => writeItemOfBatch(item, messagePack));
    const packed = joinItems(written, messagePack);
    assert.deepEqual([...packed.bytes], [0xdd, 0, 0, 0, 3, 1, 0xa1, 0x61, 0xc4, 1, 1]);
    assert.equal(packed.contentType, "application/msgpack");
  });

  test("what the codec cannot write is an InvalidItem", () => {
    assert.throws(() => writeItem(null, messagePack), InvalidItem);
  });
});

describe("answers", () => {
  const types: [contentType: string, format: string | undefined][] = [
    ["", undefined],
    ["application/json", "json"],
    ["Application/JSON; charset=UTF-8", "json"],
    ['application/json;charset="utf8"', "json"],
    ["application/json; charset=latin-1", undefined],
    ["application/x-msgpack", "msgpack"],
    ["application/octet-stream", "bytes"],
    ["text/html", undefined],
  ];
  for (const [contentType, format] of types) {
    test(`${JSON.stringify(contentType)} is ${format}`, () => assert.equal(formatOf(contentType), format));
  }

  test("a body that is not what it says cannot be read", () => {
    const wrong: [body: number[], contentType: string][] = [
      [[0x7b], "application/json"],
      [[], "application/json"],
      [[0x22, 0xff, 0x22], "application/json"],
      [[0xc1], "application/msgpack"],
      [[1, 1], "application/msgpack"],
      [[1], "text/html"],
    ];
    for (const [body, contentType] of wrong) {
      assert.throws(() => readResult(new Uint8Array(body), contentType, messagePack), UnreadableBody);
    }
    assert.throws(() => readResult(new Uint8Array([1]), "application/msgpack", undefined), /no codec/);
  });

  test("a type that is not known is bytes where that is asked for", () => {
    assert.deepEqual(readResult(new Uint8Array([1]), "audio/wav", undefined, true), new Uint8Array([1]));
    assert.deepEqual(readResult(new Uint8Array([0x31]), "application/json", undefined, true), 1);
  });
});

test("a date is one of the three forms of RFC 9110, and nothing else", () => {
  const moment = Date.UTC(1994, 10, 6, 8, 49, 37) / 1000;
  for (const date of ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]) {
    assert.equal(readHttpDate(date), moment);
  }
  assert.equal(readHttpDate("Mon, 06-Nov-23 08:49:37 GMT"), Date.UTC(2023, 10, 6, 8, 49, 37) / 1000);
  const wrong = ["06 Now 1994 08:49:37 GMT", "32 Nov 1994 08:49:37 GMT", "06 Nov 1994 24:49:37 GMT"];
  const others = ["", "-5", "soon", "2023-11-14", "Sun, 06 Nov 1994 08:49:37 PST"];
  for (const date of [...others, ...wrong.map((rest) => `Sun, ${rest}`)]) {
    assert.equal(readHttpDate(date), undefined, date);
  }
});
