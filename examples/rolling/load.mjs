// Asks for one square after the other with the TypeScript client, until the standard input ends.
//
//   node load.mjs PACKAGE [URL FIRST CALLERS PAUSE]
//
// PACKAGE is the folder of the built client.  For each question it writes the number, and behind it why it failed, if it
// did.  Without a URL it only shows that the client can be loaded.
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const [folder, url, first, callers, pause] = process.argv.slice(2);
// From within the package its own name leads to its build, as it does for who has installed it.
const { Client } = createRequire(resolve(folder, "package.json"))("penstock-client");

if (url !== undefined) {
  const client = new Client(url);
  let next = Number(first);
  let over = false;
  process.stdin.on("end", () => (over = true)).resume();

  const ask = async () => {
    while (!over) {
      const number = next++;
      try {
        const answer = await client.predict(number);
        console.log(answer === number * number ? `${number}` : `${number} the answer is ${answer}`);
      } catch (error) {
        console.log(`${number} ${String(error).replaceAll("\n", " ")}`);
      }
      await sleep(1000 * Number(pause));
    }
  };
  await Promise.all(Array.from({ length: Number(callers) }, ask));
  await client.close();
}
