/** Make the calls that users ask for: which request each becomes, and how its answer is read.  There is no I/O here. */

import { BatchCall, type WrittenItem } from "./batch-call.js";
import { isObject, readResult, UnreadableBody, writeItem, writeItemOfBatch } from "./bodies.js";
import { type CallHead, SingleCall } from "./calls.js";
import { InvalidItem } from "./errors.js";
import { LARGEST_PAGE_BYTES } from "./fetch-wire.js";
import { type CallTerms, checkWhole, type Settings, USUAL_URGENCY } from "./options.js";
import type { Reply } from "./replies.js";
import type { World } from "./world.js";

/** What is special about the head of a request. */
type Special = Partial<Pick<CallHead, "headers" | "timeout" | "flowControlled">> & {
  /** Whether its answer may be a result. */
  readonly hasResult?: boolean;
};

/** Makes the calls of one client. */
export class CallMaker {
  readonly #settings: Settings;
  readonly #world: World;
  /** The headers of every request. */
  readonly #shared: Readonly<Record<string, string>>;

  constructor(settings: Settings, world: World) {
    this.#settings = settings;
    this.#world = world;
    this.#shared = settings.apiKey === undefined ? {} : { authorization: `Bearer ${settings.apiKey}` };
  }

  /** One item for `/predict`. */
  predict(item: unknown, terms: CallTerms): SingleCall<unknown> {
    const body = writeItem(item, this.#settings.codec);
    return new SingleCall(this.#serviceHead("predict", terms, this.#id(terms)), body, (reply) => this.read(reply));
  }

  /** Many items as client batches of at most `batchSize`; with `keepGoing` one that cannot be written is an error. */
  predictMany(items: Iterable<unknown>, terms: CallTerms, batchSize: number, keepGoing: boolean): BatchCall[] {
    checkWhole("batchSize", batchSize, 1);
    const written = Array.from(items, (item) => this.#written(item, keepGoing));
    const knownAs = this.#id(terms);
    const parts: WrittenItem[][] = [];
    for (let first = 0; first < written.length; first += batchSize) {
      parts.push(written.slice(first, first + batchSize));
    }
    return parts.map((part, number) => {
      const id = parts.length === 1 ? knownAs : `${knownAs}-${number}`;
      return new BatchCall(this.#serviceHead("batch", terms, id), part, this.#settings.codec);
    });
  }

  /** The page `/health`, which a full server answers too. */
  health(): SingleCall<Record<string, unknown>> {
    return new SingleCall(this.head("GET", "/health", { flowControlled: false }), undefined, (reply) => {
      const found = this.read(reply);
      if (!isObject(found)) {
        throw new UnreadableBody("a body that is not an object");
      }
      return found;
    });
  }

  /** The head of a request that is for no service, and may be made twice without harm. */
  head(method: string, path: string, special: Special = {}): CallHead {
    return {
      method,
      path,
      headers: { ...this.#shared, ...special.headers },
      requestId: this.#world.newId(),
      timeout: special.timeout ?? this.#settings.timeout,
      urgency: USUAL_URGENCY,
      harmless: true,
      largest: special.hasResult ? this.#settings.maxResult : LARGEST_PAGE_BYTES,
      flowControlled: special.flowControlled ?? true,
    };
  }

  /** The result that an answer has. */
  read(reply: Reply, otherwiseBytes = false): unknown {
    return readResult(reply.body, reply.headers.get("content-type") ?? "", this.#settings.codec, otherwiseBytes);
  }

  #serviceHead(verb: string, terms: CallTerms, requestId: string): CallHead {
    const headers: Record<string, string> = { ...this.#shared };
    if (terms.urgency !== USUAL_URGENCY) {
      headers["priority"] = `u=${terms.urgency}`;
    }
    if (terms.tenant !== "" && this.#settings.tenantHeader !== undefined) {
      headers[this.#settings.tenantHeader] = terms.tenant;
    }
    return {
      method: "POST",
      path: terms.service === "" ? `/${verb}` : `/${terms.service}/${verb}`,
      headers,
      requestId,
      timeout: terms.timeout,
      urgency: terms.urgency,
      harmless: this.#settings.retryNonIdempotent,
      largest: this.#settings.maxResult,
      flowControlled: true,
    };
  }

  #id(terms: CallTerms): string {
    return terms.requestId ?? this.#world.newId();
  }

  #written(item: unknown, keepGoing: boolean): WrittenItem {
    try {
      return writeItemOfBatch(item, this.#settings.codec);
    } catch (error) {
      if (keepGoing && error instanceof InvalidItem) {
        return error;
      }
      throw error;
    }
  }
}
