// Answer batches by TensorFlow.js:
//
//     node in_node.mjs PACKAGES CONVERTED BATCHES ANSWERS
//
// PACKAGES is the folder with `node_modules`, CONVERTED what `tensorflowjs_converter` wrote.  BATCHES and ANSWERS are
// those of `in_tensorflow.py`.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [packages, converted, batches, answers] = process.argv.slice(2);
const tf = createRequire(join(resolve(packages), "_"))("@tensorflow/tfjs");

// Without its addon for Node it reads no files by itself.
const { weightsManifest, ...model } = JSON.parse(readFileSync(join(converted, "model.json"), "utf8"));
const files = weightsManifest.flatMap(({ paths }) => paths.map((path) => readFileSync(join(converted, path))));
const weights = {
  weightSpecs: weightsManifest.flatMap((group) => group.weights),
  weightData: Uint8Array.from(Buffer.concat(files)).buffer,
};
const graph = await tf.loadGraphModel(tf.io.fromMemory({ ...model, ...weights }));

const answered = {};
for (const [name, columns] of Object.entries(JSON.parse(readFileSync(batches, "utf8")))) {
  try {
    const tensors = graph.inputs.map(({ name: input, dtype }) => {
      const values = columns[input].map((value) => value ?? NaN);
      return [input, tf.tensor(values, undefined, dtype)];
    });
    const answer = await graph.executeAsync(Object.fromEntries(tensors));
    answered[name] = await answer.array();
  } catch (error) {
    answered[name] = String(error);
  }
}
writeFileSync(answers, JSON.stringify(answered));
