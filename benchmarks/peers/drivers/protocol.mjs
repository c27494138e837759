// The same as protocol.py, for peers that live on Node.js.
import { openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

export const URL_OF_STORE = process.env.BENCH_URL;
export const CONCURRENCY = Number(process.env.BENCH_CONCURRENCY ?? "10");
// Packages are installed in a folder of their own, not beside this file.
export const packages = createRequire(join(process.env.BENCH_HOME, "package.json"));

let pipe;
export function note() {
  pipe ??= openSync(process.env.BENCH_PIPE, "w");
  writeSync(pipe, ".");
}

const now = () => Number(process.hrtime.bigint()) / 1e9;

export async function drive({ setup, work, one, bulk }) {
  const word = process.argv[2];
  if (word === "setup") {
    await setup();
    process.exit(0);
  } else if (word === "work") {
    await work();
  } else {
    for await (const line of createInterface({ input: process.stdin })) {
      const asked = JSON.parse(line);
      const began = now();
      await { one, bulk }[asked.do](asked.jobs);
      const ended = now();
      console.log(JSON.stringify({ seconds: ended - began, at: ended }));
    }
    process.exit(0);
  }
}
