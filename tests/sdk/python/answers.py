"""What is in the result files: every endpoint's answers as the SDK's own types, and texts that break readers."""

import asyncio
import json
import os
import subprocess
import tempfile

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from .checklist import Difference, check, contains, equal, starts, within
from .service import (
    CHAT,
    COMPLETIONS,
    MODEL,
    TERMINAL,
    RESPONSES,
    bodies,
    chat_body,
    chats,
    client,
    custom_ids,
    ended,
    jsonl,
    records,
    request,
    results,
    tokens,
)

_PROMPT = "Write a long story about a lighthouse."


def _chats(**lines):
    """Runs one batch of chat bodies, and returns the answers as the SDK's type."""
    batch = ended(jsonl(request(name, body) for name, body in lines.items()))
    return {name: ChatCompletion.model_validate(body) for name, body in bodies(batch).items()}


@check("a chat completion is one of the SDK's")
def _():
    answer = _chats(a=chat_body(_PROMPT, 6))["a"]
    starts("id", answer.id, "chatcmpl-")
    equal("object, model", (answer.object, answer.model), ("chat.completion", MODEL))
    choice = answer.choices[0]
    equal("choice", (choice.index, choice.finish_reason, choice.logprobs), (0, "length", None))
    equal(
        "message",
        (choice.message.role, choice.message.refusal, bool(choice.message.content)),
        ("assistant", None, True),
    )
    equal("completion tokens", answer.usage.completion_tokens, 6)
    within("prompt tokens", answer.usage.prompt_tokens, 10, 60)
    equal("total", answer.usage.total_tokens, answer.usage.prompt_tokens + 6)


@check("an alias of the model answers as the model")
def _():
    alias = chat_body(model="HuggingFaceTB/SmolLM2-135M-Instruct")
    batch = ended(jsonl([request("a", alias), request("b", chat_body())]))
    answers = bodies(batch)
    equal("models", (batch.model, answers["a"]["model"], answers["b"]["model"]), (MODEL, MODEL, MODEL))
    equal("texts", answers["a"]["choices"], answers["b"]["choices"])


