"""Binary bodies for LocalStack's REST APIs.

LocalStack does not take `*/*` among the binary media types for what it says, parses a multipart body and writes
it anew (which loses bytes), sends a function binary bodies that happen to be UTF-8 as text, and gives a response
template bytes where it wants text.
"""

from __future__ import annotations

import base64

from localstack.aws.api.apigateway import ContentHandlingStrategy
from localstack.http import Request
from localstack.services.apigateway.next_gen.execute_api.context import RestApiInvocationContext
from localstack.services.apigateway.next_gen.execute_api.handlers import (
    integration_request,
    integration_response,
    parse,
)
from localstack.services.apigateway.next_gen.execute_api.handlers.integration_response import (
    IntegrationResponseHandler,
)
from localstack.services.apigateway.next_gen.execute_api.integrations import aws
from localstack.services.apigateway.next_gen.execute_api.integrations.aws import RestApiAwsProxyIntegration
from localstack.utils.patch import patch

from .media import is_binary


def take_binary_media_types_at_their_word() -> None:
    """Makes LocalStack treat binary bodies as API Gateway does."""

    def matches(mime_type: str | None, binary_media_types: list[str]) -> bool:
        return is_binary(mime_type, binary_media_types)

    for module in (aws, integration_request, integration_response):
        module.mime_type_matches_binary_media_types = matches

    def body_as_sent(request: Request) -> bytes:
        return request.get_data(parse_form_data=False)

    parse.restore_payload = body_as_sent
    # Handlers that run after the answer look into the form; the default limit of 500 kB makes them fail.
    Request.max_form_memory_size = None

    @patch(RestApiAwsProxyIntegration.create_lambda_input_event)
    def create_lambda_input_event(original, self, context: RestApiInvocationContext):
        event = original(self, context)
        body = context.integration_request["body"]
        media_type = context.invocation_request["headers"].get("Content-Type")
        if body and is_binary(media_type, _binary_media_types(context)):
            event["body"], event["isBase64Encoded"] = base64.b64encode(body).decode(), True
        return event

    original = IntegrationResponseHandler.convert_body

    def convert_body(
        context: RestApiInvocationContext, body: bytes, content_handling: ContentHandlingStrategy | None
    ) -> bytes | str:
        converted = original(context=context, body=body, content_handling=content_handling)
        if content_handling == ContentHandlingStrategy.CONVERT_TO_TEXT and isinstance(converted, bytes):
            return converted.decode()
        return converted

    # By hand: `patch` would turn a static method into one with `self`.
    IntegrationResponseHandler.convert_body = staticmethod(convert_body)


def _binary_media_types(context: RestApiInvocationContext) -> list[str]:
    return context.deployment.rest_api.rest_api.get("binaryMediaTypes") or []
