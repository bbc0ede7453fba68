"""Lists: pages, order, cursors, and what they refuse. These checks come first: the service is still empty."""

import openai

from .checklist import check, equal, refused
from .service import MODEL, Wire, chats, client, create, ended, typed, upload, wait


def _page(page):
    return page.data, page.has_more, getattr(page, "first_id", None), getattr(page, "last_id", None)


@check("lists of an empty service are empty")
def _():
    equal("files", _page(client.files.list()), ([], False, None, None))
    equal("batches", _page(client.batches.list()), ([], False, None, None))


@check("files are listed over three pages, newest first")
def _():
    made = [upload(chats(1), f"{index}.jsonl").id for index in range(8)]
    wire = Wire()
    equal("walked", [file.id for file in wire.client.files.list(limit=3)], made[::-1])
    equal("requests", wire.requests, ["GET /v1/files"] * 3)
    equal("ascending", [file.id for file in client.files.list(limit=3, order="asc")], made)
    equal("without a limit", [file.id for file in client.files.list().data], made[::-1])
    page = client.files.list(limit=3)
    equal("page", (page.first_id, page.last_id, page.has_more), (made[7], made[5], True))
    equal("after the last", client.files.list(after=made[0]).data, [])
    equal("another purpose", client.files.list(purpose="user_data").data, [])


@check("a walk goes on when its cursor is deleted")
def _():
    made = [upload(chats(1), f"{index}.jsonl").id for index in range(5)]
    page = client.files.list(limit=2)
    client.files.delete(page.data[-1].id)
    rest = page.get_next_page()
    equal("next page", [file.id for file in rest.data], [made[2], made[1]])


@check("batches are listed over three pages, newest first")
def _():
    made = [create(chats(1)).id for _ in range(5)]
    wire = Wire()
    equal("walked", [batch.id for batch in wire.client.batches.list(limit=2)], made[::-1])
    equal("requests", wire.requests, ["GET /v1/batches"] * 3)
    page = client.batches.list(limit=2)
    equal("page", (page.first_id, page.last_id, page.has_more), (made[4], made[3], True))
    equal("after the last", _page(client.batches.list(after=made[0])), ([], False, None, None))
    for batch in client.batches.list():
        equal("end", wait(batch).status, "completed")


@check("twenty batches are a page by default")
def _():
    for _ in range(17):
        create(chats(1))
    page = client.batches.list()
    equal("page", (len(page.data), page.has_more), (20, True))
    walked = [batch.id for batch in page]
    equal("walked", (len(walked), len(set(walked))), (22, 22))


@check("lists refuse limits and cursors that cannot be")
def _():
    below, above = "integer_below_min_value", "integer_above_max_value"
    for name, calls in (("batches", client.batches.list), ("files", client.files.list)):
        for limit, code in ((0, below), (-1, below), (10_001, above)):
            refused(
                f"{name}, {limit}", openai.BadRequestError, lambda: calls(limit=limit), 400, code=code, param="limit"
            )
        refused(
            f"{name}, after",
            openai.BadRequestError,
            lambda: calls(after="nonsense"),
            400,
            code="invalid_value",
            param="after",
        )
    refused(
        "batches, 101", openai.BadRequestError, lambda: client.batches.list(limit=101), 400, code=above, param="limit"
    )
    refused(
        "order", openai.BadRequestError, lambda: client.files.list(order="up"), 400, code="invalid_value", param="order"
    )


@check("result files are listed by their purpose")
def _():
    batch = ended(chats(1))
    file = client.files.list(purpose="batch_output", limit=1).data[0]
    equal("newest", (file.id, file.purpose), (batch.output_file_id, "batch_output"))
    equal("name", file.filename, f"{batch.id}_output.jsonl")
    equal("retrieved", client.files.retrieve(file.id), file)
    equal("bytes", file.bytes, len(client.files.content(file.id).content))


@check("models are listed, and found by names with slashes")
def _():
    equal("models", [(model.id, model.object) for model in client.models.list()], [(MODEL, "model")])
    for name in (MODEL, "HuggingFaceTB/SmolLM2-135M-Instruct"):
        model = typed(client.models.retrieve(name))
        equal(name, (model.id, model.object, model.owned_by), (MODEL, "model", "HuggingFaceTB"))
    for name in ("gpt-9", "a/b/c"):
        refused(
            name,
            openai.NotFoundError,
            lambda: client.models.retrieve(name),
            404,
            code="model_not_found",
            param="model",
            message=name,
        )
