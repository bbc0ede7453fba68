// Batches: what is refused, how they end, and creating twice.

import { Difference, check, equal, refused, starts, within } from "./checklist.mjs";
import {
  CHAT,
  COMPLETIONS,
  MODEL,
  OpenAI,
  chatBody,
  chats,
  client,
  completed,
  create,
  customIds,
  ids,
  jsonl,
  request,
  results,
  upload,
  wait,
  wire,
} from "./service.mjs";

const { AuthenticationError, BadRequestError, ConflictError, NotFoundError } = OpenAI;

check("a bad parameter is a 400 and no batch", async () => {
  const file = (await upload(chats(1))).id;
  const refuse = async (what, changed, code, param, message) => {
    const call = () =>
      client.batches.create({ input_file_id: file, endpoint: CHAT, completion_window: "24h", ...changed });
    await refused(what, BadRequestError, call, 400, { code, param, message });
  };
  await refuse("endpoint", { endpoint: "/v1/x" }, "invalid_value", "endpoint", "/v1/x");
  await refuse("window", { completion_window: "48" }, "invalid_value", "completion_window", "48");
  await refuse("metadata", { metadata: { tags: ["a"] } }, "invalid_type", "metadata.tags", "an array");
  await refuse("no file", { input_file_id: undefined }, "missing_required_parameter", "input_file_id");
  const life = { output_expires_after: { anchor: "created_at", seconds: 1 } };
  await refuse("life", life, "integer_below_min_value", "output_expires_after.seconds");
});

check("metadata and the life of results are kept as given", async () => {
  const metadata = { job: "nightly", größe: "\u{1f600}" };
  const life = { output_expires_after: { anchor: "created_at", seconds: 7200 } };
  const batch = await completed(chats(1), CHAT, { metadata, ...life });
  equal("metadata", batch.metadata, metadata);
  const output = await client.files.retrieve(batch.output_file_id);
  equal("life", output.expires_at - output.created_at, 7200);
  equal("null", (await create(chats(1), CHAT, { metadata: null })).metadata, null);
});

check("what does not exist is a 404 that says so", async () => {
  const wanted = { param: "batch_id", message: "No batch found with id 'batch_7Qm'." };
  for (const call of ["retrieve", "cancel"]) {
    const error = await refused(call, NotFoundError, () => client.batches[call]("batch_7Qm"), 404, wanted);
    starts("printed", error.message, "404 No batch found");
  }
});

check("a wrong key is an AuthenticationError", async () => {
  const counted = wire({ apiKey: "sk-wrong-0123456789abcdefghij" });
  const wanted = { code: "invalid_api_key", message: "Incorrect API key" };
  await refused("list", AuthenticationError, () => counted.client.batches.list(), 401, wanted);
  equal("requests", counted.requests, ["GET /v1/batches"]);
});

check("a bad file fails its batch and names line, code and parameter", async () => {
  const { messages, ...lacking } = chatBody();
  const files = {
    "no JSON": [Buffer.concat([chats(1), Buffer.from("{\n")]), "invalid_json_line", 2, null],
    "the same custom_id": [Buffer.concat([chats(1), chats(1)]), "duplicate_custom_id", 2, "custom_id"],
    "no body": [jsonl([request("a", undefined)]), "missing_required_parameter", 1, "body"],
    "another endpoint": [jsonl([request("a", chatBody(), COMPLETIONS)]), "invalid_url", 1, "url"],
    "unknown model": [jsonl([request("a", { ...chatBody(), model: "gpt-9" })]), "model_not_found", 1, "body.model"],
    stream: [jsonl([request("a", { ...chatBody(), stream: true })]), "streaming_unsupported", 1, "body.stream"],
    "no messages": [jsonl([request("a", lacking)]), "invalid_request", 1, "body.messages"],
  };
  for (const [what, [data, code, line, param]] of Object.entries(files)) {
    const batch = await wait(await create(data));
    equal(`${what}: status`, batch.status, "failed");
    const [error, ...more] = batch.errors.data;
    equal(what, [error.code, error.line, error.param, more], [code, line, param, []]);
    equal(`${what}: unset`, [batch.output_file_id, batch.error_file_id, batch.in_progress_at], [null, null, null]);
  }
});

