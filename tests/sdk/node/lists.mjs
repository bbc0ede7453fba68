// Lists: pages, order and cursors. These checks come first: the service is still empty.

import { check, equal, refused } from "./checklist.mjs";
import { MODEL, OpenAI, chats, client, completed, create, upload, wait, wire } from "./service.mjs";

async function walk(pages) {
  const ids = [];
  for await (const one of pages) ids.push(one.id);
  return ids;
}

check("lists of an empty service are empty", async () => {
  for (const list of [client.files.list(), client.batches.list()]) {
    const page = await list;
    equal("page", [page.data, page.has_more], [[], false]);
  }
});

check("files are listed over three pages, newest first", async () => {
  const made = [];
  for (let index = 0; index < 8; index += 1) made.push((await upload(chats(1), `${index}.jsonl`)).id);
  const counted = wire();
  equal("walked", await walk(counted.client.files.list({ limit: 3 })), made.toReversed());
  equal("requests", counted.requests, Array(3).fill("GET /v1/files"));
  equal("ascending", await walk(client.files.list({ limit: 3, order: "asc" })), made);
  equal("after the last", (await client.files.list({ after: made[0] })).data, []);
  const page = await client.files.list({ limit: 3 });
  await client.files.delete(page.data[2].id);
  equal(
    "after a deleted one",
    (await page.getNextPage()).data.map((file) => file.id),
    [made[4], made[3], made[2]],
  );
});

check("batches are listed over three pages, newest first", async () => {
  const made = [];
  for (let index = 0; index < 5; index += 1) made.push((await create(chats(1))).id);
  const counted = wire();
  equal("walked", await walk(counted.client.batches.list({ limit: 2 })), made.toReversed());
  equal("requests", counted.requests, Array(3).fill("GET /v1/batches"));
  for await (const batch of client.batches.list()) equal("end", (await wait(batch)).status, "completed");
});

check("lists refuse limits and cursors that cannot be", async () => {
  const limit = (code) => ({ code, param: "limit" });
  const { BadRequestError } = OpenAI;
  await refused("0", BadRequestError, () => client.batches.list({ limit: 0 }), 400, limit("integer_below_min_value"));
  await refused(
    "101",
    BadRequestError,
    () => client.batches.list({ limit: 101 }),
    400,
    limit("integer_above_max_value"),
  );
  const cursor = { code: "invalid_value", param: "after" };
  await refused("after", BadRequestError, () => client.files.list({ after: "nonsense" }), 400, cursor);
});

check("result files are listed by their purpose", async () => {
  const batch = await completed(chats(1));
  const { data } = await client.files.list({ purpose: "batch_output", limit: 1 });
  equal("newest", [data[0].id, data[0].filename], [batch.output_file_id, `${batch.id}_output.jsonl`]);
});

check("models are listed, and found by names with slashes", async () => {
  equal("models", await walk(client.models.list()), [MODEL]);
  for (const name of [MODEL, "HuggingFaceTB/SmolLM2-135M-Instruct"]) {
    const model = await client.models.retrieve(name);
    equal(name, [model.id, model.object, model.owned_by], [MODEL, "model", "HuggingFaceTB"]);
  }
  const unknown = { code: "model_not_found", param: "model", message: "a/b" };
  await refused("unknown", OpenAI.NotFoundError, () => client.models.retrieve("a/b"), 404, unknown);
});
