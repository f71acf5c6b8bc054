// A worker from outside in Node 20, without dependencies: squares, in JSON and MessagePack.
//     node worker.mjs PATH [STAGE]
// PATH is the socket of a service's `remote_worker_socket`.  To write a worker of your own, replace `stage`; what follows
// is how a batch is answered, how a connection lives, and last the bytes.  Integers beyond 2**53 lose digits here.
import net from "node:net";

const [path, stageName] = process.argv.slice(2);
if (!path) throw new Error("usage: node worker.mjs PATH [STAGE]");

class InvalidItem extends Error {} // the fault of who sent the item

const stage = {
  setup(launch) {}, // runs once; an error ends the worker, and the server tells of it
  health() {}, // an error has the server cut this worker off
  // A result for each value, or an Error in its place, which fails that item alone.
  predict(values) {
    return values.map((value) => {
      if (Array.isArray(value) && value.every(Number.isFinite)) return value.map((x) => x * x);
      if (!Number.isFinite(value)) return new InvalidItem("expected a number, or a list of numbers");
      return value === -1 ? new RangeError("the model fails at -1") : value * value;
    });
  },
};

// -- a batch -----------------------------------------------------------------------------------------------------

const VERSION = 4;
const Kind = { HELLO: 1, LAUNCH: 2, READY: 3, FAILED: 4, BATCH: 5, ANSWERS: 6, CHECK: 9, CHECKED: 10, DETACH: 11 };
const Status = { OK: 0, INVALID: 1, FAILED: 2, EXPIRED: 3 };
const CODECS = {
  1: { name: "json", read: (bytes) => JSON.parse(bytes), write: (value) => Buffer.from(JSON.stringify(value, number)) },
  2: { name: "msgpack", read: readMsgpack, write: writeMsgpack },
};
const now = () => Number(process.hrtime.bigint()) / 1e9; // CLOCK_MONOTONIC, as the server's

function number(_, value) { // JSON has no infinity and no NaN: they become null where the service allows it
  const known = typeof value !== "number" || Number.isFinite(value) || launch.allow_nan;
  if (!known) throw new RangeError(`JSON has no ${value}`);
  return value;
}

const describe = (e) => Buffer.from(JSON.stringify({ type: e.name, message: e.message, traceback: e.stack }));
const settle = (item, status, answer) => Object.assign(item, { status, answer });
const fail = (item, e) => settle(item, e instanceof InvalidItem ? Status.INVALID : Status.FAILED, describe(e));

function tried(work) { // what `work` returns, or the Error that it throws
  try {
    return work();
  } catch (error) {
    return error;
  }
}

function answerBatch(frame) {
  const started = now();
  const items = readItems(frame);
  for (const item of items) {
    if (started >= item.deadline) settle(item, Status.EXPIRED, Buffer.alloc(0)); // nobody waits for it: it is not run
    else item.value = tried(() => CODECS[item.codecIn].read(item.payload));
    if (item.value instanceof Error) fail(item, new InvalidItem(item.value.message));
  }
  const live = items.filter((item) => item.status === undefined);
  const results = tried(() => (live.length ? stage.predict(live.map((item) => item.value)) : []));
  live.forEach((item, i) => {
    const result = results instanceof Error ? results : results[i];
    const answer = result instanceof Error ? result : tried(() => CODECS[item.codecOut].write(result));
    if (answer instanceof Error) fail(item, answer);
    else settle(item, Status.OK, answer);
  });
  const tooMuch = new RangeError(`the results of this batch are more than ${launch.max_body} bytes`);
  if (writeBody(items).length > launch.max_body) items.forEach((item) => fail(item, tooMuch));
  const [n, seconds] = [items.length, now() - started];
  return writeFrame(Kind.ANSWERS, writeBody(items), { n, calls: 1, id: frame.id, seconds });
}

// -- a connection ------------------------------------------------------------------------------------------------

let socket, ready, leaving, launch; // `launch`: what the server told us to be; `setup` ran at the first one
let pause = 100;

