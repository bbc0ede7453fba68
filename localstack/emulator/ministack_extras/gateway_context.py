"""`$context.authorizer.*` in customised gateway responses.

MiniStack 1.5.33 drops the context of an authorizer that denies, and knows only a few variables there.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from types import ModuleType
from typing import Any

_VARIABLE = re.compile(r"\$(?:\{context\.authorizer\.(\w+)\}|context\.authorizer\.(\w+))")

# One request is one task, and so has its own value.
_authorizer: ContextVar[dict[str, str] | None] = ContextVar("authorizer", default=None)


def substitute(body: str, authorizer: dict[str, str]) -> str:
    """Replaces the authorizer's variables; absent ones become empty."""
    return _VARIABLE.sub(lambda found: authorizer.get(found.group(1) or found.group(2), ""), body)


def install(gateway: ModuleType) -> None:
    """Keeps what an authorizer returned until its request is answered."""
    stringify = gateway._stringify_context
    respond = gateway._gateway_error_response

    def keep(context: Any) -> dict[str, str]:
        kept: dict[str, str] = stringify(context)
        _authorizer.set(kept)
        return kept

    def respond_with_context(error: Any, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = respond(error, request)
        text = substitute(body.decode(), _authorizer.get() or {})
        return status, headers, text.encode()

    gateway._stringify_context = keep
    gateway._gateway_error_response = respond_with_context
