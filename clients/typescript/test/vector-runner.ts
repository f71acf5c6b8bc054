/**
 * Runs a vector with the client: what `clients/vectors/README.md` asks of a runner.
 *
 * Requests are real, over sockets, to the scripted server; time is virtual.
 */

import assert from "node:assert/strict";
import { Client } from "../src/client.js";
import type { ClientOptions, Fetch } from "../src/options.js";
import { JumpingClock } from "./jumping-clock.js";
import { messagePack } from "./message-pack.js";
import type { Json, ScriptedServer, Seen, Vector, VectorCall, VectorTry } from "./scripted-server.js";

const SAME_MOMENT = 1e-6;
/** Options that are seconds in a vector, and milliseconds here. */
const MILLISECONDS = new Map([["timeout", "timeoutMs"], ["delay", "delayMs"]]);

interface MadeTry {
  readonly name: string;
  readonly at: number;
  readonly refused: boolean;
}

interface Ended {
  readonly at: number;
  readonly answer: Json;
}

/** Run `vector`, and compare. */
export async function runVector(vector: Vector, server: ScriptedServer): Promise<void> {
  await server.play(vector);
  const clock = new JumpingClock();
  const tries: MadeTry[] = [];
  let [ids, keys] = [0, 0];
  const wall = vector.wall ?? 1_700_000_000;
  const world = {
    clock,
    wall: () => wall + clock.now(),
    chance: () => vector.chance ?? 0,
    newId: () => `r${(ids += 1)}`,
    newKey: () => `k${(keys += 1)}`,
  };
  const options = { ...(named(vector.client ?? {}) as ClientOptions), fetch: wire(vector, server, clock, tries) };
  const format = vector.client?.["format"] === "msgpack" ? { format: messagePack } : {};
  const client = new Client(`${server.url}${vector.prefix ?? ""}`, { ...options, ...format }, world);

  const ended = vector.calls.map((call) => begin(client, call, clock));
  if (vector.close_at !== undefined) {
    clock.callLater(vector.close_at, () => void client.close());
  }
  for (const [place, call] of vector.calls.entries()) {
    const { at, answer } = await ended[place]!;
    checkAnswer(call.gets, answer);
    assert.ok(Math.abs(at - call.ends) < SAME_MOMENT, `call ${place} ends at ${at}, not ${call.ends}`);
  }
  checkTries(vector, tries, await server.log());
  for (const [name, value] of Object.entries(vector.stats ?? {})) {
    assert.equal(client.stats[camel(name) as keyof typeof client.stats], value, name);
  }
}

/** Carries tries to the scripted server, and does what that cannot: it refuses connections, and lets time pass. */
function wire(vector: Vector, server: ScriptedServer, clock: JumpingClock, tries: MadeTry[]): Fetch {
  return async (url, init) => {
    const headers = new Headers(init.headers);
    const [id, attempt] = [headers.get("x-request-id") ?? "", Number(headers.get("x-attempt"))];
    const answer = vector.answers[id]?.[attempt - 1] ?? {};
    const refused = answer.refuse ?? false;
    tries.push({ name: `${id} ${attempt}`, at: clock.now(), refused });
    const target = refused ? url.replace(`:${server.port}`, `:${server.refusedPort}`) : url;
    const outcome = await clock.real(async () => {
      try {
        const response = await fetch(target, init);
        const body = await response.arrayBuffer();
        const { status, headers: told } = response;
        return () => new Response(status === 204 ? null : body, { status, headers: told });
      } catch (error) {
        return () => {
          throw error;
        };
      }
    });
    if (answer.delay) {
      await pause(clock, answer.delay, init.signal);
    }
    return outcome();
  };
}

async function pause(clock: JumpingClock, seconds: number, signal: AbortSignal | null | undefined): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const timer = clock.callLater(seconds, resolve);
    signal?.addEventListener("abort", () => {
      timer.cancel();
      reject(signal.reason);
    });
  });
}

/** Begin a call at its time: at once where that is 0, so that calls of one moment keep their order. */
function begin(client: Client, call: VectorCall, clock: JumpingClock): Promise<Ended> {
  const controller = new AbortController();
  if (call.cancel_at !== undefined) {
    clock.callLater(call.cancel_at, () => controller.abort());
  }
  const outcome = call.at
    ? new Promise<void>((resolve) => clock.callLater(call.at ?? 0, resolve)).then(() => asked(client, call, controller))
    : asked(client, call, controller);
  return outcome.then(
    (result) => ({ at: clock.now(), answer: { result } }),
    (error: unknown) => ({ at: clock.now(), answer: { error } }),
  );
}

