/** What a client checks before it sends anything, and what it makes of what `fetch` throws; without a server. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Client } from "../src/client.js";
import { ConfigError, ConnectionFailed } from "../src/errors.js";
import { JobNotFound } from "../src/job-errors.js";
import type { CallOptions, ClientOptions, Fetch } from "../src/options.js";

const SERVER = "http://127.0.0.1:1";

/** A client whose requests are answered by `answer`, and the bodies that were sent. */
function fake(answer: (body: string) => unknown, options: ClientOptions = {}): { c: Client; sent: string[] } {
  const sent: string[] = [];
  const fetch: Fetch = async (_, init) => {
    const body = new TextDecoder().decode(init.body as Uint8Array | undefined);
    sent.push(body);
    return Response.json(answer(body));
  };
  return { c: new Client(SERVER, { fetch, ...options }), sent };
}

describe("options", () => {
  const clients: [options: unknown, words: RegExp][] = [
    [{ timeoutMs: 0 }, /timeoutMs must be more than 0/],
    [{ timeoutMs: NaN }, /timeoutMs must be more than 0/],
    [{ timeoutMs: "3" }, /timeoutMs must be more than 0/],
    [{ maxRetries: -1 }, /maxRetries must be a whole number of at least 0, got -1/],
    [{ maxRetries: 1.5 }, /maxRetries/],
    [{ maxConcurrency: 0 }, /maxConcurrency must be a whole number of at least 1/],
    [{ timeout: 2 }, /^unknown option "timeout"; the options are apiKey, timeoutMs, maxRetries, /],
    [{ apiKeys: undefined }, /^unknown option "apiKeys"/],
    [null, /^options must be an object, got null$/],
    ["http", /^options must be an object, got "http"$/],
    [{ maxResult: 0 }, /maxResult must be a whole number of at least 1/],
    [{ apiKey: "secret\n" }, /^apiKey must be printable ASCII characters$/],
    [{ apiKey: "ü" }, /apiKey/],
    [{ apiKey: 5 }, /apiKey/],
    [{ tenantHeader: "a b" }, /tenantHeader must be the name of a header, got "a b"/],
    [{ tenantHeader: null }, /tenantHeader/],
    [{ retryNonIdempotent: 1 }, /retryNonIdempotent/],
    [{ format: "msgpack" }, /format must be "json", or an object/],
    [{ format: null }, /format/],
    [{ format: { encode: () => 1 } }, /format/],
  ];
  for (const [options, words] of clients) {
    test(`a client has no ${JSON.stringify(options)}`, () => {
      assert.throws(() => new Client(SERVER, options as ClientOptions), { name: "ConfigError", message: words });
    });
  }

  for (const url of ["", "/a", "ftp://a", "http+unix:///a.sock", "http://a?b=1", "http://a#b", "http://me:secret@a"]) {
    test(`no server is named by ${JSON.stringify(url)}`, () => {
      const isPlain = (error: unknown): boolean => error instanceof ConfigError && !error.message.includes("secret");
      assert.throws(() => new Client(url), isPlain);
    });
  }

  const calls: unknown[] = [
    { service: "a/b" }, { service: ".." }, { service: null }, { urgency: 8 }, { urgency: -1 }, { urgency: 1.5 },
    { tenant: "a b" }, { tenant: "gold" }, { tenant: null }, { timeoutMs: 0 }, { batchSize: 0 }, { batchSize: 1.5 },
    { timeout: 2 }, { returnException: true }, null, 5, { requestId: "" }, { requestId: "a b" }, { requestId: "a".repeat(121) }, { requestId: 5 },
  ];
  for (const options of calls) {
    test(`a call has no ${JSON.stringify(options)}, and nothing is sent`, async () => {
      const { c, sent } = fake(() => 1);
      await assert.rejects(c.predictMany([1], options as CallOptions), ConfigError);
      assert.deepEqual([sent, c.stats.requests], [[], 0]);
    });
  }

  test("an option that is undefined is as one that is not there", async () => {
    const { c } = fake(() => 5, { timeoutMs: undefined, apiKey: undefined, format: undefined, maxRetries: undefined });
    assert.equal(await c.predict(1, { service: undefined, signal: undefined, urgency: undefined }), 5);
  });

  const unknown: [call: string, make: (c: Client, options: never) => Promise<unknown>][] = [
    ["predict", (c, options) => c.predict(1, options)],
    ["predictMany", (c, options) => c.predictMany([1], options)],
    ["health", (c, options) => c.health(options)],
    ["jobs.submit", (c, options) => c.jobs.submit(1, options)],
    ["jobs.get", (c, options) => c.jobs.get("a", options)],
    ["jobs.wait", (c, options) => c.jobs.wait(["a"], options)],
    ["jobs.result", (c, options) => c.jobs.result("a", options)],
    ["jobs.cancel", (c, options) => c.jobs.cancel("a", options)],
  ];
  for (const [call, make] of unknown) {
    test(`${call} has no option that is called otherwise`, async () => {
      const { c, sent } = fake(() => 1);
      const told = { name: "ConfigError", message: /^unknown option "timeout"; the options are .*signal/ };
      await assert.rejects(make(c, { timeout: 2 } as never), told);
      assert.deepEqual(sent, []);
    });
  }

  test("jobs are named by ids that a path may have", async () => {
    const { c, sent } = fake(() => 1);
    await assert.rejects(c.jobs.get("a/b"), JobNotFound);
    await assert.rejects(c.jobs.get(".."), JobNotFound);
    await assert.rejects(c.jobs.get(""), ConfigError);
    await assert.rejects(c.jobs.get({} as never), ConfigError);
    await assert.rejects(c.jobs.wait("abc"), ConfigError);
    await assert.rejects(c.jobs.result("a", { timeoutMs: -1 }), ConfigError);
    await assert.rejects(c.jobs.submit({}, { contentType: "text/plain" }), ConfigError);
    await assert.rejects(c.jobs.submit({}, { contentType: "ü" }), ConfigError);
    assert.deepEqual(sent, []);
  });
});

