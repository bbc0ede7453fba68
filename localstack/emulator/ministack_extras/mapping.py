"""Request and response mappings of a non-proxy integration: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_REQUEST = "integration.request."
_RESPONSE_HEADER = "method.response.header."


@dataclass(frozen=True)
class Request:
    """What a mapping may refer to."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    context: Mapping[str, Any]

    def value(self, source: str) -> str | None:
        """Returns what `method.request.path.id`, `context.authorizer.x` or `'text'` stands for."""
        if len(source) >= 2 and source[0] == source[-1] == "'":
            return source[1:-1]
        if source.startswith("context."):
            return _find(self.context, source.split(".")[1:])
        for prefix, values in (
            ("method.request.path.", self.path),
            ("method.request.querystring.", self.query),
            ("method.request.header.", {}),
        ):
            if source.startswith(prefix):
                name = source.removeprefix(prefix)
                return self.headers.get(name.lower()) if prefix.endswith("header.") else values.get(name)
        return None


@dataclass(frozen=True)
class Mapped:
    """The parameters of a call to the service behind an integration."""

    path: dict[str, str]
    query: dict[str, str]
    headers: dict[str, str]

    def fill(self, template: str) -> str:
        """Fills `{name}` in the path of the integration; a name without a value stays."""
        return _PLACEHOLDER.sub(
            lambda found: (
                quote(self.path[found.group(1)], safe="-_.~")
                if found.group(1) in self.path
                else found.group(0)
            ),
            template,
        )


def map_request(parameters: Mapping[str, str], request: Request) -> Mapped:
    """Applies the `requestParameters` of an integration."""
    mapped = Mapped({}, {}, {})
    targets = {"path": mapped.path, "querystring": mapped.query, "header": mapped.headers}
    for target, source in parameters.items():
        location, _, name = target.removeprefix(_REQUEST).partition(".")
        value = request.value(source)
        if location in targets and value is not None:
            targets[location][name.lower() if location == "header" else name] = value
    return mapped


def map_response_headers(
    parameters: Mapping[str, str], request: Request, answered: Mapping[str, str]
) -> dict[str, str]:
    """Applies the `responseParameters` of an integration response; `answered` has names in lower case."""
    headers = {}
    for target, source in parameters.items():
        if not target.startswith(_RESPONSE_HEADER):
            continue
        if source.startswith("integration.response.header."):
            value = answered.get(source.removeprefix("integration.response.header.").lower())
        else:
            value = request.value(source)
        if value is not None:
            headers[target.removeprefix(_RESPONSE_HEADER)] = value
    return headers


def _find(values: Mapping[str, Any], path: list[str]) -> str | None:
    found: Any = values
    for name in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found if isinstance(found, str) else None
