"""What is refused at creation, and what fails a batch: bad parameters, keys, and files."""

import openai

from .checklist import check, equal, refused, starts, within
from .service import (
    BEHIND_GATEWAY,
    CHAT,
    COMPLETIONS,
    MODEL,
    RESPONSES,
    Wire,
    chat_body,
    chats,
    client,
    create,
    jsonl,
    request,
    typed,
    upload,
    wait,
)

_UNKNOWN = "No batch found with id 'batch_7Qm'."


@check("a bad parameter is a 400 and no batch")
def _():
    file = upload(chats(1)).id
    before = [batch.id for batch in client.batches.list(limit=1)][:1]

    def refuse(what, code, param, message=None, **changed):
        options = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **changed}
        refused(
            what,
            openai.BadRequestError,
            lambda: client.batches.create(**options),
            400,
            code=code,
            param=param,
            message=message,
        )

    refuse("endpoint", "invalid_value", "endpoint", "'/v1/x'", endpoint="/v1/x")
    refuse("no endpoint", "missing_required_parameter", "endpoint", "'endpoint'", endpoint=openai.NOT_GIVEN)
    refuse("no file", "missing_required_parameter", "input_file_id", "'input_file_id'", input_file_id=openai.NOT_GIVEN)
    for window in ("48", "0h", "169h", "1d", "24H"):
        refuse(window, "invalid_value", "completion_window", window, completion_window=window)
    refuse("window's type", "invalid_type", "completion_window", completion_window=24)
    refuse("metadata value", "invalid_type", "metadata.tags", "array", metadata={"tags": ["a"]})
    refuse("metadata", "invalid_type", "metadata", "string", metadata="a")
    many = {str(index): "" for index in range(17)}
    refuse("17 pairs", "object_above_max_properties", "metadata", "16", metadata=many)
    for length in (65, 100_000):
        # The message and the parameter show 128 characters of a key at most.
        shown = "metadata." + "k" * min(length, 128)
        refuse(f"key of {length}", "string_above_max_length", shown, "64", metadata={"k" * length: "v"})
    refuse("long value", "string_above_max_length", "metadata.k", "512", metadata={"k": "v" * 513})
    for seconds, code in ((3599, "integer_below_min_value"), (2_592_001, "integer_above_max_value")):
        life = {"output_expires_after": {"anchor": "created_at", "seconds": seconds}}
        refuse(f"life of {seconds} s", code, "output_expires_after.seconds", extra_body=life)
    equal("newest batch", [batch.id for batch in client.batches.list(limit=1)][:1], before)


@check("metadata, windows and the life of results are kept as given")
def _():
    data = chats(1)
    equal("no metadata", create(data).metadata, None)
    equal("null", create(data, metadata=None).metadata, None)
    pairs = {"k" * 64: "v" * 512, "größe": "\U0001f600", "empty": ""}
    batch = create(data, metadata=pairs)
    equal("metadata", batch.metadata, pairs)
    equal("metadata as retrieved", client.batches.retrieve(batch.id).metadata, pairs)
    sixteen = {str(index): "" for index in range(16)}
    equal("16 pairs", create(data, metadata=sixteen).metadata, sixteen)
    file = upload(data).id
    # The stack of the emulators shortens all windows but one.
    windows = (("24h", 86_400),) if BEHIND_GATEWAY else (("24h", 86_400), ("1h", 3600), ("168h", 604_800))
    for window, seconds in windows:
        batch = client.batches.create(input_file_id=file, endpoint=CHAT, completion_window=window)
        equal(window, (batch.completion_window, batch.expires_at - batch.created_at), (window, seconds))
    life = {"output_expires_after": {"anchor": "created_at", "seconds": 7200}}
    batch = wait(create(data, extra_body=life))
    output = client.files.retrieve(batch.output_file_id)
    equal("life of the output", output.expires_at - output.created_at, 7200)


@check("a fresh batch has every key")
def _():
    batch = create(chats(1))
    starts("id", typed(batch).id, "batch_")
    starts("request id", batch._request_id, "req_")
    equal("object, status, endpoint", (batch.object, batch.status, batch.endpoint), ("batch", "validating", CHAT))
    counts = batch.request_counts
    equal("counts", (counts.total, counts.completed, counts.failed), (0, 0, 0))
    unset = (
        "errors output_file_id error_file_id in_progress_at finalizing_at completed_at failed_at expired_at "
        "cancelling_at cancelled_at metadata model usage"
    ).split()
    wire = batch.to_dict()
    equal("unset keys", {key: wire.get(key, "absent") for key in unset}, dict.fromkeys(unset))


@check("what does not exist is a 404 that says so")
def _():
    for call in (client.batches.retrieve, client.batches.cancel):
        refused("batch", openai.NotFoundError, lambda: call("batch_7Qm"), 404, param="batch_id", message=_UNKNOWN)
    refused(
        "path",
        openai.NotFoundError,
        lambda: client.get("/nonsense", cast_to=object),
        404,
        code="unknown_url",
        message="(GET /v1/nonsense)",
    )
    refused(
        "method",
        openai.APIStatusError,
        lambda: client.patch("/batches", cast_to=object),
        405,
        code="method_not_supported",
    )


