/** What `fetch` meets: connections that are refused, lost and closed, answers that are too long, or lead elsewhere. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { Client } from "../src/client.js";
import { ConnectionFailed, DeadlineExceeded, ServerError } from "../src/errors.js";
import { unixFetch } from "../src/node.js";
import type { ClientOptions, Fetch } from "../src/options.js";
import { type Clock, REAL_WORLD } from "../src/world.js";
import { type Running, serve } from "./silent-server.js";

const folder = mkdtempSync(join(tmpdir(), "penstock-"));
after(() => rmSync(folder, { recursive: true }));

type Answer = (asked: IncomingMessage, answer: ServerResponse) => void;

/** Answers with what `begin` writes, and pieces of 100 kB, until the connection is closed. */
class Flood {
  /** How many pieces it writes: half of them are more than a client may take. */
  left = 640;
  closed: Promise<unknown> | undefined;
  readonly #begin: (answer: ServerResponse) => unknown;

  constructor(begin: (answer: ServerResponse) => unknown) {
    this.#begin = begin;
  }

  readonly answer: Answer = ({ socket }, answer) => {
    this.closed = new Promise((resolve) => socket.on("close", resolve)); // which may be reset
    this.#begin(answer);
    const to = answer.headersSent ? answer : socket;
    const more = (): void => {
      while (!socket.destroyed && this.left > 0) {
        this.left -= 1;
        if (!to.write("x".repeat(100_000))) {
          return;
        }
      }
    };
    to.on("drain", more);
    more();
  };
}

/** Each way to reach a server: what it serves at, and the `fetch` for it. */
const WAYS: Record<string, (answer: Answer) => Promise<{ running: Running; fetch: Fetch | undefined }>> = {
  "the fetch of Node": async (answer) => ({ running: await serve(answer), fetch: undefined }),
  unixFetch: async (answer) => {
    const path = join(folder, `${Math.random().toString(36).slice(2)}.sock`);
    return { running: await serve(answer, path), fetch: unixFetch(path) };
  },
};

