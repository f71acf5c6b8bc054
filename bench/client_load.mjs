/**
 * Load a server through the TypeScript client, and tell what became of the calls.
 *
 *     node client_load.mjs '{"url": "http://127.0.0.1:8000", "clients": 20, "callers": 50, "warmup": 2, "seconds": 5}'
 *
 * It does what `client_load.py` does, over the package that is built in `clients/typescript/dist`, or in the folder that
 * is given behind the plan.
 */

import { pathToFileURL } from "node:url";

const [planText, folder = new URL("../clients/typescript", import.meta.url).pathname] = process.argv.slice(2);
const built = `${pathToFileURL(folder).href}/dist/esm`;
const { Client, RequestError } = await import(`${built}/index.js`);
const { FlowLimit } = await import(`${built}/flow-limit.js`);

const plan = {
  clients: 1,
  callers: 50,
  flow_control: true,
  retry_non_idempotent: false,
  requests: 0,
  warmup: 0,
  seconds: 0,
  ...JSON.parse(planText),
};
const MOST = 64;

if (!plan.flow_control) {
  // It is no option of the client, so the limit of every client is made one that stays as it is.
  Object.defineProperty(FlowLimit.prototype, "hasRoom", {
    get() {
      return this.inFlight < MOST;
    },
  });
}

const options = { retryUnsafe: plan.retry_non_idempotent, maxConcurrency: MOST };
const clients = Array.from({ length: plan.clients }, () => new Client(plan.url, options));
const errors = {};
let next = 0;
let right = 0;
let wrong = 0;
let over = false;

async function callOn(client) {
  while (!over && (plan.requests === 0 || next < plan.requests)) {
    const number = next;
    next += 1;
    try {
      const answer = await client.predict(number);
      if (answer === 2 * number) {
        right += 1;
      } else {
        wrong += 1;
      }
    } catch (error) {
      if (!(error instanceof RequestError)) {
        throw error;
      }
      errors[error.name] = (errors[error.name] ?? 0) + 1;
    }
  }
}

function seen() {
  const { user, system } = process.cpuUsage();
  const tries = clients.reduce((sum, client) => sum + client.stats.attempts, 0);
  return { right, wrong, errors: { ...errors }, tries, seconds: performance.now() / 1000, cpu_seconds: (user + system) / 1e6 };
}

const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const ending = Promise.all(clients.flatMap((client) => Array.from({ length: plan.callers }, () => callOn(client))));
if (plan.warmup) {
  await Promise.race([ending, sleep(plan.warmup)]);
}
const before = seen();
await (plan.requests ? ending : Promise.race([ending, sleep(plan.seconds)]));
const after = seen();
over = true;
await Promise.all(clients.map((client) => client.close()));
await ending;
const since = (name) => after[name] - before[name];
const errorsSince = Object.entries(after.errors).map(([name, count]) => [name, count - (before.errors[name] ?? 0)]);
console.log(
  JSON.stringify({
    right: since("right"),
    wrong: since("wrong"),
    errors: Object.fromEntries(errorsSince.filter(([, count]) => count > 0)),
    tries: since("tries"),
    seconds: since("seconds"),
    cpu_seconds: since("cpu_seconds"),
  }),
);
process.exit(); // without waiting for connections that are kept open
