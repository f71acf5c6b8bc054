/** Do many things, and only some at a time: the client batches of one call, the jobs that one call waits for. */

/**
 * What each of `makers` gives, in their order; `most` run at a time.
 *
 * The first error ends all others by the signal that they are given, and is thrown once they have ended.
 */
export async function gatherBounded<T>(
  makers: readonly ((signal: AbortSignal) => Promise<T>)[],
  most: number,
  outer: AbortSignal | undefined,
): Promise<T[]> {
  const results: T[] = [];
  const group = new AbortController();
  const endAll = (): void => group.abort(outer?.reason);
  outer?.addEventListener("abort", endAll, { once: true });
  if (outer?.aborted) {
    endAll();
  }
  const places = makers.keys();
  const runNext = async (): Promise<void> => {
    for (const place of places) {
      group.signal.throwIfAborted();
      results[place] = await makers[place]!(group.signal);
    }
  };
  const runners = Array.from({ length: Math.min(most, makers.length) }, () =>
    runNext().catch((error: unknown) => {
      group.abort(error); // the first one stays its reason
    }),
  );
  await Promise.all(runners);
  outer?.removeEventListener("abort", endAll);
  group.signal.throwIfAborted();
  return results;
}
