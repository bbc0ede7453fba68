"""DynamoDB for LocalStack without DynamoDBLocal.jar.

PROVIDER_OVERRIDE_DYNAMODB=moto     in process, by the moto that LocalStack depends on
PROVIDER_OVERRIDE_DYNAMODB=forward  by another emulator at HOST_FUNCTIONS_DYNAMODB_URL

The in-process one adds three things that moto lacks: requests run one after another (moto checks a condition
and writes in two steps), ClientRequestToken, and the limit of 25 items in a batch write.
"""

from __future__ import annotations

import os
import threading
import time

from localstack.aws.api import CommonServiceException, RequestContext, ServiceRequest, ServiceResponse
from localstack.services.plugins import Service, aws_provider

from .tokens import TokenMemory, TokenReused

BATCH_WRITES_MAX = 25

_turn = threading.RLock()
_tokens = TokenMemory()


@aws_provider(api="dynamodb", name="moto")
def dynamodb_moto() -> Service:
    """Serves DynamoDB from moto."""
    from localstack.aws.api.dynamodb import DynamodbApi
    from localstack.aws.forwarder import ForwardingFallbackDispatcher

    class MotoDynamoDb(DynamodbApi):
        """Implements nothing, so that each call falls through to moto."""

    return Service.for_provider(
        MotoDynamoDb(), dispatch_table_factory=lambda provider: ForwardingFallbackDispatcher(provider, _serve)
    )


@aws_provider(api="dynamodb", name="forward")
def dynamodb_forward() -> Service:
    """Serves DynamoDB by another emulator."""
    from localstack.aws.api.dynamodb import DynamodbApi
    from localstack.aws.forwarder import AwsRequestProxy, ForwardingFallbackDispatcher

    class ForwardedDynamoDb(DynamodbApi):
        """Implements nothing, so that each call is forwarded."""

    proxy = AwsRequestProxy(os.environ["HOST_FUNCTIONS_DYNAMODB_URL"])
    return Service.for_provider(
        ForwardedDynamoDb(),
        # Only the context: the request goes on as it came.
        dispatch_table_factory=lambda provider: ForwardingFallbackDispatcher(
            provider, lambda context, _request: proxy.forward(context)
        ),
    )


def _serve(context: RequestContext, request: ServiceRequest) -> ServiceResponse:
    from localstack.services.moto import call_moto

    operation = context.operation.name
    with _turn:
        if operation == "BatchWriteItem":
            _check_batch(request)
        if operation != "TransactWriteItems" or not request.get("ClientRequestToken"):
            return call_moto(context)
        scope = f"{context.account_id}/{context.region}"
        now_s = time.monotonic()
        try:
            if _tokens.is_done(scope, request, now_s):
                return {}
        except TokenReused:
            raise CommonServiceException(
                "IdempotentParameterMismatchException",
                "The request uses the same client token as a previous, but non-identical request.",
                status_code=400,
            ) from None
        response = call_moto(context)
        _tokens.remember(scope, request, now_s)
        return response


def _check_batch(request: ServiceRequest) -> None:
    count = sum(len(writes) for writes in request["RequestItems"].values())
    if count > BATCH_WRITES_MAX:
        raise CommonServiceException(
            "ValidationException",
            "1 validation error detected: Value at 'requestItems' failed to satisfy constraint: "
            f"Member must have length less than or equal to {BATCH_WRITES_MAX}",
            status_code=400,
        )