function connect() {
  const feed = frameReader();
  ready = false;
  socket = net.connect({ path, allowHalfOpen: true }); // the server may end its half while we still answer
  socket.on("connect", () => {
    const codecs = Object.values(CODECS).map((codec) => codec.name);
    const hello = { version: VERSION, pid: process.pid, language: "node", stage: stageName, codecs, health: true };
    send(Kind.HELLO, Buffer.from(JSON.stringify(hello)));
  });
  socket.on("data", (data) => {
    const error = tried(() => [...feed(data)].forEach(handle));
    if (error) socket.destroy(error);
    if (socket.writableNeedDrain) socket.pause(); // the server does not read our answers: take no more work
  });
  socket.on("drain", () => socket.resume());
  socket.on("end", () => socket.end()); // whatever was read is answered
  socket.on("error", (error) => console.error(error.message)); // "close" follows
  socket.on("close", () => {
    if (leaving) process.exit(0);
    setTimeout(connect, pause);
    pause = Math.min(2 * pause, 5000);
  });
}

function handle(frame) {
  if (frame.kind === Kind.BATCH && ready) socket.write(answerBatch(frame));
  else if (frame.kind === Kind.CHECK && ready) check(frame.id);
  else if (frame.kind === Kind.LAUNCH && !ready) begin(JSON.parse(frame.body));
  else if (frame.kind === Kind.FAILED) {
    console.error(`the server says: ${JSON.parse(frame.body).message}`);
    process.exit(1); // who supervises this process starts it afresh
  } else throw new Error(`a frame of kind ${frame.kind} should not have come`);
}

function begin(told) {
  const error = launch ? null : tried(() => stage.setup(told));
  launch = told;
  ready = !(error instanceof Error);
  pause = 100;
  if (ready) return send(Kind.READY);
  console.error(error);
  socket.end(writeFrame(Kind.FAILED, describe(error)), () => process.exit(1));
}

function check(id) {
  const error = tried(() => stage.health());
  send(Kind.CHECKED, error instanceof Error ? describe(error) : Buffer.alloc(0), id);
}

const send = (kind, payload = Buffer.alloc(0), id = 0n) => socket.write(writeFrame(kind, payload, { id }));

function leave() { // a second signal ends it at once; within a second it is the same one, as supervisors send it twice
  if (leaving ? now() - leaving > 1 : !ready) process.exit(leaving ? 1 : 0);
  if (!leaving) send(Kind.DETACH); // the server ends the stream, and we close once everything is answered
  leaving ??= now();
}
process.on("SIGTERM", leave).on("SIGINT", leave);
connect();

// -- frames: `docs/reference/worker-protocol.md` has every field -------------------------------------------------

function frameReader() { // the frames that come with the next bytes; a body is put together once, when it is whole
  let chunks = [], size = 0, needed = 36;
  return function* (data) {
    chunks.push(data);
    size += data.length;
    while (size >= needed) {
      const bytes = chunks.length > 1 ? Buffer.concat(chunks) : chunks[0];
      if (bytes.toString("latin1", 0, 2) !== "PS" || bytes[2] !== VERSION) throw new Error("this is no frame");
      chunks = [bytes];
      needed = 36 + Number(bytes.readBigUInt64LE(28));
      if (size < needed) return;
      const body = bytes.subarray(36, needed);
      chunks = [bytes.subarray(needed)];
      size -= needed;
      needed = 36;
      const [n, idBytes, id] = [bytes.readUInt32LE(4), bytes.readUInt32LE(8), bytes.readBigUInt64LE(12)];
      yield { kind: bytes[3], n, idBytes, id, seconds: bytes.readDoubleLE(20), body };
    }
  };
}

function writeFrame(kind, body, { n = 1, calls = 0, id = 0n, seconds = 0 } = {}) {
  const header = Buffer.from([0x50, 0x53, VERSION, kind, ...new Array(32).fill(0)]);
  header.writeUInt32LE(n, 4);
  header.writeUInt32LE(calls, 8);
  header.writeBigUInt64LE(id, 12);
  header.writeDoubleLE(seconds, 20);
  header.writeBigUInt64LE(BigInt(body.length), 28);
  return Buffer.concat([header, body]);
}

const gap = (offset, length) => (length >= 1024 ? (64 - (offset % 64)) % 64 : 0); // a large payload is aligned

