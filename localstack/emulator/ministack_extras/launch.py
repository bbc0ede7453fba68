"""Starts MiniStack with what Nightshift's infrastructure needs beyond it. Run by MiniStack's own Python."""

from __future__ import annotations

import function_errors
import gateway_context
import s3_integration
from ministack.app import main
from ministack.services import apigateway_v1


def add_extras() -> None:
    """Adds the S3 integration, and what gateway responses lack."""
    s3_integration.install(apigateway_v1)
    gateway_context.install(apigateway_v1)
    function_errors.install(apigateway_v1)


if __name__ == "__main__":
    add_extras()
    main()
