"""Which bodies are binary, by an API's list of binary media types."""

from __future__ import annotations

from collections.abc import Iterable


def is_binary(media_type: str | None, binary_media_types: Iterable[str] | None) -> bool:
    """Tells whether a body of this type, or an Accept header with it first, counts as binary.

    `*/*` in the list makes everything binary, bodies of no declared type too.
    """
    patterns = [pattern.split(";")[0].strip().lower() for pattern in binary_media_types or ()]
    if "*/*" in patterns:
        return True
    found = (media_type or "").split(",")[0].split(";")[0].strip().lower()
    if found.count("/") != 1:
        return False
    return found in patterns or f"{found.split('/')[0]}/*" in patterns