/** What the call named by `do` gives. */
async function asked(client: Client, call: VectorCall, controller: AbortController): Promise<unknown> {
  const options = { ...named(call.options ?? {}), signal: controller.signal };
  switch (call.do) {
    case "predict":
      return client.predict(call.item_base64 === undefined ? call.item : bytes(call.item_base64), options);
    case "predict_many":
      return client.predictMany(call.items ?? [], options);
    case "health":
      return client.health(options);
    case "jobs.submit":
      return client.jobs.submit(call.item_base64 === undefined ? call.item : bytes(call.item_base64), options);
    case "jobs.get":
      return client.jobs.get(call.job ?? "", options);
    case "jobs.cancel":
      return client.jobs.cancel(call.job ?? "", options);
    case "jobs.result":
      return client.jobs.result(call.job ?? "", options);
    case "jobs.wait":
      return client.jobs.wait(call.jobs ?? [], options);
    default:
      throw new Error(`there is no call ${call.do}`);
  }
}

/** What a caller got is what the vector says. */
function checkAnswer(told: Json, got: Json): void {
  if ("error" in told) {
    const { error } = got;
    assert.ok(error instanceof Error, `an error, and not ${JSON.stringify(got)}`);
    const expected = told["error"] === "CancelledError" ? "AbortError" : told["error"];
    assert.equal(error.name, expected, error.stack);
    for (const [name, value] of Object.entries(told)) {
      if (name !== "error") {
        assert.deepEqual(error[camel(name) as keyof Error], value, name);
      }
    }
    return;
  }
  if ("error" in got) {
    throw got["error"];
  }
  const { result } = got;
  if ("results" in told) {
    const parts = told["results"] as Json[];
    assert.ok(Array.isArray(result) && result.length === parts.length, JSON.stringify(result));
    for (const [place, part] of parts.entries()) {
      checkAnswer(part, result[place] instanceof Error ? { error: result[place] } : { result: result[place] });
    }
  } else if ("base64" in told) {
    assert.ok(result instanceof Uint8Array);
    assert.equal(Buffer.from(result).toString("base64"), told["base64"]);
  } else {
    checkContains(result, told["result"]);
  }
}

/** `got` is `told`; an object may have more members. */
function checkContains(got: unknown, told: unknown): void {
  if (Array.isArray(told)) {
    assert.ok(Array.isArray(got) && got.length === told.length, JSON.stringify(got));
    told.forEach((one, place) => checkContains(got[place], one));
  } else if (typeof told === "object" && told !== null) {
    assert.ok(typeof got === "object" && got !== null, JSON.stringify(got));
    for (const [name, value] of Object.entries(told)) {
      checkContains((got as Json)[name], value);
    }
  } else {
    assert.deepEqual(got, told);
  }
}

/** The tries that were made, and what the server saw of them, are those of the vector. */
function checkTries(vector: Vector, made: readonly MadeTry[], log: readonly Seen[]): void {
  const told = new Map(vector.tries.map((one) => [`${one.id} ${one.attempt}`, one]));
  assert.deepEqual(
    Object.fromEntries(made.map(({ name, at }) => [name, Number(at.toFixed(6))])),
    Object.fromEntries([...told].map(([name, { at }]) => [name, at])),
  );
  assert.equal(made.length, told.size, "each try was made once");
  const names = log.map((one) => `${one.id} ${one.attempt}`);
  assert.deepEqual([...names].sort(), made.filter((one) => !one.refused).map(({ name }) => name).sort());
  log.forEach((seen, place) => checkRequest(told.get(names[place]!)!, seen));
}

/** What the server saw of a try is what the vector says. */
function checkRequest(told: VectorTry, seen: Seen): void {
  assert.equal(seen.method, told.method ?? "POST");
  if (told.path !== undefined) {
    assert.equal(seen.path, told.path);
  }
  if ("json" in told) {
    assert.deepEqual(JSON.parse(Buffer.from(seen.base64, "base64").toString()), told.json);
  }
  if (told.base64 !== undefined) {
    assert.equal(seen.base64, told.base64);
  }
  for (const [name, value] of Object.entries(told.headers ?? {})) {
    assert.equal(seen.headers[name] ?? null, value, name);
  }
  if (told.timeout !== undefined) {
    const seconds = Number(seen.headers["x-request-timeout"]);
    assert.ok(Math.abs(seconds - told.timeout) < 0.002, `told ${seconds} s, not ${told.timeout}`);
  }
}

/** Options with the names, and in the units, that they have here. */
function named(options: Json): Json {
  return Object.fromEntries(
    Object.entries(options).map(([name, value]) => {
      const inMilliseconds = MILLISECONDS.get(name);
      return inMilliseconds === undefined ? [camel(name), value] : [inMilliseconds, Number(value) * 1000];
    }),
  );
}

function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

function bytes(base64: string): Uint8Array {
  return new Uint8Array(Buffer.from(base64, "base64"));
}
