"""What runs when LocalStack starts."""

from __future__ import annotations

from localstack.runtime import hooks


@hooks.on_infra_start()
def complete_api_gateway() -> None:
    """Adds what the free API Gateway lacks: authorizers, customised gateway responses, binary bodies."""
    from localstack.services.apigateway.next_gen.execute_api import handlers

    from .authorizer import authorize_request
    from .binary import take_binary_media_types_at_their_word
    from .responses import render_customised_responses

    handlers.preprocess_request.append(authorize_request)
    render_customised_responses()
    take_binary_media_types_at_their_word()
