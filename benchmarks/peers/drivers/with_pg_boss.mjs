// pg-boss: batches of 500, asked for twice a second, as often as it allows.
import { URL_OF_STORE, drive, note, packages } from "./protocol.mjs";

const PgBoss = packages("pg-boss");
const QUEUE = "bench";

let opened;
async function boss() {
  if (!opened) {
    const made = new PgBoss({ connectionString: URL_OF_STORE, supervise: false, schedule: false });
    made.on("error", (error) => console.error(error));
    opened = made.start().then(() => made);
  }
  return opened;
}

await drive({
  async setup() {
    await (await boss()).createQueue(QUEUE);
  },
  async one(jobs) {
    const made = await boss();
    for (let n = 0; n < jobs; n++) await made.send(QUEUE, {});
  },
  async bulk(jobs) {
    const made = await boss();
    for (let begin = 0; begin < jobs; begin += 1000) {
      const many = Math.min(1000, jobs - begin);
      await made.insert(Array.from({ length: many }, () => ({ name: QUEUE, data: {} })));
    }
  },
  async work() {
    const made = await boss();
    process.once("SIGTERM", () => process.exit(0));
    await made.work(QUEUE, { batchSize: 500, pollingIntervalSeconds: 0.5 }, async (jobs) => {
      for (const _ of jobs) note();
    });
  },
});
