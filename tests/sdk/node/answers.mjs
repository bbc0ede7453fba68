// What is in the result files: every endpoint's answers, and texts that break readers.

import { check, equal, starts, within } from "./checklist.mjs";
import {
  CHAT,
  COMPLETIONS,
  MODEL,
  RESPONSES,
  bodies,
  chatBody,
  client,
  completed,
  customIds,
  jsonl,
  request,
  results,
} from "./service.mjs";

const PROMPT = "Write a long story about a lighthouse.";

function file(lines, url) {
  return jsonl(Object.entries(lines).map(([id, body]) => request(id, body, url)));
}

check("chat completions have choices, logprobs and usage", async () => {
  const lines = {
    plain: chatBody(PROMPT, 5),
    logprobs: chatBody(PROMPT, 5, { logprobs: true, top_logprobs: 2 }),
    choices: chatBody(PROMPT, 8, { n: 2, temperature: 1.2, seed: 5 }),
  };
  const batch = await completed(file(lines, CHAT));
  const { plain, logprobs, choices } = await bodies(batch);
  starts("id", plain.id, "chatcmpl-");
  equal("object, model", [plain.object, plain.model], ["chat.completion", MODEL]);
  const [choice] = plain.choices;
  equal(
    "choice",
    [choice.index, choice.finish_reason, choice.logprobs, choice.message.role],
    [0, "length", null, "assistant"],
  );
  equal("usage", plain.usage.total_tokens, plain.usage.prompt_tokens + 5);
  const entries = logprobs.choices[0].logprobs.content;
  equal("text", Buffer.from(entries.flatMap((entry) => entry.bytes)).toString(), choice.message.content);
  for (const entry of entries) {
    within("logprob", entry.logprob, -100, 0);
    equal("alternatives", entry.top_logprobs.length, 2);
  }
  equal(
    "indexes",
    choices.choices.map(({ index }) => index),
    [0, 1],
  );
  const total = [plain, logprobs, choices].reduce((sum, { usage }) => sum + usage.total_tokens, 0);
  equal("usage of the batch", batch.usage.total_tokens, total);
});

check("max_tokens and stop end a text", async () => {
  const { whole } = await bodies(await completed(file({ whole: chatBody(PROMPT, 24) }, CHAT)));
  const text = whole.choices[0].message.content;
  const stop = text.slice(text.length / 2, text.length / 2 + 3);
  const lines = { short: chatBody(PROMPT, 3), stopped: chatBody(PROMPT, 24, { stop }) };
  const { short, stopped } = await bodies(await completed(file(lines, CHAT)));
  equal("short", [short.usage.completion_tokens, short.choices[0].finish_reason], [3, "length"]);
  equal(
    "stopped",
    [stopped.choices[0].message.content, stopped.choices[0].finish_reason],
    [text.split(stop)[0], "stop"],
  );
});

check("the same seed makes the same text in two batches", async () => {
  const seeded = (seed) => chatBody(PROMPT, 12, { temperature: 1, seed });
  const text = (body) => body.choices[0].message.content;
  const first = await bodies(await completed(file({ a: seeded(42) }, CHAT)));
  const second = await bodies(await completed(file({ b: seeded(43), a: seeded(42) }, CHAT)));
  equal("same", text(second.a), text(first.a));
  equal("another seed, another text", text(second.b) === text(first.a), false);
});

check("completions and responses run in batches of their own", async () => {
  const completion = { model: MODEL, prompt: "One, two,", max_tokens: 3, temperature: 0 };
  const completions = await bodies(await completed(file({ a: completion }, COMPLETIONS), COMPLETIONS));
  equal("completion", [completions.a.object, completions.a.choices[0].finish_reason], ["text_completion", "length"]);
  const response = { model: MODEL, input: "Say hi.", max_output_tokens: 100, temperature: 0 };
  const responses = await bodies(await completed(file({ a: response }, RESPONSES), RESPONSES));
  equal("response", [responses.a.object, responses.a.status], ["response", "completed"]);
  const [message] = responses.a.output;
  equal("message", [message.type, message.role, message.content[0].type], ["message", "assistant", "output_text"]);
  within("characters", message.content[0].text.length, 1, 1000);
});

check("texts with line separators, emoji and half an emoji keep one record a line", async () => {
  const odd = "a\u2028b\u0085c\u2029d\v\x1c \u{1f600}\ud83dz";
  const lines = {
    [odd]: { model: MODEL, prompt: odd, echo: true, max_tokens: 2, temperature: 0 },
    [`bad${odd}`]: { model: MODEL, prompt: "x", max_tokens: -1 },
  };
  const { output, errors } = await results(await completed(file(lines, COMPLETIONS), COMPLETIONS));
  equal("ids", [customIds(output), customIds(errors)], [[odd], [`bad${odd}`]]);
  // The half is no character, so that no text can hold it.
  starts("echo", output[0].response.body.choices[0].text, odd.toWellFormed());
});

check("request ids come with every answer", async () => {
  const { data, response, request_id: id } = await client.batches.list({ limit: 1 }).withResponse();
  starts("request id", id, "req_");
  equal("header", response.headers.get("x-request-id"), id);
  const batch = await client.batches.retrieve(data.data[0].id);
  starts("batch", batch._request_id, "req_");
});
