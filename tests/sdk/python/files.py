"""Files: every way to hand one over, reading them back, and Uploads."""

import hashlib
import io
import os
import pathlib
import tempfile
import time

import openai

from .checklist import check, contains, equal, refused, starts, within
from .service import BEHIND_GATEWAY, Wire, chats, client, create, typed, upload, wait

THIRTY_DAYS_S = 30 * 24 * 3600


def _as_uploaded(file, name, data):
    starts("id", typed(file).id, "file-")
    equal("filename", file.filename, name)
    equal("bytes", file.bytes, len(data))
    equal("object, purpose, status", (file.object, file.purpose, file.status), ("file", "batch", "processed"))
    equal("status_details", file.status_details, None)
    within("created_at", file.created_at, time.time() - 60, time.time() + 60)
    equal("retrieved", client.files.retrieve(file.id), file)
    equal("content", client.files.content(file.id).content, data)
    starts("request id", file._request_id, "req_")


@check("a file is made of a path, an open file, bytes, BytesIO and tuples")
def _():
    data = chats(2)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "nightly run.jsonl")
        with open(path, "wb") as file:
            file.write(data)
        _as_uploaded(client.files.create(file=pathlib.Path(path), purpose="batch"), "nightly run.jsonl", data)
        with open(path, "rb") as file:
            _as_uploaded(client.files.create(file=file, purpose="batch"), "nightly run.jsonl", data)
    _as_uploaded(client.files.create(file=data, purpose="batch"), "upload", data)
    _as_uploaded(client.files.create(file=io.BytesIO(data), purpose="batch"), "upload", data)
    _as_uploaded(client.files.create(file=("a.jsonl", data), purpose="batch"), "a.jsonl", data)
    _as_uploaded(
        client.files.create(file=("b.jsonl", io.BytesIO(data), "application/jsonl"), purpose="batch"), "b.jsonl", data
    )
    _as_uploaded(upload(data, "größe \U0001f600.jsonl"), "größe \U0001f600.jsonl", data)


@check("a file expires when asked, a batch file after 30 days, any other never")
def _():
    expiring = {"expires_after": {"anchor": "created_at", "seconds": 3600}}
    file = client.files.create(file=("a.jsonl", chats(1)), purpose="batch", extra_body=expiring)
    equal("asked", file.expires_at - file.created_at, 3600)
    file = upload(chats(1))
    equal("default", file.expires_at - file.created_at, THIRTY_DAYS_S)
    file = client.files.create(file=("note.txt", b"any text"), purpose="user_data")
    equal(
        "another purpose",
        (file.purpose, file.filename, getattr(file, "expires_at", None)),
        ("user_data", "note.txt", None),
    )
    for seconds, code in ((3599, "integer_below_min_value"), (THIRTY_DAYS_S + 1, "integer_above_max_value")):
        wrong = {"expires_after": {"anchor": "created_at", "seconds": seconds}}
        refused(
            f"{seconds} s",
            openai.BadRequestError,
            lambda: client.files.create(file=("a.jsonl", chats(1)), purpose="batch", extra_body=wrong),
            400,
            code=code,
            param="expires_after[seconds]",
        )


@check("a file that cannot be a batch is refused")
def _():
    def refuse(what, file, purpose="batch", **wanted):
        refused(what, openai.BadRequestError, lambda: client.files.create(file=file, purpose=purpose), 400, **wanted)

    refuse("name", ("notes.txt", chats(1)), code="invalid_file_format", param="file", message=".jsonl")
    refuse("empty", ("a.jsonl", b""), code="invalid_file_format", param="file", message="jsonl")
    refuse("no JSON", ("a.jsonl", b"custom_id,prompt\n"), code="invalid_file_format", param="file", message="jsonl")
    refuse(
        "UTF-16",
        ("a.jsonl", chats(1).decode().encode("utf-16")),
        code="invalid_file_format",
        param="file",
        message="UTF-16",
    )
    refuse("purpose", ("a.jsonl", chats(1)), purpose="nonsense", code="invalid_value", param="purpose")


@check("wait_for_processing returns on its first poll")
def _():
    file = upload(chats(1))
    wire = Wire()
    equal("file", wire.client.files.wait_for_processing(file.id).id, file.id)
    equal("requests", wire.requests, [f"GET /v1/files/{file.id}"])


@check("content comes whole, streamed, and by range")
def _():
    data = chats(300)
    file = upload(data)
    with client.files.with_streaming_response.content(file.id) as streamed:
        equal("streamed", b"".join(streamed.iter_bytes(1000)), data)

    def ranged(value):
        answer = client.files.with_raw_response.content(file.id, extra_headers={"Range": value})
        return answer.status_code, answer.headers.get("content-range"), answer.content

    size = len(data)
    equal("first ten", ranged("bytes=0-9"), (206, f"bytes 0-9/{size}", data[:10]))
    equal("from the middle", ranged(f"bytes={size - 7}-"), (206, f"bytes {size - 7}-{size - 1}/{size}", data[-7:]))
    equal("last five", ranged("bytes=-5"), (206, f"bytes {size - 5}-{size - 1}/{size}", data[-5:]))
    equal(
        "beyond the end",
        ranged(f"bytes={size - 1}-{size + 99}"),
        (206, f"bytes {size - 1}-{size - 1}/{size}", data[-1:]),
    )
    if BEHIND_GATEWAY:
        # Emulators of S3 differ in what they make of another unit.
        _no_such_byte(lambda: ranged(f"bytes={size}-"))
    else:
        equal("another unit", ranged("lines=0-1"), (200, None, data))
        refused("no such byte", openai.APIStatusError, lambda: ranged(f"bytes={size}-"), 416, param="range")


