/** The program `clients/vectors/server.py`, in a process of its own; and the files of vectors. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const VECTORS = new URL("../../../vectors/", import.meta.url);

export type Json = Record<string, unknown>;

/** What the server does for a try. */
export interface ScriptedAnswer {
  readonly delay?: number;
  readonly refuse?: boolean;
}

export interface VectorCall {
  readonly do: string;
  readonly item?: unknown;
  readonly item_base64?: string;
  readonly items?: readonly unknown[];
  readonly job?: string;
  readonly jobs?: readonly string[];
  readonly options?: Json;
  readonly at?: number;
  readonly cancel_at?: number;
  readonly ends: number;
  readonly gets: Json;
}

export interface VectorTry {
  readonly id: string;
  readonly attempt: number;
  readonly at: number;
  readonly method?: string;
  readonly path?: string;
  readonly json?: unknown;
  readonly base64?: string;
  readonly timeout?: number;
  readonly headers?: Record<string, string | null>;
}

export interface Vector {
  readonly name: string;
  readonly client?: Json;
  readonly prefix?: string;
  readonly chance?: number;
  readonly wall?: number;
  readonly needs?: readonly string[];
  readonly calls: readonly VectorCall[];
  readonly close_at?: number;
  readonly answers: Record<string, readonly ScriptedAnswer[]>;
  readonly tries: readonly VectorTry[];
  readonly stats?: Json;
}

/** What the server was sent. */
export interface Seen {
  readonly id: string;
  readonly attempt: number;
  readonly method: string;
  readonly path: string;
  readonly headers: Record<string, string>;
  readonly base64: string;
}

/** The vectors of each file, by its name. */
export function readVectors(): Map<string, Vector[]> {
  const names = readdirSync(VECTORS).filter((name) => name.endsWith(".json"));
  return new Map(
    names.sort().map((name) => {
      const page = JSON.parse(readFileSync(new URL(name, VECTORS), "utf8")) as { vectors: Vector[] };
      return [name, page.vectors];
    }),
  );
}

export class ScriptedServer {
  private constructor(
    private readonly process: ChildProcess,
    readonly port: number,
    readonly refusedPort: number,
  ) {}

  static async start(): Promise<ScriptedServer> {
    const program = new URL("server.py", VECTORS).pathname;
    const started = spawn(process.env["PYTHON"] ?? "python3", [program], { stdio: ["pipe", "pipe", "inherit"] });
    const [line] = (await once(createInterface(started.stdout), "line")) as [string];
    const { port, refused_port: refusedPort } = JSON.parse(line) as { port: number; refused_port: number };
    return new ScriptedServer(started, port, refusedPort);
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Answer as `vector` says from now on. */
  async play(vector: Vector): Promise<void> {
    await fetch(`${this.url}/vectors/script`, { method: "PUT", body: JSON.stringify({ answers: vector.answers }) });
  }

  /** What was sent since then. */
  async log(): Promise<Seen[]> {
    return (await (await fetch(`${this.url}/vectors/log`)).json()) as Seen[];
  }

  async stop(): Promise<void> {
    const ended = once(this.process, "exit");
    this.process.stdin?.end();
    await ended;
  }
}
