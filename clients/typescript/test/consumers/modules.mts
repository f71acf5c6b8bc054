// A program of ES modules that uses the package as it was built; it has no types of Node.
import { Client, type ClientOptions, InvalidItem, type Job, PenstockError } from "penstock-client";
import { QuotaExceeded, RequestError } from "penstock-client";
import { unixFetch } from "penstock-client/node";

const options: ClientOptions = { timeoutMs: 10_000, apiKey: undefined, fetch: unixFetch("/nowhere.sock") };
const c = new Client(new URL("http://localhost"), options);

export async function calls(signal: AbortSignal): Promise<void> {
  const price = await c.predict<number>({ rooms: 3 }, { signal, urgency: 1 });
  const prices: number[] = await c.predictMany<number>([{ rooms: price }], { batchSize: 10 });
  const outcomes: (number | PenstockError)[] = await c.predictMany<number>(prices, { returnExceptions: true });
  const job: Job = await c.jobs.submit(outcomes, { key: "order-7", delayMs: 5 });
  const result: unknown = await c.jobs.result(job, { timeoutMs: 60_000 });
  // @ts-expect-error: what comes is not known to be a text
  const text: string = result;
  // @ts-expect-error: there is no such option
  await c.predict(text, { timeout: 3 });
}

const refused = new QuotaExceeded("", { retryAfter: 1, retryAfterMs: 50 });
export const found = [c.stats.limit, refused instanceof RequestError, refused instanceof InvalidItem, refused.name];
