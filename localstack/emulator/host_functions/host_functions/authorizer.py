"""Lambda authorizers of type REQUEST for LocalStack's REST APIs.

A handler of the request chain, between routing and the integration. A method with the authorization type
CUSTOM calls its authorizer function; everything else passes. There is no cache: with a time to live of zero,
the only one that Nightshift uses, API Gateway has none either.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from localstack.aws.connect import connect_to
from localstack.http import Response
from localstack.services.apigateway.next_gen.execute_api.api import RestApiGatewayHandlerChain
from localstack.services.apigateway.next_gen.execute_api.context import RestApiInvocationContext
from localstack.services.apigateway.next_gen.execute_api.gateway_response import (
    AccessDeniedError,
    AuthorizerConfigurationError,
    UnauthorizedError,
)
from localstack.services.apigateway.next_gen.execute_api.header_utils import build_multi_value_headers
from localstack.services.apigateway.next_gen.execute_api.helpers import (
    get_lambda_function_arn_from_invocation_uri,
)
from localstack.utils.aws.arns import extract_region_from_arn, get_partition

from .policy import InvalidAnswer, Verdict, judge

LOG = logging.getLogger(__name__)

_DENIED = "User is not authorized to access this resource with an explicit deny in an identity-based policy"
_NOT_MENTIONED = "User is not authorized to access this resource"


def authorize_request(
    chain: RestApiGatewayHandlerChain, context: RestApiInvocationContext, response: Response
) -> None:
    """Authorizes a request, or raises the gateway response that refuses it."""
    method = context.resource_method
    if (method.get("authorizationType") or "NONE").upper() != "CUSTOM":
        return
    authorizer = context.deployment.rest_api.authorizers.get(method.get("authorizerId"))
    if authorizer is None or authorizer.get("type") != "REQUEST":
        LOG.warning("method %s %s has no REQUEST authorizer", method["httpMethod"], context.resource["path"])
        raise AuthorizerConfigurationError()
    method_arn = _method_arn(context)
    try:
        judgement = judge(_call(authorizer["authorizerUri"], _event(context, method_arn)), method_arn)
    except InvalidAnswer as error:
        LOG.warning("authorizer %s: %s", authorizer.get("name"), error)
        raise AuthorizerConfigurationError() from error
    context.context_variables["authorizer"] = judgement.context
    if judgement.verdict is Verdict.DENIED:
        raise AccessDeniedError(_DENIED)
    if judgement.verdict is Verdict.NOT_MENTIONED:
        raise AccessDeniedError(_NOT_MENTIONED)


def _call(uri: str, event: dict[str, Any]) -> Any:
    function = get_lambda_function_arn_from_invocation_uri(uri)
    client = connect_to(region_name=extract_region_from_arn(function)).lambda_
    result = client.invoke(FunctionName=function, Payload=json.dumps(event), InvocationType="RequestResponse")
    answer = json.loads(result["Payload"].read() or b"null")
    if not result.get("FunctionError"):
        return answer
    message = answer.get("errorMessage") if isinstance(answer, dict) else None
    if message == "Unauthorized":
        raise UnauthorizedError("Unauthorized")
    raise InvalidAnswer(f"the function failed: {message}")


def _method_arn(context: RestApiInvocationContext) -> str:
    request = context.invocation_request
    return (
        f"arn:{get_partition(context.region)}:execute-api:{context.region}:{context.account_id}:"
        f"{context.api_id}/{context.stage}/{request['http_method']}/{request['path'].lstrip('/')}"
    )


def _event(context: RestApiInvocationContext, method_arn: str) -> dict[str, Any]:
    request = context.invocation_request
    return {
        "type": "REQUEST",
        "methodArn": method_arn,
        "resource": context.resource["path"],
        "path": request["path"],
        "httpMethod": request["http_method"],
        "headers": dict(request["headers"]),
        "multiValueHeaders": build_multi_value_headers(request["headers"]),
        "queryStringParameters": request["query_string_parameters"] or {},
        "multiValueQueryStringParameters": request["multi_value_query_string_parameters"] or {},
        "pathParameters": request["path_parameters"] or {},
        "stageVariables": context.stage_variables or {},
        "requestContext": dict(context.context_variables),
    }
