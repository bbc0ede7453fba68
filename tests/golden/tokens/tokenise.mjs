// Reads JSON lines {"text", "special"} on stdin, writes {"text", "special", "ids"} on stdout.
// The ids are those of llama.cpp, through the prebuilt library of node-llama-cpp.
//
//   node tokenise.mjs MODEL.gguf NODE_FOLDER < texts.jsonl > hostile.jsonl
//
// NODE_FOLDER is where `npm i node-llama-cpp @node-llama-cpp/linux-x64` was run.
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [modelPath, nodeFolder] = process.argv.slice(2);
const entry = path.resolve(nodeFolder, "node_modules/node-llama-cpp/dist/index.js");
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(entry));

const llama = await getLlama({
    gpu: false, build: "never", maxThreads: 1, logLevel: LlamaLogLevel.error
});
const model = await llama.loadModel({ modelPath: path.resolve(modelPath), vocabOnly: true });

// JSON in ASCII, so that no reader splits a line at U+2028 or the like.
const ascii = (value) => JSON.stringify(value).replace(
    /[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

const lines = [];
for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    if (line === "") continue;
    const { text, special } = JSON.parse(line);
    if (!text.isWellFormed()) throw new Error("lone surrogate in " + line);
    const ids = Array.from(model.tokenize(text, special));
    lines.push(`{"text": ${ascii(text)}, "special": ${special}, "ids": [${ids.join(", ")}]}\n`);
}
process.stdout.write(lines.join(""), () => process.exit(0));
