"""The limits of API Gateway and Lambda, and the answers of API Gateway where one is broken.

Sources: the quotas of API Gateway's REST APIs, and of Lambda's synchronous calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

_MIB = 1024 * 1024

# What the rest of an event (headers, request context) takes beside the body.
EVENT_ENVELOPE_BYTES = 8 * 1024

_HEADER = "gatewayresponse.header."
_PARTS = re.compile(r"^/[^/]+/uploads/[^/]+/parts/?$")
_VARIABLE = re.compile(r"\$(?:\{(context(?:\.\w+)+)\}|(context(?:\.\w+)+))")


class Route(Enum):
    """What stands behind a route."""

    FUNCTION = "function"
    STORAGE = "storage"
    """API Gateway writes the body to S3 itself: no event, so no limit of Lambda."""


def route_of(method: str, path: str) -> Route:
    """Tells what stands behind a request; `path` starts with the stage."""
    if method == "POST" and _PARTS.match(path):
        return Route.STORAGE
    return Route.FUNCTION


@dataclass(frozen=True)
class Limits:
    """The limits in force."""

    request_bytes: int = 10 * _MIB
    event_bytes: int = 6 * _MIB
    answer_bytes: int = 6 * _MIB
    timeout_s: float = 29

    def body_bytes(self, route: Route) -> int:
        """Returns the longest body for a route; a function gets it as base64 in its event."""
        if route is Route.STORAGE:
            return self.request_bytes
        return min(self.request_bytes, (self.event_bytes - EVENT_ENVELOPE_BYTES) // 4 * 3)


@dataclass(frozen=True)
class Refusal:
    """An answer that API Gateway makes itself."""

    status: int
    response_type: str
    message: str
    error: str


REQUEST_TOO_LARGE = Refusal(413, "REQUEST_TOO_LARGE", "Request Too Long", "RequestTooLargeException")
TIMED_OUT = Refusal(504, "INTEGRATION_TIMEOUT", "Endpoint request timed out", "InternalServerErrorException")
ANSWER_TOO_LARGE = Refusal(502, "DEFAULT_5XX", "Internal server error", "InternalServerErrorException")
UNREACHABLE = Refusal(502, "DEFAULT_5XX", "Internal server error", "InternalServerErrorException")
NO_STAGE = Refusal(403, "", "Forbidden", "ForbiddenException")


@dataclass(frozen=True)
class Answers:
    """The gateway responses that an API customises, by type."""

    customised: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of_items(cls, items: list[Mapping[str, Any]]) -> Answers:
        """Takes the items of GetGatewayResponses."""
        return cls({item["responseType"]: item for item in items if not item.get("defaultResponse")})

    def render(self, refusal: Refusal, request_id: str) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, headers and body of an answer."""
        headers = {
            "Content-Type": "application/json",
            "x-amzn-RequestId": request_id,
            "x-amzn-ErrorType": refusal.error,
        }
        custom = self._custom(refusal)
        template = (custom.get("responseTemplates") or {}).get("application/json")
        if template is None:
            return (
                refusal.status,
                headers,
                json.dumps({"message": refusal.message}, separators=(",", ":")).encode(),
            )
        values = {
            "context.error.message": refusal.message,
            "context.error.messageString": json.dumps(refusal.message),
            "context.error.responseType": refusal.response_type,
            "context.requestId": request_id,
        }
        for target, source in (custom.get("responseParameters") or {}).items():
            value = source[1:-1] if source[:1] == source[-1:] == "'" else values.get(source)
            if target.startswith(_HEADER) and value is not None:
                headers[target.removeprefix(_HEADER)] = value
        body = _VARIABLE.sub(lambda found: values.get(found.group(1) or found.group(2), ""), template)
        return int(custom.get("statusCode") or refusal.status), headers, body.encode()

    def _custom(self, refusal: Refusal) -> Mapping[str, Any]:
        # 413 is the one response that cannot be customised; an unknown stage has no responses.
        if refusal in (REQUEST_TOO_LARGE, NO_STAGE):
            return {}
        fallback = "DEFAULT_5XX" if refusal.status >= 500 else "DEFAULT_4XX"
        return self.customised.get(refusal.response_type) or self.customised.get(fallback) or {}
