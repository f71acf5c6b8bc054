/** The client of Penstock for Node and browsers: it calls a server over HTTP, and tries again as the server says. */

export { Client, type ClientJobs, type ManyOptions, type SignalOptions, type WaitOptions } from "./client.js";
export * from "./errors.js";
export type { Attempt, Job, AttemptError, JobState } from "./job.js";
export type { JobOptions } from "./job-calls.js";
export * from "./job-errors.js";
export type { CallOptions, ClientOptions, Fetch, MessagePackCodec } from "./options.js";
export type { ClientStats } from "./sending.js";
export type { Clock, Timer, World } from "./world.js";