describe("items that cannot be written", () => {
  test("without returnExceptions nothing of the call is sent", async () => {
    const { c, sent } = fake(() => 1);
    await assert.rejects(c.predictMany([1, 10n]), { name: "InvalidItem" });
    assert.deepEqual(sent, []);
  });

  test("with it only the others are", async () => {
    const { c, sent } = fake(() => ({ outcomes: [{ result: "one" }, { result: "three" }] }));
    const [one, two, three] = await c.predictMany([1, 2n, 3], { returnExceptions: true });
    assert.deepEqual([one, (two as Error).name, three], ["one", "InvalidItem", "three"]);
    assert.deepEqual(sent, ["[1,3]"]);
    assert.equal((await c.predictMany([2n], { returnExceptions: true })).length, 1);
    assert.equal(sent.length, 1);
  });
});

test("an input that lies elsewhere has no body, and the type that the caller names", async () => {
  const job = { id: "j1", state: "queued" };
  const headers: Headers[] = [];
  const fetch: Fetch = async (_, init) => {
    headers.push(new Headers(init.headers));
    assert.equal(init.body, null);
    return Response.json(job);
  };
  const c = new Client(SERVER, { fetch });
  await c.jobs.submit(undefined, { inputUrl: "s3://in/a" });
  await c.jobs.submit(undefined, { inputUrl: "s3://in/a", contentType: "audio/wav" });
  assert.deepEqual(headers.map((one) => one.get("content-type")), [null, "audio/wav"]);
});

test("an input has the type that the caller names", async () => {
  const types: unknown[] = [];
  const fetch: Fetch = async (_, init) => {
    types.push(new Headers(init.headers).get("content-type"));
    return Response.json({ id: "j1", state: "queued" });
  };
  const { jobs } = new Client(SERVER, { fetch });
  await jobs.submit(new Uint8Array(1), { contentType: "audio/wav" });
  await jobs.submit(1, { contentType: "application/json; charset=utf-8" });
  await jobs.submit(new Uint8Array(1));
  assert.deepEqual(types, ["audio/wav", "application/json; charset=utf-8", "application/octet-stream"]);
});