@check("a wrong key is an AuthenticationError")
def _():
    wire = Wire(api_key="sk-wrong-0123456789abcdefghij")
    for what, call in (
        ("list", wire.client.batches.list),
        ("upload", lambda: wire.client.files.create(file=("a.jsonl", chats(1)), purpose="batch")),
        ("models", wire.client.models.list),
    ):
        error = refused(
            what, openai.AuthenticationError, call, 401, code="invalid_api_key", message="Incorrect API key"
        )
        equal(f"{what}: the key stays secret", "0123456789" in error.body["message"], False)
    equal("requests", len(wire.requests), 3)


def _without(key):
    whole = request("a", chat_body())
    return jsonl([{name: value for name, value in whole.items() if name != key}])


def _missing(key):
    return _without(key), ("missing_required_parameter", 1, key, f"Missing required parameter: '{key}'.")


_GOOD = chats(1)
_LACKING_MODEL = {key: value for key, value in chat_body().items() if key != "model"}

#: By row of the table of validation errors: a file, and the code, line, parameter and message that it leads to.
_BAD_FILES = {
    "no JSON": (_GOOD + b"{\n", ("invalid_json_line", 2, None, "This line is not parseable as valid JSON.")),
    "no custom_id": _missing("custom_id"),
    "no method": _missing("method"),
    "no url": _missing("url"),
    "no body": _missing("body"),
    "the same custom_id": (
        _GOOD + b"\n" + _GOOD,
        (
            "duplicate_custom_id",
            3,
            "custom_id",
            "The custom_id 'r-0' for this request is a duplicate of another request.",
        ),
    ),
    "another endpoint": (
        jsonl([request("a", chat_body(), url=COMPLETIONS)]),
        ("invalid_url", 1, "url", "The URL provided for this request does not match the batch endpoint."),
    ),
    "another method": (
        jsonl([{**request("a", chat_body()), "method": "GET"}]),
        ("invalid_method", 1, "method", "POST"),
    ),
    "unknown model": (
        jsonl([request("a", chat_body(model="gpt-9"))]),
        ("model_not_found", 1, "body.model", "The provided model 'gpt-9' is not supported by the Batch API."),
    ),
    "stream": (
        jsonl([request("a", chat_body(stream=True))]),
        ("streaming_unsupported", 1, "body.stream", "Chat Completions: Streaming is not supported in the Batch API."),
    ),
    "no model": (
        jsonl([request("a", _LACKING_MODEL)]),
        ("invalid_request", 1, "body.model", "Model parameter is required."),
    ),
    "no messages": (
        jsonl([request("a", {"model": MODEL})]),
        ("invalid_request", 1, "body.messages", "Messages parameter is required."),
    ),
    "too many requests": (chats(1001), ("too_many_tasks", None, None, "1000")),
    "too many tokens": (
        chats(900, max_tokens=8000, n=16),
        ("token_limit_exceeded", None, None, f"Enqueued token limit reached for {MODEL}"),
    ),
}


def _failed(what, batch, errors):
    equal(f"{what}: status", typed(batch).status, "failed")
    got = [(error.code, error.line, error.param) for error in batch.errors.data]
    equal(f"{what}: errors", got, [error[:3] for error in errors])
    for error, wanted in zip(batch.errors.data, errors, strict=True):
        if wanted[3] not in error.message:
            equal(f"{what}: message", error.message, wanted[3])
    counts = batch.request_counts
    equal(f"{what}: counts", (counts.total, counts.completed, counts.failed), (0, 0, 0))
    unset = (batch.output_file_id, batch.error_file_id, batch.in_progress_at, batch.completed_at)
    equal(f"{what}: unset", unset, (None, None, None, None))
    within(f"{what}: failed_at", batch.failed_at, batch.created_at, batch.expires_at)


@check("a bad file fails its batch and names line, code and parameter")
def _():
    batches = {what: create(data) for what, (data, _) in _BAD_FILES.items()}
    for what, (_, error) in _BAD_FILES.items():
        _failed(what, wait(batches[what]), [error])


@check("an input file that is not there, or not for batches, fails the batch")
def _():
    deleted = upload(chats(1)).id
    client.files.delete(deleted)
    other = client.files.create(file=("a.jsonl", chats(1)), purpose="user_data").id
    for file in ("file-7Qm", "nonsense", deleted, other):
        batch = client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")
        _failed(file, wait(batch), [("invalid_request", None, "file_id", f"Cannot find file {file}")])


@check("an empty file that came by Uploads fails its batch")
def _():
    for data in (b"\n", b" \r\n\n"):
        started = client.uploads.create(
            bytes=len(data), filename="a.jsonl", mime_type="application/jsonl", purpose="batch"
        )
        part = client.uploads.parts.create(started.id, data=data)
        file = client.uploads.complete(started.id, part_ids=[part.id]).file
        batch = client.batches.create(input_file_id=file.id, endpoint=RESPONSES, completion_window="24h")
        _failed(repr(data), wait(batch), [("empty_file", None, None, "The input file is empty.")])


@check("all errors of a file are reported, a hundred of them in full")
def _():
    batch = wait(create(_GOOD + b"[]\n" * 250))
    errors = batch.errors.data
    equal("lines", [error.line for error in errors[:-1]], list(range(2, 102)))
    equal("last", (len(errors), errors[-1].code, errors[-1].line), (101, "too_many_errors", None))
    equal("last names the rest", "150" in errors[-1].message, True)
