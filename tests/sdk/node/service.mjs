// A client that counts and can lose requests, and what every check does with batches.
//
// NIGHTSHIFT_NODE_SDK names the folder where the SDK is installed; the SDK itself reads OPENAI_BASE_URL and
// OPENAI_API_KEY.

import path from "node:path";
import { pathToFileURL } from "node:url";

import { Difference, equal } from "./checklist.mjs";

const entry = path.join(process.env.NIGHTSHIFT_NODE_SDK, "node_modules", "openai", "index.mjs");
export const { default: OpenAI, toFile } = await import(pathToFileURL(entry));

export const MODEL = "smollm2-135m-instruct";
export const CHAT = "/v1/chat/completions";
export const COMPLETIONS = "/v1/completions";
export const RESPONSES = "/v1/responses";
const TERMINAL = ["completed", "failed", "expired", "cancelled"];
// API Gateway hands at most 4.4 MiB to a function.
export const BEHIND_GATEWAY = Boolean(process.env.NIGHTSHIFT_BEHIND_GATEWAY);
const WAIT_MS = BEHIND_GATEWAY ? 600_000 : 180_000;

export const client = new OpenAI({ timeout: 60_000 });

/** Returns a client of its own, and the list of its requests; its first `losing` replies get lost on the way. */
export function wire({ losing = 0, ...options } = {}) {
  const requests = [];
  const counting = async (url, init) => {
    requests.push(`${init.method} ${new URL(url).pathname}`);
    const response = await fetch(url, init);
    if (losing > 0) {
      losing -= 1;
      await response.arrayBuffer();
      throw new TypeError("the reply got lost");
    }
    return response;
  };
  return { requests, client: new OpenAI({ fetch: counting, timeout: 60_000, ...options }) };
}

/** Returns the body of a greedy chat completion. */
export function chatBody(prompt = "Say hi.", maxTokens = 2, more = {}) {
  return {
    model: MODEL,
    messages: [{ role: "user", content: prompt }],
    max_tokens: maxTokens,
    temperature: 0,
    ...more,
  };
}

/** Returns one request as an object. */
export function request(customId, body, url = CHAT) {
  return { custom_id: customId, method: "POST", url, body };
}

/** Returns a batch file of requests. */
export function jsonl(requests) {
  return Buffer.from(requests.map((one) => `${JSON.stringify(one)}\n`).join(""));
}

/** Returns a batch file of `count` chats with the ids r-0, r-1, and so on. */
export function chats(count, maxTokens = 2) {
  return jsonl(ids(count).map((id) => request(id, chatBody("Say hi.", maxTokens))));
}

/** Returns the ids r-0, r-1, and so on. */
export function ids(count) {
  return Array.from({ length: count }, (_, index) => `r-${index}`);
}

/** Uploads a batch file. */
export async function upload(data, name = "batch.jsonl") {
  return client.files.create({ file: await toFile(data, name), purpose: "batch" });
}

/** Uploads a batch file and creates its batch. */
export async function create(data, endpoint = CHAT, more = {}) {
  const file = await upload(data);
  return client.batches.create({ input_file_id: file.id, endpoint, completion_window: "24h", ...more });
}

/** Polls until the batch has ended, or until what is given holds. */
export async function wait(batch, until = (one) => TERMINAL.includes(one.status)) {
  const end = performance.now() + WAIT_MS;
  for (;;) {
    const now = await client.batches.retrieve(batch.id);
    if (until(now)) return now;
    if (TERMINAL.includes(now.status) || performance.now() > end) {
      throw new Difference(`batch after ${WAIT_MS} ms or at its end: ${JSON.stringify(now)}`);
    }
    await new Promise((resolve) => setTimeout(resolve, BEHIND_GATEWAY ? 1000 : 100));
  }
}

/** Runs a batch to its end, which must be `completed`. */
export async function completed(data, endpoint = CHAT, more = {}) {
  const batch = await wait(await create(data, endpoint, more));
  equal("status", batch.status, "completed");
  return batch;
}

/** Returns a file's bytes. */
export async function content(fileId, options = {}) {
  const response = await client.files.content(fileId, options);
  return Buffer.from(await response.arrayBuffer());
}

async function records(fileId) {
  if (fileId === null) return [];
  const text = (await content(fileId)).toString("utf8");
  // Where Python's splitlines() cuts.
  const lines = text.split(/\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]/);
  equal(`${fileId}: newline at the end`, lines.pop(), "");
  equal(`${fileId}: lines`, lines, text.split("\n").slice(0, -1));
  return lines.map((line) => JSON.parse(line));
}

/** Returns the records of both files, with everything checked that holds for every ended batch. */
export async function results(batch) {
  const output = await records(batch.output_file_id);
  const errors = await records(batch.error_file_id);
  equal("has an output file", batch.output_file_id !== null, output.length > 0);
  equal("has an error file", batch.error_file_id !== null, errors.length > 0);
  const all = [...output, ...errors];
  equal("counts", batch.request_counts, { total: all.length, completed: output.length, failed: errors.length });
  equal("ids of records are unique", new Set(all.map((record) => record.id)).size, all.length);
  for (const record of all) {
    equal("keys of a record", Object.keys(record).sort(), ["custom_id", "error", "id", "response"]);
    equal("response or error", (record.response === null) !== (record.error === null), true);
  }
  for (const record of output) equal("status of an output record", record.response.status_code, 200);
  return { output, errors };
}

/** Returns the custom ids of records, in their order. */
export function customIds(records) {
  return records.map((record) => record.custom_id);
}

/** Returns the answers of a batch without error lines, by custom id. */
export async function bodies(batch) {
  const { output, errors } = await results(batch);
  equal("error lines", errors, []);
  return Object.fromEntries(output.map((record) => [record.custom_id, record.response.body]));
}