def _no_such_byte(call):
    """The answer is S3's own, whose body is XML."""
    try:
        result = call()
    except openai.APIStatusError as error:
        equal("no such byte", error.status_code, 416)
        return
    equal("no such byte", result, "an error")


@check("a deleted file is gone, and was there only once")
def _():
    file = upload(chats(1))
    deleted = client.files.delete(file.id)
    equal("deleted", (deleted.id, deleted.object, deleted.deleted), (file.id, "file", True))
    for what, call in (
        ("retrieve", client.files.retrieve),
        ("content", client.files.content),
        ("delete", client.files.delete),
    ):
        text = f"No such File object: {file.id}"
        refused(what, openai.NotFoundError, lambda: call(file.id), 404, param="id", message=text)
    refused(
        "foreign id",
        openai.NotFoundError,
        lambda: client.files.retrieve("file-7Qm"),
        404,
        param="id",
        message="No such File object: file-7Qm",
    )


@check("a batch goes on when its input file is deleted")
def _():
    batch = create(chats(3))
    client.files.delete(batch.input_file_id)
    batch = wait(batch)
    equal("end", (batch.status, batch.request_counts.completed), ("completed", 3))


def _start_upload(size, **more):
    return client.uploads.create(
        bytes=size, filename="parts.jsonl", mime_type="application/jsonl", purpose="batch", **more
    )


@check("a file is uploaded in parts of 4 MiB")
def _():
    data = chats(60_000)
    size = 4 * 1024 * 1024
    if hasattr(client.uploads, "upload_file_chunked"):
        wire = Wire()
        whole = wire.client.uploads.upload_file_chunked(
            file=data,
            filename="parts.jsonl",
            bytes=len(data),
            mime_type="application/jsonl",
            purpose="batch",
            part_size=size,
            md5=hashlib.md5(data).hexdigest(),
        )
        equal("requests", len(wire.requests), 2 + -(-len(data) // size))
        _whole(whole, data)
    started = _start_upload(len(data))
    starts("id", typed(started).id, "upload_")
    equal("pending", (started.object, started.status, started.bytes), ("upload", "pending", len(data)))
    equal("life of an upload", started.expires_at - started.created_at, 3600)
    parts = []
    # The last part comes first: the order of `part_ids` decides.
    for start in reversed(range(0, len(data), size)):
        part = client.uploads.parts.create(started.id, data=data[start : start + size])
        equal("part", (typed(part).object, part.upload_id), ("upload.part", started.id))
        starts("part id", part.id, "part_")
        parts.insert(0, part.id)
    _whole(client.uploads.complete(started.id, part_ids=parts, md5=hashlib.md5(data).hexdigest()), data)


def _whole(done, data):
    equal("completed", (typed(done).status, done.bytes, done.filename), ("completed", len(data), "parts.jsonl"))
    _as_uploaded(client.files.retrieve(done.file.id), "parts.jsonl", data)


@check("an upload is completed once, and only by what it announced")
def _():
    data = chats(4)

    def start(size):
        started = _start_upload(size)
        return started, client.uploads.parts.create(started.id, data=data)

    for size in (len(data) - 1, len(data) + 1):
        started, part = start(size)
        error = refused(
            f"announced {size}",
            openai.BadRequestError,
            lambda: client.uploads.complete(started.id, part_ids=[part.id]),
            400,
            code="bytes_mismatch",
            param="part_ids",
        )
        contains("message names the sum", error.body["message"], str(len(data)))
        contains("message names the announcement", error.body["message"], str(size))

    started, part = start(len(data))
    refused(
        "md5",
        openai.BadRequestError,
        lambda: client.uploads.complete(started.id, part_ids=[part.id], md5="0" * 32),
        400,
        code="md5_mismatch",
        param="md5",
    )
    refused(
        "unknown part",
        openai.BadRequestError,
        lambda: client.uploads.complete(started.id, part_ids=["part_x"]),
        400,
        code="invalid_value",
        param="part_ids",
    )
    client.uploads.complete(started.id, part_ids=[part.id])
    wire = Wire()
    refused_without_retry("complete twice", wire, lambda: wire.client.uploads.complete(started.id, part_ids=[part.id]))
    refused_without_retry("part after the end", wire, lambda: wire.client.uploads.parts.create(started.id, data=data))

    started, part = start(len(data))
    equal("cancelled", client.uploads.cancel(started.id).status, "cancelled")
    refused_without_retry(
        "complete a cancelled one", wire, lambda: wire.client.uploads.complete(started.id, part_ids=[part.id])
    )
    refused("unknown upload", openai.NotFoundError, lambda: client.uploads.cancel("upload_x"), 404, param="upload_id")


def refused_without_retry(what, wire, call):
    """Fails unless `call` is refused with 400 or 409 after a single request; 403 is the authorizer's."""
    before = len(wire.requests)
    try:
        result = call()
    except (openai.BadRequestError, openai.ConflictError, *((openai.PermissionDeniedError,) * BEHIND_GATEWAY)) as error:
        equal(f"{what}: type", error.type, "invalid_request_error")
        equal(f"{what}: requests", len(wire.requests) - before, 1)
        return
    equal(what, result, "an error")
