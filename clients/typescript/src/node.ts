/** A `fetch` for a server at a Unix socket, in Node. */

import { Agent, type IncomingMessage, request } from "node:http";

/** How long an idle connection is kept: shorter than by the server, which else may close it under the next request. */
const KEPT_MS = 4000;
/** Statuses of answers that have no body, with which `Response` takes none. */
const WITHOUT_BODY = new Set([204, 205, 304]);

/**
 * A `fetch` that sends every request to the server at the Unix socket `path`, whatever the host of its URL is.
 *
 * It follows no redirects, and keeps connections open for a while.  The body is read as the caller reads it, and a
 * connection is used again once all of it was.  Whatever ends its `signal` closes the connection.
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
        try {
          resolve(readAnswer(answer));
        } catch (error) {
          answer.destroy();
          fail(error);
        }
      });
      sent.end(body as Uint8Array | string | null | undefined ?? undefined);
    });
}

/** Throws where no `Response` can be like that: a status of 600, a field of control characters. */
function readAnswer(answer: IncomingMessage): Response {
  const headers = new Headers();
  for (let place = 0; place < answer.rawHeaders.length; place += 2) {
    headers.append(answer.rawHeaders[place]!, answer.rawHeaders[place + 1]!);
  }
  const status = answer.statusCode ?? 0;
  if (WITHOUT_BODY.has(status)) {
    answer.destroy(); // what comes all the same is read by nobody
    return new Response(null, { status, headers });
  }
  return new Response(streamOf(answer), { status, headers });
}

/** The body, piece by piece as it is asked for; `Readable.toWeb` of Node 20 reads 16,384 pieces ahead. */
function streamOf(answer: IncomingMessage): ReadableStream<Uint8Array> {
  const pieces = answer[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const piece = await pieces.next();
        if (piece.done) {
          controller.close();
        } else {
          controller.enqueue(piece.value as Uint8Array);
        }
      },
      cancel() {
        answer.destroy();
      },
    },
    { highWaterMark: 0 },
  );
}
