/** The options of the front, from the environment. */

export interface Config {
  readonly host: string;
  readonly port: number;
  /** Most items in hand. */
  readonly maxQueue: number;
  readonly batchSize: number;
  /** Most batches that Python has at a time. */
  readonly maxBatches: number;
  /** How long an item waits for company. */
  readonly maxWaitMs: number;
  /** How long a caller waits for an answer. */
  readonly timeoutMs: number;
  /** Largest body of a request, in bytes. */
  readonly bodyLimit: number;
  /** The service, as `penstock serve` takes it, and the folder that it is in. */
  readonly service: string;
  readonly serviceFolder: string;
  /** The program `penstock`. */
  readonly penstock: string;
}

/** A variable has a value that it cannot have. */
export class ConfigError extends Error {
  override name = "ConfigError";
}

/** Timers of Node take no more milliseconds than 2^31. */
const LARGEST_NUMBER = 1_000_000_000;

export function readConfig(environment: Readonly<Record<string, string | undefined>>): Config {
  const whole = (name: string, otherwise: number, least: number, most = LARGEST_NUMBER): number => {
    const text = environment[name] ?? String(otherwise);
    const value = Number(text);
    if (!/^[0-9]+$/.test(text) || value < least || value > most) {
      throw new ConfigError(`${name} must be a whole number from ${least} to ${most}, got ${JSON.stringify(text)}`);
    }
    return value;
  };
  return {
    host: environment["HOST"] ?? "127.0.0.1",
    port: whole("PORT", 3000, 0, 65_535),
    maxQueue: whole("MAX_QUEUE", 8, 1),
    batchSize: whole("BATCH_SIZE", 4, 1),
    maxBatches: whole("MAX_BATCHES", 1, 1),
    maxWaitMs: whole("MAX_WAIT_MS", 1000, 0),
    timeoutMs: whole("TIMEOUT_MS", 3000, 1),
    bodyLimit: whole("BODY_LIMIT", 1_048_576, 1),
    service: environment["SERVICE"] ?? "service:service",
    serviceFolder: environment["SERVICE_FOLDER"] ?? "../burst",
    penstock: environment["PENSTOCK"] ?? "penstock",
  };
}
