"""Unit tests of what needs no engine: `tests/bench/engine/check`."""
