"""How batches end: every line is in exactly one file, whatever happens; cancelling; and creating twice."""

import openai

from .checklist import check, equal, refused, starts, within
from .service import (
    CHAT,
    TERMINAL,
    Wire,
    chat_body,
    chats,
    client,
    create,
    custom_ids,
    ended,
    jsonl,
    request,
    results,
    tokens,
    upload,
    wait,
)


def _in_order(what, got, wanted):
    """Fails unless `got` are some of `wanted`, in its order."""
    equal(what, got, [one for one in wanted if one in set(got)])


@check("a batch whose lines all fail is completed, without an output file")
def _():
    batch = ended(jsonl(request(f"r-{index}", chat_body(max_tokens=-1)) for index in range(3)))
    output, errors = results(batch)
    equal("ids", (custom_ids(output), custom_ids(errors)), ([], ["r-0", "r-1", "r-2"]))
    for record in errors:
        response = record["response"]
        error = response["body"]["error"]
        equal("status of the line", response["status_code"], 400)
        equal("error", (error["type"], error["param"]), ("invalid_request_error", "max_tokens"))
        equal("its code is a text", isinstance(error["code"], str), True)
        equal("request id", bool(response["request_id"]), True)
    equal("tokens", tokens(batch), (0, 0, 0))


@check("a batch with good and bad lines keeps input order in both files")
def _():
    wanted = [f"r-{index}" for index in range(12)]
    lines = [
        request(name, chat_body(max_tokens=-1 if index % 3 == 0 else 12 - index)) for index, name in enumerate(wanted)
    ]
    batch = ended(jsonl(lines))
    output, errors = results(batch)
    equal("errors", custom_ids(errors), wanted[::3])
    equal("output", custom_ids(output), [name for index, name in enumerate(wanted) if index % 3])
    usage = [record["response"]["body"]["usage"] for record in output]
    sums = tuple(sum(one[key] for one in usage) for key in ("prompt_tokens", "completion_tokens", "total_tokens"))
    equal("usage", tokens(batch), sums)
    within("completed_at", batch.completed_at, batch.finalizing_at, batch.expires_at)
    within("in_progress_at", batch.in_progress_at, batch.created_at, batch.finalizing_at)


@check("a batch that is cancelled at once loses no line")
def _():
    wanted = [f"r-{index}" for index in range(40)]
    batch = create(chats(40, max_tokens=200))
    cancelling = client.batches.cancel(batch.id)
    _cancelling(cancelling)
    batch = wait(batch)
    equal("status", batch.status, "cancelled")
    _cancelled(batch, wanted if batch.request_counts.total else [])


@check("a batch that is cancelled while it runs keeps what is done")
def _():
    # The lines differ in length: the first end soon, the last would take minutes.
    wanted = [f"r-{index}" for index in range(300)]
    lines = (request(name, chat_body("Tell me a story.", 1 + index)) for index, name in enumerate(wanted))
    batch = create(jsonl(lines))
    wait(batch, lambda batch: batch.request_counts.completed > 0)
    equal("status", client.batches.retrieve(batch.id).status, "in_progress")
    cancelling = client.batches.cancel(batch.id)
    _cancelling(cancelling)
    again = client.batches.cancel(batch.id)
    equal("cancelled twice", again.cancelling_at, cancelling.cancelling_at)
    batch = wait(batch)
    output = _cancelled(batch, wanted)
    within("lines done", len(output), 1, 299)
    equal("cancelled at the end", client.batches.cancel(batch.id).status, "cancelled")


def _cancelling(batch):
    if batch.status not in ("cancelling", "cancelled"):
        equal("status after cancel", batch.status, "cancelling")
    within("cancelling_at", batch.cancelling_at, batch.created_at, batch.expires_at)


def _cancelled(batch, wanted):
    """Checks a cancelled batch against the ids of its input, and returns the output records."""
    equal("end", (batch.status, batch.completed_at, batch.errors), ("cancelled", None, None))
    within("cancelled_at", batch.cancelled_at, batch.cancelling_at, batch.expires_at)
    output, errors = results(batch)
    _in_order("output", custom_ids(output), wanted)
    _in_order("errors", custom_ids(errors), wanted)
    equal("all ids", sorted(custom_ids(output + errors)), sorted(wanted))
    for record in errors:
        equal("a line that never ran", (record["response"], record["error"]["code"]), (None, "batch_cancelled"))
        equal("its message", bool(record["error"]["message"]), True)
    return output


@check("an ended batch cannot be cancelled, and that is said once")
def _():
    failed = wait(client.batches.create(input_file_id="file-7Qm", endpoint=CHAT, completion_window="24h"))
    for batch in (ended(chats(1)), failed):
        wire = Wire()
        text = f"Cannot cancel a batch with status '{batch.status}'."
        refused(batch.status, openai.ConflictError, lambda: wire.client.batches.cancel(batch.id), 409, message=text)
        equal("requests", wire.requests, [f"POST /v1/batches/{batch.id}/cancel"])
        equal("afterwards", client.batches.retrieve(batch.id), batch)


@check("a create whose reply got lost makes one batch")
def _():
    file = upload(chats(1)).id
    options = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    wire = Wire(losing=1)
    raw = wire.client.batches.with_raw_response.create(**options)
    equal("requests", wire.requests, ["POST /v1/batches"] * 2)
    equal("says so", bool(raw.headers.get("x-nightshift-deduplicated")), True)
    batch = raw.parse()
    newest = client.batches.list(limit=2).data
    equal("newest", newest[0].id, batch.id)
    equal("batches of this file", [one.input_file_id for one in newest].count(file), 1)
    # The same call once more is a wish of its own.
    other = client.batches.create(**options)
    equal("another batch", other.id == batch.id, False)


@check("an Idempotency-Key makes one batch, of one body only")
def _():
    file = upload(chats(1)).id
    headers = {"Idempotency-Key": f"key-of-{file}"}

    def make(sdk, **changed):
        options = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **changed}
        return sdk.batches.create(extra_headers=headers, **options)

    first = make(client)
    equal("again", make(client).id, first.id)
    wait(first)
    equal("after the end", make(client).id, first.id)
    wire = Wire()
    refused(
        "another body",
        openai.ConflictError,
        lambda: make(wire.client, completion_window="1h"),
        409,
        code="idempotency_key_reused",
    )
    equal("requests", len(wire.requests), 1)


@check("a batch is made of requests in the call itself")
def _():
    lines = [request("a", chat_body()), request("b", chat_body(max_tokens=-1))]
    options = {"requests": lines, "endpoint": CHAT, "completion_window": "24h"}
    batch = client.post("/batches", body=options, cast_to=openai.types.Batch)
    starts("input file", batch.input_file_id, "file-")
    batch = wait(batch)
    output, errors = results(batch)
    equal("ids", (custom_ids(output), custom_ids(errors)), (["a"], ["b"]))


@check("two batches of one file run side by side")
def _():
    file = upload(chats(3)).id
    options = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    made = [client.batches.create(**options) for _ in range(2)]
    for batch in made:
        batch = wait(batch)
        equal("status", batch.status, "completed")
        equal("ids", custom_ids(results(batch)[0]), ["r-0", "r-1", "r-2"])


@check("an ended batch never changes")
def _():
    for batch in list(client.batches.list()):
        if batch.status in TERMINAL:
            equal(batch.id, client.batches.retrieve(batch.id), batch)
