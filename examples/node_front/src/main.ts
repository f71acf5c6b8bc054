/** The program: start everything, and end in good order on SIGTERM or Ctrl-C. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { constants } from "node:os";
import { Client } from "penstock-client";
import { makeApp } from "./app.js";
import { type Config, ConfigError, readConfig } from "./config.js";
import { Front } from "./front.js";
import { Python } from "./python.js";

/** How long the last answers may take to be written: one that nobody reads would hold the process. */
const LAST_ANSWERS_MS = 1000;
/** How long a signal that comes again is the same one: supervisors send it to a process, and once more to its group. */
const SAME_SIGNAL_MS = { SIGTERM: 1000, SIGINT: 100 };

function run(config: Config): void {
  const python = new Python(config);
  const client = new Client("http://localhost", { fetch: python.fetch, maxConcurrency: config.maxQueue });
  const front = new Front(client, python, config);
  const server = createServer(makeApp(front, python, config.bodyLimit));

  server.on("error", (error) => {
    console.error(`front: ${error.message}`);
    python.kill();
    process.exit(1);
  });
  server.listen(config.port, config.host, () => {
    const { address, family, port } = server.address() as AddressInfo;
    console.error(`front: listening on http://${family === "IPv6" ? `[${address}]` : address}:${port}`);
    python.start(() => front.backendEnded());
  });

  const end = async (): Promise<void> => {
    console.error("front: it drains: what is in hand is answered, nothing more is accepted");
    server.close();
    await front.drain();
    await python.stop();
    setTimeout(() => server.closeAllConnections(), LAST_ANSWERS_MS).unref();
  };
  for (const signal of ["SIGTERM", "SIGINT"] as const) {
    let counted = -Infinity;
    process.on(signal, () => {
      if (performance.now() - counted <= SAME_SIGNAL_MS[signal]) {
        return;
      }
      counted = performance.now();
      if (front.isDraining) { // the second one
        python.kill();
        process.exit(128 + constants.signals[signal]);
      }
      void end();
    });
  }
}

try {
  run(readConfig(process.env));
} catch (error) {
  if (!(error instanceof ConfigError)) {
    throw error;
  }
  console.error(`front: ${error.message}`);
  process.exit(2);
}