for (const [way, open] of Object.entries(WAYS)) {
  describe(way, () => {
    /** Let `use` call a server that answers so. */
    async function calling(
      answer: Answer,
      use: (c: Client, running: Running) => Promise<void>,
      options: ClientOptions = { maxRetries: 0 },
    ): Promise<void> {
      const { running, fetch } = await open(answer);
      try {
        await use(new Client(running.url, { fetch, ...options }), running);
      } finally {
        await running.stop();
      }
    }

    test("a result comes, with what was sent", async () => {
      let connections = 0;
      const echo: Answer = (asked, answer) => {
        const pieces: Uint8Array[] = [];
        asked.on("data", (piece: Uint8Array) => pieces.push(piece));
        asked.on("end", () => {
          answer.setHeader("content-type", "application/json");
          answer.end(JSON.stringify([asked.url, asked.headers["x-attempt"], String(Buffer.concat(pieces))]));
        });
      };
      await calling(echo, async (c, { server }) => {
        server.on("connection", () => (connections += 1));
        assert.deepEqual(await c.predict({ x: "ü" }), ["/predict", "1", '{"x":"ü"}']);
        const long = "x".repeat(500_000);
        assert.deepEqual(await c.predict(long, { service: "a" }), ["/a/predict", "1", `"${long}"`]);
        // Node may open a second one: it learns in a later turn that the first is idle.
        assert.ok(connections <= (way === "unixFetch" ? 1 : 2), `${connections} connections`);
      });
    });

    test("what the caller's signal ends has its connection closed", async () => {
      const controller = new AbortController();
      let closed: Promise<unknown> | undefined;
      const hold: Answer = (asked) => {
        closed = once(asked.socket, "close");
        controller.abort(new Error("enough"));
      };
      await calling(hold, async (c) => {
        await assert.rejects(c.predict(1, { signal: controller.signal }), /enough/);
        await closed;
        assert.equal(c.stats.inFlight, 0);
      });
    });

    test("a try that is given up has its connection closed", async () => {
      const timers = new Set<() => void>();
      const clock: Clock = {
        now: () => 0,
        callLater: (_, callback) => {
          timers.add(callback);
          return { cancel: () => timers.delete(callback) };
        },
      };
      let closed: Promise<unknown> | undefined;
      const { running, fetch } = await open((asked) => {
        closed = once(asked.socket, "close");
        timers.forEach((ring) => ring()); // its time is up once the server has it
      });
      try {
        const call = new Client(running.url, { fetch }, { ...REAL_WORLD, clock }).predict(1, { timeoutMs: 100 });
        await assert.rejects(call, (error) => {
          assert.ok(error instanceof DeadlineExceeded && error.ran);
          return error.message === "the call timed out after 0.1 s, without a response";
        });
        await closed;
      } finally {
        await running.stop();
      }
    });

    test("closing the client ends what it has in hand", async () => {
      const arrived = new EventTarget();
      let closed: Promise<unknown> | undefined;
      const hold: Answer = (asked) => {
        closed = once(asked.socket, "close");
        arrived.dispatchEvent(new Event("request"));
      };
      await calling(hold, async (c) => {
        const call = assert.rejects(c.predict(1), { name: "Cancelled" });
        await once(arrived, "request");
        await c.close();
        await call;
        await closed;
        await assert.rejects(c.predict(1), { name: "ConfigError", message: "the client is closed" });
      });
    });

    test("a body that breaks off is a connection that was lost", async () => {
      const half: Answer = (asked, answer) => {
        answer.writeHead(200, { "content-type": "application/json", "content-length": 10 });
        answer.write("12345", () => asked.socket.destroy());
      };
      await calling(half, async (c) => {
        await assert.rejects(c.predict(1), (error) => error instanceof ConnectionFailed && error.sent);
      });
    });

    test("a server that is gone was never sent anything", async () => {
      const { running, fetch } = await open(() => undefined);
      await running.stop();
      await assert.rejects(new Client(running.url, { fetch, maxRetries: 0 }).predict(1), (error) => {
        return error instanceof ConnectionFailed && !error.sent && error.cause instanceof Error;
      });
    });

    test("a status without a body is an answer", async () => {
      await calling((_, answer) => answer.writeHead(204).end(), async (c) => {
        await assert.rejects(c.health(), (error) => error instanceof ServerError && error.status === 204);
      });
    });

    test("nobody is sent elsewhere", async () => {
      let asked = 0;
      const lead: Answer = (_, answer) => {
        asked += 1;
        answer.writeHead(307, { location: "/elsewhere" }).end();
      };
      await calling(lead, async (c) => {
        await assert.rejects(c.predict(1), (error) => error instanceof ServerError && error.status === 307);
        assert.equal(asked, 1);
      });
    });

    const endless: [what: string, status: number, call: (c: Client) => Promise<unknown>, most: number][] = [
      ["a result", 200, (c) => c.predict(1), 1_000_000],
      ["a page that is no success", 500, (c) => c.predict(1), 2 ** 20],
      ["a page of the server", 200, (c) => c.health(), 2 ** 20],
    ];
    for (const [what, status, call, most] of endless) {
      test(`${what} without end is not read to its end`, async () => {
        const flood = new Flood((answer) => answer.writeHead(status));
        await calling(flood.answer, async (c) => {
          await assert.rejects(call(c), new RegExp(`the response has more than ${most} bytes`));
          await flood.closed;
          assert.ok(flood.left > 320, `${flood.left} pieces were not sent`);
        }, { maxRetries: 0, maxResult: 1_000_000 });
      });
    }

    test("a head without end is a connection that was lost", async () => {
      const flood = new Flood(({ socket }) => socket?.write("HTTP/1.1 200 OK\r\nx-y: "));
      await calling(flood.answer, async (c) => {
        await assert.rejects(c.predict(1), ConnectionFailed);
        await flood.closed;
        assert.ok(flood.left > 320, `${flood.left} pieces were not sent`);
      });
    });

    for (const begun of ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n1"]) {
      test(`what ends behind ${JSON.stringify(begun)} is given up in time`, async () => {
        await calling(({ socket }) => socket.write(begun), async (c) => {
          await assert.rejects(c.predict(1, { timeoutMs: 50 }), (error) => {
            return error instanceof DeadlineExceeded && error.ran;
          });
        });
      });
    }

    test("no more is tried again than may be", async () => {
      let asked = 0;
      const full: Answer = (_, answer) => {
        asked += 1;
        answer.writeHead(503, { "x-should-retry": "true", "retry-after-ms": "0" }).end();
      };
      await calling(full, async (c) => {
        await assert.rejects(c.predict(1), ServerError);
        assert.equal(asked, 4);
      }, { maxRetries: 3 });
    });

    test("no more is in flight than may be", async () => {
      let most = 0;
      const inside: ServerResponse[] = [];
      const two: Answer = (_, answer) => {
        most = Math.max(most, inside.push(answer));
        if (inside.length === 2) { // and a third one would come now
          setTimeout(() => {
            for (const each of inside.splice(0)) {
              each.writeHead(200, { "content-type": "application/json" }).end('{"outcomes":[{"result":1}]}');
            }
          }, 50);
        }
      };
      await calling(two, async (c) => {
        assert.deepEqual(await c.predictMany([1, 2, 3, 4, 5, 6], { batchSize: 1 }), [1, 1, 1, 1, 1, 1]);
        assert.equal(most, 2);
      }, { maxConcurrency: 2 });
    });
  });
}

test("the signal of one call does not keep what belongs to calls that have ended", async () => {
  const running = await serve((_, answer) => answer.writeHead(200, { "content-type": "application/json" }).end("1"));
  const added = new Map<string, number>();
  const { signal } = new AbortController();
  for (const [name, step] of [["addEventListener", 1], ["removeEventListener", -1]] as const) {
    const plain = signal[name].bind(signal) as (...given: unknown[]) => void;
    Object.defineProperty(signal, name, {
      value: (...given: unknown[]) => {
        added.set("abort", (added.get("abort") ?? 0) + step);
        plain(...given);
      },
    });
  }
  try {
    const c = new Client(running.url);
    await c.predict(1, { signal });
    await c.predictMany([1, 2], { signal, batchSize: 1, returnExceptions: true });
    await assert.rejects(c.health({ signal }), ServerError); // that is no object
    assert.equal(added.get("abort"), 0);
  } finally {
    await running.stop();
  }
});
