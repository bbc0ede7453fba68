"""What an authorizer's answer means: its policy for one method, and the context it hands on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

_INVOKE = "execute-api:Invoke"


class InvalidAnswer(Exception):
    """The function's answer is no authorizer answer."""


class Verdict(Enum):
    """What a policy says about a method."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NOT_MENTIONED = "not mentioned"


@dataclass(frozen=True)
class Judgement:
    """The outcome for one request."""

    verdict: Verdict
    context: dict[str, str]
    """What `$context.authorizer` shows: strings only, with `principalId`."""


def judge(answer: Any, method_arn: str) -> Judgement:
    """Reads an authorizer's answer; raises `InvalidAnswer` where API Gateway would answer 500."""
    if not isinstance(answer, Mapping):
        raise InvalidAnswer("the answer is no object")
    policy = answer.get("policyDocument")
    if not isinstance(policy, Mapping):
        raise InvalidAnswer("the answer has no policyDocument")
    if not isinstance(answer.get("principalId"), str):
        raise InvalidAnswer("the answer has no principalId")
    context = _context(answer.get("context") or {})
    context["principalId"] = answer["principalId"]
    return Judgement(_verdict(policy, method_arn), context)


def _context(raw: Any) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        raise InvalidAnswer("the context is no object")
    context = {}
    for name, value in raw.items():
        if isinstance(value, bool):
            context[name] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            context[name] = str(value)
        elif value is not None:
            # API Gateway takes no arrays or objects here.
            raise InvalidAnswer(f"the context value '{name}' is neither a string, a number nor a boolean")
    return context


def _verdict(policy: Mapping[str, Any], method_arn: str) -> Verdict:
    verdict = Verdict.NOT_MENTIONED
    for statement in _listed(policy.get("Statement")):
        if not isinstance(statement, Mapping) or not _applies(statement, method_arn):
            continue
        if statement.get("Effect") == "Deny":
            return Verdict.DENIED
        if statement.get("Effect") == "Allow":
            verdict = Verdict.ALLOWED
    return verdict


def _applies(statement: Mapping[str, Any], method_arn: str) -> bool:
    return _any_matches(statement.get("Action"), _INVOKE, ignore_case=True) and _any_matches(
        statement.get("Resource"), method_arn, ignore_case=False
    )


def _any_matches(patterns: Any, value: str, *, ignore_case: bool) -> bool:
    return any(
        isinstance(pattern, str) and _pattern(pattern, ignore_case).fullmatch(value) is not None
        for pattern in _listed(patterns)
    )


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [value]


@lru_cache(maxsize=256)
def _pattern(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    expression = "".join({"*": ".*", "?": "."}.get(part, re.escape(part)) for part in pattern)
    return re.compile(expression, re.DOTALL | (re.IGNORECASE if ignore_case else 0))
