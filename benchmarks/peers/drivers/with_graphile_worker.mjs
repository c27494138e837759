// graphile-worker: a local queue of 500 and completions in batches, which its docs advise for throughput.
import { CONCURRENCY, URL_OF_STORE, drive, note, packages } from "./protocol.mjs";

const { Logger, makeWorkerUtils, run } = packages("graphile-worker");
const logger = new Logger(() => () => {});

let opened;
const utils = () => (opened ??= makeWorkerUtils({ connectionString: URL_OF_STORE, logger }));

await drive({
  async setup() {
    const made = await utils();
    await made.migrate();
    await made.release();
  },
  async one(jobs) {
    const made = await utils();
    for (let n = 0; n < jobs; n++) await made.addJob("note", {});
  },
  async bulk(jobs) {
    const made = await utils();
    for (let begin = 0; begin < jobs; begin += 1000) {
      const many = Math.min(1000, jobs - begin);
      await made.addJobs(Array.from({ length: many }, () => ({ identifier: "note", payload: {} })));
    }
  },
  async work() {
    const runner = await run({
      logger,
      taskList: { note: async () => note() },
      preset: {
        worker: {
          connectionString: URL_OF_STORE,
          concurrentJobs: CONCURRENCY,
          maxPoolSize: CONCURRENCY + 2,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    });
    await runner.promise;
  },
});
