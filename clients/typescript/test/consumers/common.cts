// A program of CommonJS modules that uses the package as it was built.
import penstock = require("penstock-client");
import node = require("penstock-client/node");

const c = new penstock.Client("http://localhost", { fetch: node.unixFetch("/nowhere.sock"), maxRetries: 0 });
const call: Promise<unknown> = c.predict({ x: 1 });

export = {
  found: [c.stats.limit, new penstock.JobNotFound("") instanceof penstock.JobError],
  failed: call.catch((error: unknown) => (error instanceof penstock.ConnectionFailed ? error.sent : error)),
};
