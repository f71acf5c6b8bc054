/**
 * Run `penstock serve` at a Unix socket, and start it again when it ends.
 *
 * The socket is in a folder of its own that only this user may enter.  So nobody else calls Python there, and what
 * answers there is the child of this front, never that of another one.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Fetch } from "penstock-client";
import { unixFetch } from "penstock-client/node";
import type { Config } from "./config.js";
import { Restarts } from "./restarts.js";

const LOOK_EVERY_MS = 100;
/** What has not answered by then whether it is ready is not. */
const LOOK_MS = 1000;
/** `penstock serve` finishes what it has begun, for which it takes 30 s at most unless it is told otherwise. */
const STOP_MS = 35_000;

export class Python {
  /** Whether it takes items, as far as is known without asking. */
  isReady = false;
  readonly fetch: Fetch;
  readonly #config: Config;
  readonly #folder = mkdtempSync(join(tmpdir(), "node-front-"));
  readonly #socket = join(this.#folder, "penstock.sock");
  readonly #stopped = new AbortController();
  readonly #restarts = new Restarts();
  #child: ChildProcess | undefined;
  #startsAt = 0;
  #running = Promise.resolve();

  constructor(config: Config) {
    this.#config = config;
    this.fetch = unixFetch(this.#socket);
  }

  /** In how many seconds it may be ready; nobody knows how long a model loads. */
  get retryAfter(): number {
    return Math.max(1, Math.ceil((this.#startsAt - performance.now()) / 1000));
  }

  /** Start it, and keep it running; `onEnd` is called each time it has ended. */
  start(onEnd: () => void): void {
    this.#running = this.#run(onEnd);
  }

  /** Whether it says that it takes items; from the first time on it gets some. */
  async isServing(): Promise<boolean> {
    const child = this.#child;
    try {
      const answer = await this.fetch("http://localhost/readyz", { signal: AbortSignal.timeout(LOOK_MS) });
      await answer.arrayBuffer(); // or the connection would stay open for it
      if (child === undefined || child !== this.#child || !answer.ok) {
        return false;
      }
    } catch {
      return false;
    }
    if (!this.isReady) {
      this.isReady = true;
      this.#restarts.ready(performance.now());
      console.error(`front: Python is ready, pid ${child.pid}`);
    }
    return true;
  }

  /** End it, and return once it has ended. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    this.#child?.kill("SIGTERM");
    const patience = setTimeout(() => this.#child?.kill("SIGKILL"), STOP_MS);
    await this.#running;
    clearTimeout(patience);
  }

  /** End it without waiting for anything. */
  kill(): void {
    this.#child?.kill("SIGKILL");
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #run(onEnd: () => void): Promise<void> {
    while (!this.#stopped.signal.aborted) {
      const ended = this.#spawn();
      void this.#awaitReadiness(ended);
      const how = await ended;
      this.#child = undefined;
      this.isReady = false;
      const pause = this.#restarts.ended(performance.now());
      this.#startsAt = performance.now() + pause;
      onEnd();
      if (!this.#stopped.signal.aborted) {
        console.error(`front: Python ended (${how}); it is started again in ${pause / 1000} s`);
        await sleep(pause, undefined, { signal: this.#stopped.signal }).catch(() => undefined);
      }
    }
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /**
   * Start the child; how it has ended, in words.
   *
   * It leads a group of its own, since else Ctrl-C would reach it too, and it would end before the front has drained.
   * `setpriv` has the kernel send it SIGTERM where this process ends without having ended it, by `kill -9` for example.
   * It may be sent again for each thread of this process, which ends Python at once.  Nobody waits for an answer by then.
   */
  #spawn(): Promise<string> {
    const { penstock, service, serviceFolder } = this.#config;
    const serve = [penstock, "serve", service, "--uds", this.#socket];
    const child = spawn("setpriv", ["--pdeathsig", "TERM", "--", ...serve], {
      cwd: serviceFolder,
      stdio: ["ignore", "inherit", "inherit"],
      detached: true,
    });
    this.#child = child;
    return new Promise((ended) => {
      child.on("error", (error) => ended(error.message));
      child.on("exit", (status, signal) => ended(signal ?? `status ${status}`));
    });
  }

  async #awaitReadiness(ended: Promise<unknown>): Promise<void> {
    const child = this.#child;
    while (child === this.#child && !(await this.isServing())) {
      await Promise.race([ended, sleep(LOOK_EVERY_MS)]);
    }
  }
}