check("an input file that is not there fails the batch", async () => {
  const options = { input_file_id: "file-7Qm", endpoint: CHAT, completion_window: "24h" };
  const batch = await wait(await client.batches.create(options));
  equal("status", batch.status, "failed");
  const [error] = batch.errors.data;
  equal("error", [error.code, error.line, error.param], ["invalid_request", null, "file_id"]);
  starts("message", error.message, "Cannot find file file-7Qm");
});

check("a batch with good and bad lines keeps input order in both files", async () => {
  const lines = ids(12).map((id, index) => request(id, chatBody("Say hi.", index % 3 === 0 ? -1 : 12 - index)));
  const batch = await completed(jsonl(lines));
  const { output, errors } = await results(batch);
  equal(
    "errors",
    customIds(errors),
    ids(12).filter((_, index) => index % 3 === 0),
  );
  equal(
    "output",
    customIds(output),
    ids(12).filter((_, index) => index % 3 !== 0),
  );
  for (const { response } of errors) {
    equal("error", [response.status_code, response.body.error.param], [400, "max_tokens"]);
  }
});

check("a batch whose lines all fail is completed, without an output file", async () => {
  const batch = await completed(chats(3, -1));
  equal("output file", batch.output_file_id, null);
  equal("ids", customIds((await results(batch)).errors), ids(3));
});

async function afterCancel(batch, wanted) {
  equal("status", batch.status, "cancelled");
  within("cancelled_at", batch.cancelled_at, batch.cancelling_at, batch.expires_at);
  const { output, errors } = await results(batch);
  equal("all ids", customIds([...output, ...errors]).sort(), wanted.toSorted());
  for (const { response, error } of errors)
    equal("a line that never ran", [response, error.code], [null, "batch_cancelled"]);
  return output.length;
}

check("a batch that is cancelled at once loses no line", async () => {
  const batch = await create(chats(40, 200));
  const cancelling = await client.batches.cancel(batch.id);
  equal("status", ["cancelling", "cancelled"].includes(cancelling.status), true);
  const done = await wait(batch);
  await afterCancel(done, done.request_counts.total ? ids(40) : []);
});

check("a batch that is cancelled while it runs keeps what is done", async () => {
  const wanted = ids(300);
  const batch = await create(jsonl(wanted.map((id, index) => request(id, chatBody("Tell me a story.", 1 + index)))));
  await wait(batch, (now) => now.request_counts.completed > 0);
  const first = await client.batches.cancel(batch.id);
  const again = await client.batches.cancel(batch.id);
  equal("cancelled twice", again.cancelling_at, first.cancelling_at);
  within("lines done", await afterCancel(await wait(batch), wanted), 1, 299);
});

check("a completed batch cannot be cancelled, and that is said once", async () => {
  const batch = await completed(chats(1));
  const counted = wire();
  const wanted = { message: "Cannot cancel a batch with status 'completed'." };
  await refused("cancel", ConflictError, () => counted.client.batches.cancel(batch.id), 409, wanted);
  equal("requests", counted.requests, [`POST /v1/batches/${batch.id}/cancel`]);
});

check("a create whose reply got lost makes one batch", async () => {
  const file = (await upload(chats(1))).id;
  const options = { input_file_id: file, endpoint: CHAT, completion_window: "24h" };
  const counted = wire({ losing: 1 });
  const { data, response } = await counted.client.batches.create(options).withResponse();
  equal("requests", counted.requests, Array(2).fill("POST /v1/batches"));
  equal("says so", response.headers.has("x-nightshift-deduplicated"), true);
  const newest = (await client.batches.list({ limit: 2 })).data;
  equal("newest", newest[0].id, data.id);
  equal("batches of this file", newest.filter((batch) => batch.input_file_id === file).length, 1);
  if ((await client.batches.create(options)).id === data.id) throw new Difference("a second wish made no second batch");
});

check("an Idempotency-Key makes one batch, of one body only", async () => {
  const file = (await upload(chats(1))).id;
  const counted = wire();
  const make = (window) => {
    const body = { input_file_id: file, endpoint: CHAT, completion_window: window };
    return counted.client.batches.create(body, { headers: { "Idempotency-Key": `key-of-${file}` } });
  };
  equal("again", (await make("24h")).id, (await make("24h")).id);
  await refused("another body", ConflictError, () => make("1h"), 409, { code: "idempotency_key_reused" });
  equal("requests", counted.requests.length, 3);
});

check("the batch names its model", async () => {
  equal("model", (await completed(chats(1))).model, MODEL);
});
