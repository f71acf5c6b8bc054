/** The routes. */

import express, { type Express, type NextFunction, type Request, type Response } from "express";
import { RequestError } from "penstock-client";
import { answerOf, BadRequest } from "./answers.js";
import type { Front } from "./front.js";

/** What is asked whether Python serves. */
export interface Health {
  isServing(): Promise<boolean>;
}

export function makeApp(front: Front, health: Health, bodyLimit: number): Express {
  const app = express();
  app.disable("x-powered-by");
  app.disable("etag");

  app.post("/predict", express.json({ limit: bodyLimit }), async (request, response) => {
    const data = readData(request.body);
    const gone = new AbortController();
    response.on("close", () => gone.abort());
    const outcome = await front.predict(data, gone.signal);
    if (gone.signal.aborted) {
      return; // nobody is there
    }
    if ("error" in outcome) {
      throw outcome.error;
    }
    send(response, 200, outcome.result);
  });

  app.get("/health_check", async (_request, response) => {
    response.set("Cache-Control", "no-store");
    const isServing = !front.isDraining && (await health.isServing());
    const status = isServing ? (front.isFull ? "busy" : "ready") : "failed";
    send(response, isServing ? 200 : 503, { status });
  });

  app.all("/predict", (_request, response) => {
    response.set("Allow", "POST");
    throw new BadRequest("use POST", 405);
  });
  app.use(() => {
    throw new BadRequest("there is POST /predict, and GET /health_check", 404);
  });

  // Express knows by the four parameters that it is told of errors.
  app.use((error: unknown, _request: Request, response: Response, _next: NextFunction) => {
    const { status, headers, problem } = answerOf(ofBody(error, bodyLimit));
    if (status === 500 && !(error instanceof RequestError)) { // else the log of Python has it
      console.error("front:", error);
    }
    response.set(headers).type("application/problem+json");
    send(response, status, problem);
  });
  return app;

  function send(response: Response, status: number, body: unknown): void {
    if (front.isDraining) {
      response.set("Connection", "close");
    }
    response.status(status).json(body);
  }
}

/** The data of a body.  Throws `BadRequest` where there is none. */
function readData(body: unknown): unknown {
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw new BadRequest('send {"data": ...} as application/json');
  }
  if (!("data" in body)) {
    throw new BadRequest("`data` is missing");
  }
  return body.data;
}

/** What Express says of a body that it cannot read is the caller's fault, with a status of its own. */
function ofBody(error: unknown, limit: number): unknown {
  if (!(error instanceof Error) || error instanceof BadRequest || !("type" in error) || !("status" in error)) {
    return error;
  }
  const status = Number(error.status);
  if (status < 400 || status >= 500) {
    return error;
  }
  return new BadRequest(status === 413 ? `a body has at most ${limit} bytes` : error.message, status);
}