test("a page that is no problem is shown in one line, and only its beginning", async () => {
  const pages: [page: string, shown: string][] = [
    ["", "unexpected response (status 502, not from Penstock): an empty body"],
    ["<h1>\n  a  proxy</h1>\n", "unexpected response (status 502, not from Penstock): <h1> a proxy</h1>"],
    ["x".repeat(500), `unexpected response (status 502, not from Penstock): ${"x".repeat(300)}…`],
  ];
  for (const [page, message] of pages) {
    const fetch: Fetch = async () => new Response(page, { status: 502 });
    await assert.rejects(new Client(SERVER, { fetch }).predict(1), { name: "ServerError", message });
  }
});

describe("signals", () => {
  test("a call whose signal is aborted already sends nothing", async () => {
    const { c, sent } = fake(() => 1);
    const signal = AbortSignal.abort(new Error("never"));
    await assert.rejects(c.predict(1, { signal }), /never/);
    await assert.rejects(c.predictMany([1], { signal, returnExceptions: true }), /never/);
    await assert.rejects(c.health({ signal }), /never/);
    await assert.rejects(c.jobs.wait(["a"], { signal }), /never/);
    assert.deepEqual([sent, c.stats.requests], [[], 0]);
  });

  test("a reason that is an error of ours is thrown and not put in the place of an item", async () => {
    const controller = new AbortController();
    const fetch: Fetch = async (_, { signal }) => {
      controller.abort(new ConfigError("mine"));
      signal?.throwIfAborted();
      throw new Error("it goes on");
    };
    const call = new Client(SERVER, { fetch }).predictMany([1], { signal: controller.signal, returnExceptions: true });
    await assert.rejects(call, /mine/);
  });

  test("a fetch that does not heed its signal does not hold the call", async () => {
    const fetch: Fetch = () => new Promise(() => undefined);
    const call = new Client(SERVER, { fetch }).predict(1, { signal: AbortSignal.timeout(5) });
    await assert.rejects(call, { name: "TimeoutError" });
  });
});

describe("what fetch throws", () => {
  const refused = Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED", syscall: "connect" });
  const reset = Object.assign(new Error("read ECONNRESET"), { code: "ECONNRESET", syscall: "read" });
  const failed = (cause: unknown): Error => new TypeError("fetch failed", { cause });
  const coded = (code: string): Error => failed(Object.assign(new Error(code), { code }));
  const thrown: [what: string, error: unknown, sent: boolean][] = [
    ["a refused connection", failed(refused), false],
    ["a Unix socket that is not there", refused, false],
    ["a host with several addresses, of which none takes us", failed(new AggregateError([refused, refused])), false],
    ["a host with several addresses, of which one was lost", failed(new AggregateError([refused, reset])), true],
    ["a host that is not known", failed(Object.assign(new Error(""), { syscall: "getaddrinfo" })), false],
    ["a connection that took too long to make", coded("UND_ERR_CONNECT_TIMEOUT"), false],
    ["a certificate that is not trusted", coded("DEPTH_ZERO_SELF_SIGNED_CERT"), false],
    ["a certificate of another host", coded("ERR_TLS_CERT_ALTNAME_INVALID"), false],
    ["a connection that was reset", failed(reset), true],
    ["a connection that was closed", coded("UND_ERR_SOCKET"), true],
    ["an answer that took too long", coded("UND_ERR_HEADERS_TIMEOUT"), true],
    ["what a browser throws", new TypeError("Failed to fetch"), true],
    ["what is no error", "no", true],
  ];
  for (const [what, error, sent] of thrown) {
    test(`${what} is ${sent ? "a request that may have run" : "a request that was never sent"}`, async () => {
      const fetch = async (): Promise<Response> => {
        throw error;
      };
      await assert.rejects(new Client(SERVER, { fetch, maxRetries: 0 }).predict(1), (told) => {
        assert.ok(told instanceof ConnectionFailed);
        assert.deepEqual([told.sent, told.cause, told.status], [sent, error, null]);
        return true;
      });
    });
  }
});