function readItems({ n, idBytes, seconds, body }) {
  let end = 26 * n + idBytes; // of the columns, and of the ids of the requests
  return Array.from({ length: n }, (_, i) => {
    const length = Number(body.readBigUInt64LE(8 * (n + i)));
    const begin = end + gap(end, length);
    end = begin + length;
    const payload = body.subarray(begin, end);
    const [id, deadline] = [body.readBigUInt64LE(8 * i), seconds + body.readDoubleLE(8 * (2 * n + i))];
    return { id, deadline, codecIn: body[24 * n + i], codecOut: body[25 * n + i], payload };
  });
}

function writeBody(items) {
  const columns = Buffer.alloc(17 * items.length);
  const pieces = [columns];
  let end = columns.length;
  items.forEach(({ id, status, answer }, i) => {
    columns.writeBigUInt64LE(id, 8 * i);
    columns.writeBigUInt64LE(BigInt(answer.length), 8 * (items.length + i));
    columns[16 * items.length + i] = status;
    pieces.push(Buffer.alloc(gap(end, answer.length)), answer);
    end += gap(end, answer.length) + answer.length;
  });
  return Buffer.concat(pieces);
}

// -- MessagePack -------------------------------------------------------------------------------------------------

function readMsgpack(bytes) {
  let at = 0;
  const skip = (n) => (at += n) - n;
  const uint = (n) => bytes.readUIntBE(skip(n), n);
  const text = (n) => bytes.toString("utf8", skip(n), at);
  const many = (n, read, found = []) => {
    while (found.length < n) found.push(read()); // not made beforehand: a broken payload may claim any number
    return found;
  };
  const map = (n) => Object.fromEntries(many(n, () => [value(), value()]));
  const value = () => {
    const tag = uint(1);
    if (tag < 0x80) return tag;
    if (tag < 0x90) return map(tag & 15);
    if (tag < 0xa0) return many(tag & 15, value);
    if (tag < 0xc0) return text(tag & 31);
    if (tag >= 0xe0) return tag - 256;
    if (tag <= 0xc3 && tag !== 0xc1) return { 0xc0: null, 0xc2: false, 0xc3: true }[tag];
    if (tag === 0xca) return bytes.readFloatBE(skip(4));
    if (tag === 0xcb) return bytes.readDoubleBE(skip(8));
    if (tag >= 0xcc && tag <= 0xce) return uint(1 << (tag - 0xcc));
    if (tag === 0xcf) return Number(bytes.readBigUInt64BE(skip(8)));
    if (tag >= 0xd0 && tag <= 0xd2) return bytes.readIntBE(skip(1 << (tag - 0xd0)), 1 << (tag - 0xd0));
    if (tag === 0xd3) return Number(bytes.readBigInt64BE(skip(8)));
    if (tag >= 0xd9 && tag <= 0xdb) return text(uint(1 << (tag - 0xd9)));
    if (tag >= 0xdc && tag <= 0xdd) return many(uint(2 << (tag - 0xdc)), value);
    if (tag >= 0xde) return map(uint(2 << (tag - 0xde)));
    throw new TypeError(`nothing is known of MessagePack's 0x${tag.toString(16)}`); // binary, and extensions
  };
  const found = value();
  if (at !== bytes.length) throw new RangeError("the MessagePack has bytes too many, or too few");
  return found;
}

function writeMsgpack(value) {
  const head = (tag, n) => Buffer.from([tag, n >>> 24, n >>> 16, n >>> 8, n]);
  const all = (tag, n, values) => Buffer.concat([head(tag, n), ...values.map(writeMsgpack)]);
  if (value === null) return Buffer.of(0xc0);
  if (typeof value === "boolean") return Buffer.of(value ? 0xc3 : 0xc2);
  if (typeof value === "string") return Buffer.concat([head(0xdb, Buffer.byteLength(value)), Buffer.from(value)]);
  if (Array.isArray(value)) return all(0xdd, value.length, value);
  if (typeof value === "object") return all(0xdf, Object.keys(value).length, Object.entries(value).flat());
  const bytes = Buffer.alloc(9, Number.isSafeInteger(value) ? 0xd3 : 0xcb);
  if (bytes[0] === 0xd3) bytes.writeBigInt64BE(BigInt(value), 1);
  else bytes.writeDoubleBE(value, 1);
  return bytes;
}
