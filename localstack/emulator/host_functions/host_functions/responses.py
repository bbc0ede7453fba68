"""Customised gateway responses for LocalStack's REST APIs.

LocalStack stores templates and headers of gateway responses, and answers with its own body all the same. This
renders them, for the types that an API customises; others keep LocalStack's body.
"""

from __future__ import annotations

from localstack.http import Response
from localstack.services.apigateway.next_gen.execute_api.context import RestApiInvocationContext
from localstack.services.apigateway.next_gen.execute_api.gateway_response import BaseGatewayException
from localstack.services.apigateway.next_gen.execute_api.handlers.gateway_exception import (
    GatewayExceptionHandler,
)
from localstack.utils.patch import patch

from .variables import customised_response, mapped_value, substitute, with_error

_HEADER = "gatewayresponse.header."
_JSON = "application/json"


def render_customised_responses() -> None:
    """Makes LocalStack honour customised gateway responses."""

    @patch(GatewayExceptionHandler.create_exception_response)
    def create_exception_response(
        original, self, exception: BaseGatewayException, context: RestApiInvocationContext
    ) -> Response:
        response: Response = original(self, exception, context)
        customised = {
            str(name): value for name, value in context.deployment.rest_api.gateway_responses.items()
        }
        configured = customised_response(str(exception.type), str(response.status_code), customised)
        if configured is None:
            return response
        variables = with_error(
            context.context_variables, message=exception.message, response_type=str(exception.type)
        )
        if (template := (configured.get("responseTemplates") or {}).get(_JSON)) is not None:
            response.set_data(substitute(template, variables))
        sent = {name.lower(): value for name, value in context.invocation_request["headers"].items()}
        for target, source in (configured.get("responseParameters") or {}).items():
            value = mapped_value(source, context=variables, headers=sent)
            if target.startswith(_HEADER) and value is not None:
                response.headers[target.removeprefix(_HEADER)] = value
        return response
