/** A `fetch` for a server at a Unix socket, in Node. */

import { Agent, type IncomingMessage, request } from "node:http";

/** How long an idle connection is kept: shorter than by the server, which else may close it under the next request. */
const KEPT_MS = 4000;
/** Statuses of answers that have no body, with which `Response` takes none. */
const WITHOUT_BODY = new Set([204, 205, 304]);

/**
 * A `fetch` that sends every request to the server at the Unix socket `path`, whatever the host of its URL is.
 *
 * It gives the whole answer, follows no redirects, and keeps connections open for a while.  Whatever ends its `signal`
 * closes the connection.
 */
export function unixFetch(path: string): (url: string | URL, init?: RequestInit) => Promise<Response> {
  const agent = new Agent({ keepAlive: true, timeout: KEPT_MS });
  return (url, init = {}) =>
    new Promise((resolve, reject) => {
      const { pathname, search } = new URL(url);
      const { method = "GET", body, signal } = init;
      const headers = Object.fromEntries(new Headers(init.headers));
      const fail = (error: unknown): void => reject(signal?.aborted ? signal.reason : error);
      if (signal?.aborted) {
        fail(undefined);
        return;
      }
      const target = { socketPath: path, path: pathname + search };
      const sent = request({ ...target, agent, method, headers, ...(signal && { signal }) });
      sent.on("error", fail);
      sent.on("response", (answer) => {
        readAnswer(answer).then(resolve, fail);
      });
      sent.end(body as Uint8Array | string | null | undefined ?? undefined);
    });
}

async function readAnswer(answer: IncomingMessage): Promise<Response> {
  const pieces: Uint8Array[] = [];
  for await (const piece of answer) {
    pieces.push(piece as Uint8Array);
  }
  const headers = new Headers();
  for (let place = 0; place < answer.rawHeaders.length; place += 2) {
    headers.append(answer.rawHeaders[place]!, answer.rawHeaders[place + 1]!);
  }
  const status = answer.statusCode ?? 0;
  return new Response(WITHOUT_BODY.has(status) ? null : Buffer.concat(pieces), { status, headers });
}
