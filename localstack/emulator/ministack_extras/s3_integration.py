"""The `AWS` integration of a REST API with S3 (`arn:aws:apigateway:<region>:s3:path/<bucket>/<key>`).

MiniStack 1.5.33 has this for SQS only. Request parameters fill the path, the query and the headers; the body
goes through byte for byte; the answer goes through the integration responses with MiniStack's own templates.
"""

from __future__ import annotations

import time
import uuid
from types import ModuleType
from typing import Any

import mapping

# Sent on when the integration maps no other, as API Gateway does.
_CONTENT_TYPE = "content-type"


def install(gateway: ModuleType) -> None:
    """Sends S3 integrations here; every other `AWS` integration goes where it went."""
    invoke_other = gateway._invoke_lambda_custom_v1

    async def invoke(integration: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        target = gateway._parse_service_integration_uri(integration.get("uri", ""))
        if target is None or target[1:3] != ("s3", "path"):
            return await invoke_other(integration, *args, **kwargs)
        return await _invoke_s3(gateway, target, integration, *args, **kwargs)

    gateway._invoke_lambda_custom_v1 = invoke


async def _invoke_s3(
    gateway: ModuleType,
    target: tuple[str, str, str, str],
    integration: dict[str, Any],
    api_id: str,
    stage_name: str,
    stage: dict[str, Any],
    resource: dict[str, Any],
    request_path: str,
    method: str,
    headers: dict[str, Any],
    body: bytes,
    query_params: dict[str, Any] | None,
    path_params: dict[str, str] | None,
    *,
    owner_account_id: str | None = None,
    owner_region: str | None = None,
    binary_media_types: list[str] | None = None,
    authorizer_context: dict[str, str] | None = None,
    caller_identity: Any = None,
) -> Any:
    from ministack.services import s3

    region, _, _, path = target
    request = mapping.Request(
        path=path_params or {},
        query={name: _last(value) for name, value in (query_params or {}).items()},
        headers={name.lower(): _last(value) for name, value in headers.items()},
        context=_context(api_id, stage_name, resource, method, authorizer_context),
    )
    mapped = mapping.map_request(integration.get("requestParameters") or {}, request)
    sent = dict(mapped.headers)
    if _CONTENT_TYPE in request.headers:
        sent.setdefault(_CONTENT_TYPE, request.headers[_CONTENT_TYPE])
    with gateway.request_scope(owner_account_id, region or owner_region):
        status, answered, answer = await s3.handle_request(
            integration.get("httpMethod") or method,
            f"/{mapped.fill(path)}",
            sent,
            body or b"",
            {name: [value] for name, value in mapped.query.items()},
            internal=True,
        )
    return _respond(gateway, integration, request, status, answered, answer)


def _respond(
    gateway: ModuleType,
    integration: dict[str, Any],
    request: mapping.Request,
    status: int,
    answered: dict[str, Any],
    answer: bytes,
) -> Any:
    selected = gateway._select_service_integration_response(integration, status)
    if selected is None:
        return gateway._gw_error("API_CONFIGURATION_ERROR", "Internal server error")
    # MiniStack would send a mapping expression as it stands: headers are mapped here, the rest there.
    templated = {
        **integration,
        "integrationResponses": {"it": {**selected, "responseParameters": None, "selectionPattern": None}},
    }
    accept = request.headers.get("accept", "application/json").split(",")[0].split(";")[0].strip().lower()
    params = {**request.headers, **request.query, **request.path}
    text = (answer or b"").decode("utf-8", errors="replace")
    status_code, headers, rendered = gateway._service_integration_response(
        templated, status, text, accept, params, dict(request.context)
    )
    lower = {name.lower(): _last(value) for name, value in answered.items()}
    headers |= mapping.map_response_headers(selected.get("responseParameters") or {}, request, lower)
    return status_code, headers, rendered


def _context(
    api_id: str,
    stage_name: str,
    resource: dict[str, Any],
    method: str,
    authorizer_context: dict[str, str] | None,
) -> dict[str, Any]:
    return {
        "apiId": api_id,
        "stage": stage_name,
        "httpMethod": method,
        "resourcePath": resource.get("path", ""),
        "requestId": str(uuid.uuid4()),
        "requestTimeEpoch": str(int(time.time() * 1000)),
        "authorizer": dict(authorizer_context or {}),
    }


def _last(value: Any) -> str:
    if isinstance(value, list | tuple):
        return str(value[-1]) if value else ""
    return str(value)
