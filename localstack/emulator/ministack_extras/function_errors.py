"""The answer for a function that fails: API Gateway's 502, in the words that the API gave its 5XX responses.

MiniStack 1.5.33 answers with what the function failed of, which no caller should see.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

_STATUS = 502


class _FunctionFailed(Exception):
    """The function gave no answer that a proxy integration can use."""


def install(gateway: ModuleType) -> None:
    """Turns failures of functions behind a proxy integration into gateway responses."""
    read = gateway._lambda_proxy_response
    invoke = gateway._invoke_lambda_proxy_v1
    respond = gateway._gateway_error_response

    def read_answer(result: Any) -> Any:
        answer, problem = read(result)
        if problem:
            raise _FunctionFailed
        return answer, None

    async def invoke_function(*args: Any, **kwargs: Any) -> Any:
        try:
            return await invoke(*args, **kwargs)
        except _FunctionFailed:
            error = gateway._gw_error("DEFAULT_5XX", "Internal server error")
            error.status = _STATUS
            return error

    def respond_with_status(error: Any, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = respond(error, request)
        # 500 is what MiniStack has where the API names no status.
        return (getattr(error, "status", status) if status == 500 else status), headers, body

    gateway._lambda_proxy_response = read_answer
    gateway._invoke_lambda_proxy_v1 = invoke_function
    gateway._gateway_error_response = respond_with_status
