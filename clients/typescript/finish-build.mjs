// Says of each half of the build which module format it has: the files of both end in `.js`.
import { writeFileSync } from "node:fs";

for (const [folder, type] of [["esm", "module"], ["cjs", "commonjs"]]) {
  writeFileSync(new URL(`dist/${folder}/package.json`, import.meta.url), `{ "type": "${type}" }\n`);
}
