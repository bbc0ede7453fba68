"""A client that counts and can lose requests, and what every check does with batches.

The SDK itself reads `OPENAI_BASE_URL` and `OPENAI_API_KEY`.
"""

import importlib
import json
import os
import time

import openai

from .checklist import Difference, equal

MODEL = "smollm2-135m-instruct"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
TERMINAL = ("completed", "failed", "expired", "cancelled")
#: On AWS, S3 answers downloads after a redirect, and API Gateway answers what its authorizer refuses.
BEHIND_GATEWAY = bool(os.environ.get("NIGHTSHIFT_BEHIND_GATEWAY"))
WAIT_S = 600 if BEHIND_GATEWAY else 180
#: An emulator answers ten polls a second of everybody with little else.
POLL_S = 1 if BEHIND_GATEWAY else 0.1

client = openai.OpenAI(timeout=60)


class Wire:
    """A client of its own whose requests are counted; its first `losing` replies get lost on the way."""

    def __init__(self, losing=0, **options):
        self.requests = []
        self._losing = losing
        hooks = {"request": [self._sent], "response": [self._arrived]}
        http = openai.DefaultHttpxClient(event_hooks=hooks)
        self.client = openai.OpenAI(http_client=http, timeout=60, **options)

    def _sent(self, request):
        self.requests.append(f"{request.method} {request.url.path}")

    def _arrived(self, response):
        if self._losing:
            self._losing -= 1
            response.read()
            # The SDK's transport is `httpx` or `httpx2`, by its version.
            transport = importlib.import_module(type(response).__module__.split(".")[0])
            raise transport.RemoteProtocolError("the reply got lost", request=response.request)


def chat_body(prompt="Say hi.", max_tokens=2, **more):
    """Returns the body of a greedy chat completion."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
    return {**body, "temperature": 0, **more}


def request(custom_id, body, url=CHAT, **more):
    """Returns one request as an object."""
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}


def jsonl(requests):
    """Returns a batch file of requests."""
    return "".join(json.dumps(one) + "\n" for one in requests).encode()


def chats(count, **options):
    """Returns a batch file of `count` chats with the ids r-0, r-1, and so on."""
    return jsonl(request(f"r-{index}", chat_body(**options)) for index in range(count))


def upload(data, name="batch.jsonl", **options):
    """Uploads a batch file."""
    return client.files.create(file=(name, data), purpose="batch", **options)


def create(data, endpoint=CHAT, **options):
    """Uploads a batch file and creates its batch."""
    file = upload(data)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **options)


def wait(batch, until=lambda batch: batch.status in TERMINAL):
    """Polls until the batch has ended, or until what is given holds."""
    end = time.monotonic() + WAIT_S
    while True:
        batch = client.batches.retrieve(batch.id)
        if until(batch):
            return batch
        if batch.status in TERMINAL or time.monotonic() > end:
            raise Difference(f"batch after {WAIT_S} s or at its end: {batch!r}")
        time.sleep(POLL_S)


def ended(data, endpoint=CHAT, status="completed", **options):
    """Runs a batch to its end, which must be `status`."""
    batch = wait(create(data, endpoint, **options))
    equal("status", batch.status, status)
    return batch


def records(file_id):
    """Returns the records of a result file; none without a file."""
    if file_id is None:
        return []
    data = client.files.content(file_id).content
    if not data.endswith(b"\n"):
        raise Difference(f"{file_id}: no newline at the end")
    text = data.decode()
    lines = text.split("\n")[:-1]
    equal(f"{file_id}: lines as splitlines() sees them", text.splitlines(), lines)
    return [json.loads(line) for line in lines]


def results(batch):
    """Returns the records of both files, with everything checked that holds for every ended batch."""
    typed(batch)
    output, errors = records(batch.output_file_id), records(batch.error_file_id)
    equal("has an output file", batch.output_file_id is not None, bool(output))
    equal("has an error file", batch.error_file_id is not None, bool(errors))
    counts = batch.request_counts
    equal("counts", (counts.completed, counts.failed, counts.total), (len(output), len(errors), len(output + errors)))
    names = [record["id"] for record in output + errors]
    equal("ids of records are unique", len(set(names)), len(names))
    for record in output + errors:
        equal("keys of a record", sorted(record), ["custom_id", "error", "id", "response"])
        equal("prefix of a record's id", record["id"][:10], "batch_req_")
        equal("response or error", (record["response"] is None) != (record["error"] is None), True)
    for record in output:
        equal("status of an output record", record["response"]["status_code"], 200)
    return output, errors


def typed(thing):
    """Fails unless an object has all that its SDK type wants; the SDK itself does not look. Returns it."""
    type(thing).model_validate(thing.to_dict())
    return thing


def tokens(batch):
    """Returns input, output and total tokens of a batch; older SDKs have no type for its usage."""
    usage = batch.to_dict()["usage"]
    return usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]


def custom_ids(records):
    """Returns the custom ids of records, in their order."""
    return [record["custom_id"] for record in records]


def bodies(batch):
    """Returns the answers of a batch without error lines, by custom id."""
    output, errors = results(batch)
    equal("error lines", errors, [])
    return {record["custom_id"]: record["response"]["body"] for record in output}
