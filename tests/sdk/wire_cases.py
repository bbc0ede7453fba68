"""Runs the cases of tests/cases/wire against a service: each is a file and what it must lead to.

OPENAI_BASE_URL and OPENAI_API_KEY name the service; arguments name cases, all by default. NIGHTSHIFT_CASES_EVERY=4
takes every fourth of them.
Prints one line for each case and ends with 1 if any differs.
"""

import json
import os
import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

import openai

from python.checklist import Difference, equal
from python.service import client, custom_ids, results, wait

CASES = pathlib.Path(__file__).parent.parent / "cases" / "wire"

#: The cases take turns on one worker; waiting for each alone would take minutes.
CASES_AT_ONCE = 8

#: What a case may say; a key that is not here is a mistake in the case.
KEYS = set(
    "why endpoint upload upload_in status status_in errors errors_len last_error_code counts total ids completed_has "
    "failed_status error_code output_file no_crash".split()
)


def upload(name, data, allowed):
    """Uploads the file, and returns none where refusing it was right."""
    try:
        file = client.files.create(file=(f"{name}.jsonl", data), purpose="batch")
    except openai.APIStatusError as error:
        if error.status_code not in allowed:
            raise Difference(f"upload: got {error}, want {allowed}") from None
        equal("keys of the error", sorted(error.body), ["code", "message", "param", "type"])
        equal("has a message", bool(error.body["message"]), True)
        return None
    if 200 not in allowed:
        raise Difference(f"upload: got 200, want {allowed}")
    equal("content", client.files.content(file.id).content, data)
    return file


def run(name, case):
    """Runs one case to its end."""
    unknown = set(case) - KEYS
    equal("unknown keys of the case", unknown, set())
    file = upload(name, (CASES / f"{name}.jsonl").read_bytes(), case.get("upload_in") or [case["upload"]])
    if file is None:
        return
    batch = client.batches.create(input_file_id=file.id, endpoint=case["endpoint"], completion_window="24h")
    batch = wait(batch)
    allowed = case.get("status_in") or [case["status"]]
    if batch.status not in allowed:
        raise Difference(f"status: got {batch.status}, want {allowed}; errors: {batch.errors}")
    check_errors(batch, case)
    counts = batch.request_counts
    if "counts" in case:
        equal("counts", {key: getattr(counts, key) for key in ("total", "completed", "failed")}, case["counts"])
    if "total" in case:
        equal("total", counts.total, case["total"])
    check_records(batch, case)


def check_errors(batch, case):
    """Compares the errors of a failed batch."""
    errors = batch.errors.data if batch.errors else []
    equal("has errors", bool(errors), batch.status == "failed")
    equal("errors without a message", [error for error in errors if not error.message], [])
    if "errors" in case:
        equal("errors", [{"code": e.code, "line": e.line, "param": e.param} for e in errors], case["errors"])
    if "errors_len" in case:
        equal("number of errors", len(errors), case["errors_len"])
        equal("last error", errors[-1].code, case["last_error_code"])


def check_records(batch, case):
    """Compares both result files."""
    output, errors = results(batch)
    names = custom_ids(output + errors)
    equal("custom ids are unique", len(set(names)), len(names))
    failures = [(record["response"] or {}).get("body", {}).get("error") or record["error"] for record in errors]
    equal("error records without a message", [one for one in failures if not one or not one.get("message")], [])
    if "ids" in case:
        equal("ids", custom_ids(output), case["ids"])
    missing = set(case.get("completed_has", [])) - set(custom_ids(output))
    equal("lines not completed", missing, set())
    if "failed_status" in case:
        equal(
            "statuses of failed lines",
            {record["response"]["status_code"] for record in errors},
            {case["failed_status"]},
        )
    if "error_code" in case:
        equal("codes of failed lines", {one["code"] for one in failures}, {case["error_code"]})
    if case.get("output_file") is False:
        equal("output_file_id", batch.output_file_id, None)


def main():
    """Runs the cases named, or all."""
    cases = json.loads((CASES / "cases.json").read_text(encoding="utf-8"))
    files = {path.stem for path in CASES.glob("*.jsonl")}
    equal("cases without a file, and the reverse", set(cases) ^ files, set())

    def outcome(name):
        try:
            run(name, cases[name])
        except (Difference, openai.APIError) as difference:
            return f"FAILED {name}: {difference} [{cases[name]['why']}]"
        return f"ok {name}"

    with ThreadPoolExecutor(CASES_AT_ONCE) as pool:
        every = int(os.environ.get("NIGHTSHIFT_CASES_EVERY", "1"))
        outcomes = list(pool.map(outcome, sys.argv[1:] or sorted(cases)[::every]))
    failures = [line for line in outcomes if line.startswith("FAILED ")]
    print("\n".join([line for line in outcomes if line not in failures] + failures))
    sys.exit(1 if failures else 0)


main()
