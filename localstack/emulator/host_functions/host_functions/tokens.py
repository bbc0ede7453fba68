"""Idempotency of TransactWriteItems: one token, one effect."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

# DynamoDB remembers a token for ten minutes.
KEPT_S = 600
_TOKENS_MAX = 10_000


class TokenReused(Exception):
    """The token came before with other items."""


class TokenMemory:
    """Remembers which transactions were done. The caller holds the lock."""

    def __init__(self) -> None:
        self._done: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()

    def is_done(self, scope: str, request: Mapping[str, Any], now_s: float) -> bool:
        """Tells whether this very request was done; raises `TokenReused` for other items under its token."""
        self._forget(now_s)
        found = self._done.get((scope, request["ClientRequestToken"]))
        if found is None:
            return False
        if found[1] != _fingerprint(request):
            raise TokenReused
        return True

    def remember(self, scope: str, request: Mapping[str, Any], now_s: float) -> None:
        """Notes that this request was done."""
        self._done[scope, request["ClientRequestToken"]] = (now_s, _fingerprint(request))

    def _forget(self, now_s: float) -> None:
        while self._done:
            oldest = next(iter(self._done))
            if len(self._done) <= _TOKENS_MAX and self._done[oldest][0] > now_s - KEPT_S:
                return
            del self._done[oldest]


def _fingerprint(request: Mapping[str, Any]) -> str:
    return json.dumps(request["TransactItems"], sort_keys=True, default=repr)