@check("max_tokens, max_completion_tokens and stop end a text")
def _():
    whole = _chats(a=chat_body(_PROMPT, 24))["a"].choices[0].message.content
    middle = whole[len(whole) // 2 : len(whole) // 2 + 3]
    answers = _chats(
        short=chat_body(_PROMPT, 3),
        newer={**chat_body(_PROMPT, None), "max_completion_tokens": 3},
        stop=chat_body(_PROMPT, 24, stop=middle),
        stops=chat_body(_PROMPT, 24, stop=["never said", middle]),
        unsaid=chat_body(_PROMPT, 24, stop=["never said"]),
    )
    for name in ("short", "newer"):
        answer = answers[name]
        equal(name, (answer.usage.completion_tokens, answer.choices[0].finish_reason), (3, "length"))
        starts(name, whole, answer.choices[0].message.content)
    for name in ("stop", "stops"):
        choice = answers[name].choices[0]
        equal(name, (choice.message.content, choice.finish_reason), (whole.split(middle)[0], "stop"))
    equal("unsaid", answers["unsaid"].choices[0].message.content, whole)


@check("logprobs come with every token")
def _():
    answers = _chats(
        plain=chat_body(_PROMPT, 5),
        top=chat_body(_PROMPT, 5, logprobs=True, top_logprobs=3),
        one=chat_body(_PROMPT, 5, logprobs=True),
    )
    top = answers["top"].choices[0]
    equal("the text is the same", top.message.content, answers["plain"].choices[0].message.content)
    entries = top.logprobs.content
    equal("tokens", len(entries), 5)
    equal("text", b"".join(bytes(entry.bytes) for entry in entries).decode(), top.message.content)
    for entry in entries:
        within("logprob", entry.logprob, -100, 0)
        equal("alternatives", len(entry.top_logprobs), 3)
        equal("greedy takes the best", entry.top_logprobs[0].logprob, entry.logprob)
        logprobs = [other.logprob for other in entry.top_logprobs]
        equal("best first", logprobs, sorted(logprobs, reverse=True))
    equal("none asked", [entry.top_logprobs for entry in answers["one"].choices[0].logprobs.content], [[]] * 5)


@check("n makes choices that differ")
def _():
    answer = _chats(a=chat_body(_PROMPT, 12, n=3, temperature=1.2, seed=5))["a"]
    equal("indexes", [choice.index for choice in answer.choices], [0, 1, 2])
    texts = {choice.message.content for choice in answer.choices}
    within("texts", len(texts), 2, 3)
    within("completion tokens", answer.usage.completion_tokens, 3, 36)
    greedy = _chats(a=chat_body(_PROMPT, 4, n=2))["a"]
    equal("greedy", greedy.choices[0].message, greedy.choices[1].message)


@check("the same seed makes the same text, in any company, and by `nightshift run`")
def _():
    seeded = request("seeded", chat_body(_PROMPT, 16, temperature=1, top_p=0.9, seed=42))
    other = request("other", chat_body(_PROMPT, 16, temperature=1, top_p=0.9, seed=43))
    company = [request(f"c-{index}", chat_body("Tell me a story.", 1 + index, temperature=1)) for index in range(5)]

    def texts(answers):
        return {name: answer["choices"][0]["message"]["content"] for name, answer in answers.items()}

    alone = texts(bodies(ended(jsonl([seeded]))))["seeded"]
    together = texts(bodies(ended(jsonl([*company, other, seeded]))))
    equal("text", together["seeded"], alone)
    equal("another seed, another text", together["other"] == alone, False)
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        with open(source, "wb") as file:
            file.write(jsonl([seeded, other]))
        subprocess.run(
            [os.environ["NIGHTSHIFT_BIN"], "run", source, "--output", target], check=True, capture_output=True
        )
        with open(target, encoding="utf-8") as file:
            run = {record["custom_id"]: record["response"]["body"] for record in map(json.loads, file)}
    equal("text of `nightshift run`", texts(run), {"seeded": alone, "other": together["other"]})


@check("completions are the SDK's, with echo, lists and logprobs")
def _():
    batch = ended(
        jsonl(
            request(name, {"model": MODEL, "max_tokens": 3, "temperature": 0, **body}, url=COMPLETIONS)
            for name, body in {
                "plain": {"prompt": "One, two,"},
                "echo": {"prompt": "One, two,", "echo": True},
                "list": {"prompt": ["One, two,", "Red, green,"], "n": 2, "temperature": 1, "seed": 1},
                "logprobs": {"prompt": "One, two,", "logprobs": 2},
            }.items()
        ),
        COMPLETIONS,
    )
    answers = {name: Completion.model_validate(body) for name, body in bodies(batch).items()}
    plain = answers["plain"]
    starts("id", plain.id, "cmpl-")
    equal("object, model", (plain.object, plain.model), ("text_completion", MODEL))
    text = plain.choices[0].text
    equal("choice", (plain.choices[0].finish_reason, bool(text)), ("length", True))
    equal("echo", answers["echo"].choices[0].text, "One, two," + text)
    equal("list", [choice.index for choice in answers["list"].choices], [0, 1, 2, 3])
    logprobs = answers["logprobs"].choices[0].logprobs
    equal("tokens", "".join(logprobs.tokens), text)
    equal("logprobs", (len(logprobs.token_logprobs), len(logprobs.top_logprobs)), (3, 3))
    equal("offsets", logprobs.text_offset[0], 0)


@check("responses are the SDK's, whole and cut")
def _():
    lines = {
        "whole": {"input": "Say hi.", "max_output_tokens": 100},
        "cut": {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": _PROMPT}]}],
            "max_output_tokens": 3,
        },
        "told": {
            "input": "Say hi.",
            "instructions": "You speak like a pirate.",
            "max_output_tokens": 3,
            "metadata": {"k": "v"},
        },
    }
    batch = ended(
        jsonl(request(name, {"model": MODEL, "temperature": 0, **body}, url=RESPONSES) for name, body in lines.items()),
        RESPONSES,
    )
    answers = {name: Response.model_validate(body) for name, body in bodies(batch).items()}
    whole, cut, told = answers["whole"], answers["cut"], answers["told"]
    starts("id", whole.id, "resp_")
    equal(
        "whole",
        (whole.object, whole.status, whole.model, bool(whole.output_text)),
        ("response", "completed", MODEL, True),
    )
    equal("message", (whole.output[0].type, whole.output[0].role), ("message", "assistant"))
    equal("cut", (cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    equal("tokens", (cut.usage.output_tokens, cut.usage.total_tokens), (3, cut.usage.input_tokens + 3))
    equal("told", (told.instructions, told.metadata), ("You speak like a pirate.", {"k": "v"}))
    used = sum(answer.usage.total_tokens for answer in answers.values())
    equal("usage", tokens(batch)[2], used)


#: Characters at which readers cut lines, one beyond the first plane, and half of another.
_ODD = "a\u2028b\u0085c\u2029d\x0b\x1c \U0001f600\ud83dz"


@check("texts with line separators, emoji and half an emoji survive splitlines()")
def _():
    batch = ended(
        jsonl(
            [
                request(
                    _ODD,
                    {"model": MODEL, "prompt": _ODD, "echo": True, "max_tokens": 2, "temperature": 0},
                    url=COMPLETIONS,
                ),
                request("bad" + _ODD, {"model": MODEL, "prompt": "x", "max_tokens": -1}, url=COMPLETIONS),
            ]
        ),
        COMPLETIONS,
    )
    output, errors = results(batch)
    equal("ids", (custom_ids(output), custom_ids(errors)), ([_ODD], ["bad" + _ODD]))
    # The half is no character, so that no text can hold it.
    starts("echo", output[0]["response"]["body"]["choices"][0]["text"], _ODD.replace("\ud83d", "\ufffd"))


@check("raw line separators in a line do not cut it")
def _():
    body = chat_body("a\u2028b\u0085c\u2029d", 2)
    line = json.dumps(request("raw \u2028", body), ensure_ascii=False) + "\r\n"
    batch = ended(b"\xef\xbb\xbf" + line.encode())
    equal("ids", custom_ids(records(batch.output_file_id)), ["raw \u2028"])


@check("the asynchronous client runs a batch")
def _():
    async def run():
        async with openai.AsyncOpenAI(timeout=60) as sdk:
            file = await sdk.files.create(file=("a.jsonl", chats(2)), purpose="batch")
            batch = await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            while batch.status not in TERMINAL:
                await asyncio.sleep(0.1)
                batch = await sdk.batches.retrieve(batch.id)
            listed = [one.id async for one in sdk.batches.list(limit=1)]
            return batch, listed[0], (await sdk.files.content(batch.output_file_id)).text

    batch, newest, text = asyncio.run(asyncio.wait_for(run(), 180))
    equal("batch", (batch.status, newest), ("completed", batch.id))
    equal("ids", [json.loads(line)["custom_id"] for line in text.splitlines()], ["r-0", "r-1"])


@check("request ids come with every answer")
def _():
    raw = client.batches.with_raw_response.list(limit=1)
    starts("x-request-id", raw.headers["x-request-id"], "req_")
    starts("content-type", raw.headers["content-type"], "application/json")
    page = raw.parse()
    batch = client.batches.retrieve(page.data[0].id)
    starts("batch", batch._request_id, "req_")
    equal("ids differ", batch._request_id == raw.headers["x-request-id"], False)
    try:
        client.batches.retrieve("batch_x")
    except openai.NotFoundError as error:
        starts("error", error.request_id, "req_")
        contains("printed", str(error), "batch_x")
    else:
        raise Difference("an unknown batch was found")
