/** What came back of one try: an answer, or none. */

/** A whole answer; names of header fields are in lower case. */
export interface Reply {
  readonly kind: "reply";
  readonly status: number;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: Uint8Array;
}

/** A connection that could not be had, or that was lost before the whole answer was there. */
export interface NoReply {
  readonly kind: "no reply";
  /** Whether the request, or a part of it, was sent; false is a connection that never was. */
  readonly sent: boolean;
  readonly detail: string;
  readonly cause?: unknown;
}

/** Whether the status says that what was asked has been done. */
export function isSuccess(reply: Reply): boolean {
  return reply.status >= 200 && reply.status < 300;
}
