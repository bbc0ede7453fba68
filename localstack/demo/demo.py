#!/usr/bin/env python3
"""Submits the sample batch to a Nightshift, with the unmodified OpenAI SDK.

  demo.py --nightshift PATH [--data DIR] [--out DIR]    to one that it starts and stops
  demo.py [--out DIR]                                   to the one that OPENAI_BASE_URL and OPENAI_API_KEY name

Needs the Python package `openai`. `make demo` makes a virtual environment for it.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import openai

HERE = pathlib.Path(__file__).resolve().parent
TERMINAL = {"completed", "failed", "expired", "cancelled"}
SHOWN = ["fact-capital", "code-python-even", "arithmetic-word", "explain-rain"]


def start(nightshift, data, log):
    """Starts the service on a free port and returns (process, base_url, api_key)."""
    command = [nightshift, "up", "--data", data, "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    line = process.stdout.readline()
    if not line:
        process.wait()
        sys.exit(f"nightshift did not start; its log is {log.name}")
    ready = json.loads(line)
    return process, ready["base_url"], ready["api_key"]


def stop(process):
    """Asks the service to stop, as Ctrl-C does, and returns its exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def watch(client, batch):
    """Polls until the batch ends, and shows how far it is."""
    terminal = sys.stdout.isatty()
    shown = None
    while True:
        batch = client.batches.retrieve(batch.id)
        counts = batch.request_counts
        text = f"{batch.status}: {counts.completed} done, {counts.failed} failed, {counts.total} in all"
        if terminal:
            print(f"\r\033[K  {text}", end="", flush=True)
        elif text != shown:
            print(f"  {text}", flush=True)
        shown = text
        if batch.status in TERMINAL:
            if terminal:
                print()
            return batch
        time.sleep(0.5)


def show_answers(requests, records):
    answers = {record["custom_id"]: record["response"]["body"] for record in records}
    for custom_id in SHOWN:
        if custom_id not in answers:
            continue
        question = requests[custom_id]["body"]["messages"][-1]["content"]
        answer = answers[custom_id]["choices"][0]["message"]["content"].strip()
        print(f"\n  [{custom_id}] {question}")
        for line in answer.splitlines() or [""]:
            print(f"    {line}")


def run(client, out):
    lines = (HERE / "batch.jsonl").read_text(encoding="utf-8").splitlines()
    requests = {request["custom_id"]: request for request in map(json.loads, lines)}
    began = time.monotonic()
    with open(HERE / "batch.jsonl", "rb") as source:
        file = client.files.create(file=source, purpose="batch")
    print(f"uploaded {file.filename}: {file.bytes} bytes, {len(lines)} requests ({file.id})")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"job": "demo"}
    )
    print(f"created {batch.id}")
    batch = watch(client, batch)
    seconds = time.monotonic() - began
    if batch.status != "completed":
        print(f"the batch ended as {batch.status}: {batch.errors}")
        return 1
    output = client.files.content(batch.output_file_id).content
    path = out / "output.jsonl"
    path.write_bytes(output)
    records = [json.loads(line) for line in output.decode("utf-8").splitlines()]
    show_answers(requests, records)
    usage, counts = batch.usage, batch.request_counts
    print(f"\n{counts.completed} of {counts.total} requests answered, {counts.failed} failed")
    print(
        f"{usage.input_tokens} prompt and {usage.output_tokens} completion tokens in {seconds:.1f} s, "
        f"{usage.total_tokens / seconds:.0f} tokens/s from upload to result"
    )
    print(f"answers: {path}")
    if batch.error_file_id:
        errors = out / "errors.jsonl"
        errors.write_bytes(client.files.content(batch.error_file_id).content)
        print(f"errors:  {errors}")
    return 0 if counts.failed == 0 and len(records) == len(requests) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nightshift", help="the nightshift program, to start a service with")
    parser.add_argument("--data", default=".cache/demo/data", help="the service's data directory")
    parser.add_argument("--out", default=".cache/demo", help="where the answers go")
    arguments = parser.parse_args()
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    if arguments.nightshift is None:
        if not os.environ.get("OPENAI_BASE_URL"):
            parser.error("name a program with --nightshift, or a service with OPENAI_BASE_URL and OPENAI_API_KEY")
        sys.exit(run(openai.OpenAI(), out))
    with open(out / "service.log", "w", encoding="utf-8") as log:
        process, base_url, api_key = start(os.path.abspath(arguments.nightshift), arguments.data, log)
        print(f"nightshift serves {base_url}")
        try:
            code = run(openai.OpenAI(base_url=base_url, api_key=api_key), out)
        finally:
            stopped = stop(process)
    if stopped != 0:
        print(f"nightshift stopped with code {stopped}; its log is {out / 'service.log'}")
        code = code or 1
    else:
        print("stopped cleanly; all state is kept in " + arguments.data)
    sys.exit(code)


if __name__ == "__main__":
    main()
