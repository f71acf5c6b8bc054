/** What a client takes from the world: time, chance, and names.  A test hands in its own. */

/** A time that comes; it is forgotten by `cancel`. */
export interface Timer {
  cancel(): void;
}

/** A clock in seconds, which only goes forward; it has no relation to the time of day. */
export interface Clock {
  now(): number;
  /** Call `callback` in `seconds`. */
  callLater(seconds: number, callback: () => void): Timer;
}

/** The world; each part may be another. */
export interface World {
  readonly clock: Clock;
  /** The moment in Unix seconds. */
  wall(): number;
  /** A random number from 0 up to 1. */
  chance(): number;
  /** The id of a request whose caller names none. */
  newId(): string;
  /** The key of a job whose submitter names none. */
  newKey(): string;
}

/** Longest time of `setTimeout`, 24 days; what is longer rings at once. */
export const FOREVER_SECONDS = 2_147_483;

const clock: Clock = {
  now: () => performance.now() / 1000,
  callLater(seconds, callback) {
    const timer = setTimeout(callback, seconds * 1000);
    return { cancel: () => clearTimeout(timer) };
  },
};

/** A name that nobody else has.  `randomUUID` is not there on pages without TLS. */
function newName(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The world as it is. */
export const REAL_WORLD: World = {
  clock,
  wall: () => Date.now() / 1000,
  chance: Math.random,
  newId: newName,
  newKey: newName,
};
