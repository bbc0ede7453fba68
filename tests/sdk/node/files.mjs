// Files: every way to hand one over, reading them back, and Uploads.

import fs from "node:fs";
import os from "node:os";
import path from "node:path";

import { Difference, check, equal, refused, starts, within } from "./checklist.mjs";
import { BEHIND_GATEWAY, OpenAI, chats, client, content, toFile, upload, wire } from "./service.mjs";

const { BadRequestError, NotFoundError } = OpenAI;
const THIRTY_DAYS_S = 30 * 24 * 3600;
const PART_BYTES = 4 * 1024 * 1024;

async function asUploaded(file, name, data) {
  starts("id", file.id, "file-");
  starts("request id", file._request_id, "req_");
  const { filename, bytes, object, purpose, status, status_details: details } = file;
  const wanted = {
    filename: name,
    bytes: data.length,
    object: "file",
    purpose: "batch",
    status: "processed",
    details: null,
  };
  equal("file", { filename, bytes, object, purpose, status, details }, wanted);
  within("created_at", file.created_at, Date.now() / 1000 - 60, Date.now() / 1000 + 60);
  equal("retrieved", await client.files.retrieve(file.id), file);
  equal("content is the same", (await content(file.id)).equals(data), true);
}

check("a file is made of a stream, a buffer, a File and a Response", async () => {
  const data = chats(2);
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "nightshift-"));
  try {
    const name = path.join(folder, "nightly run.jsonl");
    fs.writeFileSync(name, data);
    const make = (file) => client.files.create({ file, purpose: "batch" });
    await asUploaded(await make(fs.createReadStream(name)), "nightly run.jsonl", data);
    await asUploaded(await make(await toFile(data, "a.jsonl")), "a.jsonl", data);
    await asUploaded(await make(await toFile(fs.createReadStream(name), "b.jsonl")), "b.jsonl", data);
    await asUploaded(await make(new File([data], "größe \u{1f600}.jsonl")), "größe \u{1f600}.jsonl", data);
    const first = await upload(data);
    await asUploaded(await make(await toFile(await client.files.content(first.id), "c.jsonl")), "c.jsonl", data);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});

check("a large file is streamed whole", async () => {
  const data = chats(BEHIND_GATEWAY ? 20_000 : 40_000);
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "nightshift-"));
  try {
    const name = path.join(folder, "large.jsonl");
    fs.writeFileSync(name, data);
    const file = await client.files.create({ file: fs.createReadStream(name), purpose: "batch" });
    await asUploaded(file, "large.jsonl", data);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});

check("a file expires when asked, and a batch file after 30 days", async () => {
  const make = async (seconds) =>
    client.files.create({
      file: await toFile(chats(1), "a.jsonl"),
      purpose: "batch",
      expires_after: { anchor: "created_at", seconds },
    });
  const asked = await make(3600);
  equal("asked", asked.expires_at - asked.created_at, 3600);
  const file = await upload(chats(1));
  equal("default", file.expires_at - file.created_at, THIRTY_DAYS_S);
  const param = "expires_after[seconds]";
  await refused("short", BadRequestError, () => make(3599), 400, { code: "integer_below_min_value", param });
  await refused("long", BadRequestError, () => make(THIRTY_DAYS_S + 1), 400, {
    code: "integer_above_max_value",
    param,
  });
});

check("a file that cannot be a batch is refused", async () => {
  const wanted = { code: "invalid_file_format", param: "file", message: "jsonl" };
  await refused("name", BadRequestError, () => upload(chats(1), "notes.txt"), 400, wanted);
  await refused("empty", BadRequestError, () => upload(Buffer.alloc(0)), 400, wanted);
  await refused("no JSON", BadRequestError, () => upload(Buffer.from("custom_id,prompt\n")), 400, wanted);
});

check("waitForProcessing returns on its first poll", async () => {
  const file = await upload(chats(1));
  const counted = wire();
  equal("file", (await counted.client.files.waitForProcessing(file.id)).id, file.id);
  equal("requests", counted.requests, [`GET /v1/files/${file.id}`]);
});

check("content comes by range", async () => {
  const data = chats(50);
  const file = await upload(data);
  const response = await client.files.content(file.id, { headers: { Range: "bytes=3-12" } });
  equal("answer", [response.status, response.headers.get("content-range")], [206, `bytes 3-12/${data.length}`]);
  equal("bytes", Buffer.from(await response.arrayBuffer()), data.subarray(3, 13));
});

check("a deleted file is gone, and was there only once", async () => {
  const file = await upload(chats(1));
  equal("deleted", { ...(await client.files.delete(file.id)) }, { id: file.id, object: "file", deleted: true });
  const wanted = { param: "id", message: `No such File object: ${file.id}` };
  for (const call of ["retrieve", "content", "delete"]) {
    await refused(call, NotFoundError, () => client.files[call](file.id), 404, wanted);
  }
});

async function startUpload(bytes) {
  return client.uploads.create({ bytes, filename: "parts.jsonl", mime_type: "application/jsonl", purpose: "batch" });
}

check("a file is uploaded in parts", async () => {
  const data = chats(60_000);
  const started = await startUpload(data.length);
  equal("pending", [started.object, started.status, started.bytes], ["upload", "pending", data.length]);
  const pieces = [];
  for (let at = 0; at < data.length; at += PART_BYTES) pieces.push(data.subarray(at, at + PART_BYTES));
  // All at once: the order of `part_ids` decides.
  const parts = await Promise.all(
    pieces.map(async (piece) => client.uploads.parts.create(started.id, { data: await toFile(piece, "part") })),
  );
  const done = await client.uploads.complete(started.id, { part_ids: parts.map((part) => part.id) });
  equal("completed", [done.status, done.file.bytes], ["completed", data.length]);
  await asUploaded(await client.files.retrieve(done.file.id), "parts.jsonl", data);
});

async function refusedAtOnce(what, counted, call) {
  const before = counted.requests.length;
  let result;
  try {
    result = await call();
  } catch (error) {
    equal(`${what}: status is 400 or 409`, [400, 409].includes(error.status), true);
    equal(`${what}: requests`, counted.requests.length - before, 1);
    return;
  }
  throw new Difference(`${what}: got ${JSON.stringify(result)}, want an error`);
}

check("an upload is completed once, and only by what it announced", async () => {
  const data = chats(4);
  const start = async (bytes) => {
    const started = await startUpload(bytes);
    const part = await client.uploads.parts.create(started.id, { data: await toFile(data, "part") });
    return { id: started.id, complete: { part_ids: [part.id] } };
  };
  const wrong = await start(data.length + 1);
  const wanted = { code: "bytes_mismatch", param: "part_ids", message: String(data.length) };
  await refused("wrong total", BadRequestError, () => client.uploads.complete(wrong.id, wrong.complete), 400, wanted);
  const counted = wire();
  const whole = await start(data.length);
  await client.uploads.complete(whole.id, whole.complete);
  await refusedAtOnce("complete twice", counted, () => counted.client.uploads.complete(whole.id, whole.complete));
  const dropped = await start(data.length);
  equal("cancelled", (await client.uploads.cancel(dropped.id)).status, "cancelled");
  await refusedAtOnce("after cancel", counted, () => counted.client.uploads.complete(dropped.id, dropped.complete));
});
