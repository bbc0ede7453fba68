"""Simple `$context` substitution of gateway responses: no Velocity, absent values are empty."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_VARIABLE = re.compile(r"\$(?:\{(context(?:\.\w+)+)\}|(context(?:\.\w+)+))")


def substitute(template: str, context: Mapping[str, Any]) -> str:
    """Replaces `$context.a.b` and `${context.a.b}` by values of `context`."""
    return _VARIABLE.sub(lambda match: _text(_find(match.group(1) or match.group(2), context)), template)


def mapped_value(source: str, *, context: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """Resolves the source of a header of a gateway response; None omits the header."""
    if len(source) >= 2 and source[0] == source[-1] == "'":
        return source[1:-1]
    if source.startswith("method.request.header."):
        return headers.get(source.removeprefix("method.request.header.").lower())
    if source.startswith("context."):
        value = _find(source, context)
        return None if value is None else _text(value)
    return None


def customised_response(
    response_type: str, status: str, customised: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Returns what an API made of a type of response: its own, else the default of its class, else None."""
    if response_type in customised:
        return customised[response_type]
    if response_type in ("REQUEST_TOO_LARGE", "DEFAULT_4XX", "DEFAULT_5XX"):
        # The first cannot be customised, by whatever way.
        return None
    return customised.get("DEFAULT_5XX" if status.startswith("5") else "DEFAULT_4XX")


def with_error(context: Mapping[str, Any], *, message: str | None, response_type: str) -> dict[str, Any]:
    """Returns the context with `$context.error` of a gateway response."""
    return {
        **context,
        "error": {
            "message": message or "",
            "messageString": json.dumps(message),
            "responseType": response_type,
            "validationErrorString": "",
        },
    }


def _find(path: str, context: Mapping[str, Any]) -> Any:
    value: Any = context
    for name in path.split(".")[1:]:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _text(value: Any) -> str:
    if value is None or isinstance(value, Mapping):
        return ""
    return str(value)
