"""The gate's start: it answers in the words of the API that it stands in front of."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

from .paths import LOCALSTACK, State
from .ports import HOST, accepts
from .processes import Child, Children, clean_environment, wait_until

STAGE = "v1"
# Emulators route by the service named here and check no signature.
_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/{region}/apigateway/aws4_request, SignedHeaders=host, Signature=0"


def start(children: Children, state: State, *, endpoint: str, api_id: str, region: str, port: int) -> Child:
    """Starts the gate on `port`."""
    responses = state.folder("emulator") / "gateway-responses.json"
    responses.write_text(json.dumps(_gateway_responses(endpoint, api_id, region)))
    child = children.start(
        "gate",
        [
            Path(sys.executable),
            "-m",
            "emulator.gate",
            *("--upstream", endpoint),
            *("--api", api_id),
            *("--stage", STAGE),
            *("--port", str(port)),
            *("--responses", str(responses)),
        ],
        env=clean_environment(
            state.folder("emulator/home"), PATH=os.environ["PATH"], PYTHONPATH=str(LOCALSTACK)
        ),
        log=state.log("gate"),
        cwd=state.folder("emulator"),
    )
    wait_until(lambda: accepts(port), what="the gate", timeout_s=20, check=child.check)
    return child


def base_url(port: int) -> str:
    """Returns what an SDK takes as base_url."""
    return f"http://{HOST}:{port}/{STAGE}"


def _gateway_responses(endpoint: str, api_id: str, region: str) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{endpoint}/restapis/{api_id}/gatewayresponses?limit=100",
        headers={"Authorization": _SIGNED.format(region=region), "Accept": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        document = json.load(answer)
    # One item is an object on the wire, several are a list; emulators say `item`, some `_embedded`.
    items = document.get("item") or document.get("items") or document.get("_embedded", {}).get("item") or []
    return items if isinstance(items, list) else [items]
