"""Runs the gate: `python -m emulator.gate --upstream http://127.0.0.1:4566 --api abc123 --port 8080`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path
from urllib.parse import urlsplit

from .limits import Answers
from .proxy import Gate, Upstream


async def run(gate: Gate, port: int) -> None:
    """Serves until a signal ends it."""
    server = await gate.serve("127.0.0.1", port)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await ended.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="gate", description=__doc__)
    parser.add_argument("--upstream", required=True, help="the emulator's endpoint")
    parser.add_argument("--api", required=True, help="the id of the REST API")
    parser.add_argument("--stage", default="v1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--responses", type=Path, help="the answer of GetGatewayResponses, as JSON")
    options = parser.parse_args()
    upstream = urlsplit(options.upstream)
    if upstream.hostname is None or upstream.port is None:
        parser.error("--upstream needs a host and a port")
    items = json.loads(options.responses.read_text()) if options.responses else []
    gate = Gate(
        Upstream(upstream.hostname, upstream.port, f"/_aws/execute-api/{options.api}", options.stage),
        Answers.of_items(items),
    )
    asyncio.run(run(gate, options.port))


if __name__ == "__main__":
    main()
