/** A server of a test's own: what it does with each request is a function. */

import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface Running {
  readonly url: string;
  readonly server: Server;
  stop(): Promise<void>;
}

/** Serve on a free port, or at the Unix socket `path`. */
export async function serve(
  answer: (asked: IncomingMessage, answer: ServerResponse) => void,
  path?: string,
): Promise<Running> {
  const server = createServer(answer);
  server.listen(path === undefined ? { port: 0, host: "127.0.0.1" } : { path });
  await once(server, "listening");
  const address = server.address() as AddressInfo | string;
  return {
    url: typeof address === "string" ? "http://localhost" : `http://127.0.0.1:${address.port}`,
    server,
    stop: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}
