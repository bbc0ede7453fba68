"""Checks that run in the order of their definition; the first difference ends the run."""

import sys
import time
import traceback

_checks = []


class Difference(Exception):
    """What came differs from what was wanted."""


def check(name):
    """Registers a function as the check `name`."""

    def register(function):
        _checks.append((name, function))
        return function

    return register


def run_all():
    """Runs every check, prints one line for each, and ends the program."""
    for name, function in _checks:
        began = time.monotonic()
        try:
            function()
        except Exception as error:
            print(f"FAILED {name}: {error}", flush=True)
            if not isinstance(error, Difference):
                traceback.print_exc()
            sys.exit(1)
        print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{len(_checks)} checks passed", flush=True)


def equal(what, got, want):
    """Fails unless `got` is `want`."""
    if got != want:
        raise Difference(f"{what}: got {got!r}, want {want!r}")


def within(what, got, low, high):
    """Fails unless `low <= got <= high`."""
    if not low <= got <= high:
        raise Difference(f"{what}: got {got!r}, want {low!r} to {high!r}")


def starts(what, got, prefix):
    """Fails unless `got` is a text that starts with `prefix`."""
    if not isinstance(got, str) or not got.startswith(prefix):
        raise Difference(f"{what}: got {got!r}, want {prefix!r} first")


def contains(what, got, part):
    """Fails unless `part` is in `got`."""
    if part not in got:
        raise Difference(f"{what}: got {got!r}, want {part!r} in it")


def refused(what, kind, call, status, *, code=None, param=None, message=None):
    """Fails unless `call` raises `kind` with these values; returns the error.

    `message` is a part of the wanted message. The envelope's four keys and the request id are always checked.
    """
    try:
        result = call()
    except kind as error:
        equal(f"{what}: status", error.status_code, status)
        equal(f"{what}: code", error.code, code)
        equal(f"{what}: param", error.param, param)
        equal(f"{what}: keys of the error", sorted(error.body), ["code", "message", "param", "type"])
        starts(f"{what}: request id", error.request_id, "req_")
        equal(f"{what}: has a message", bool(error.body["message"]), True)
        if message is not None:
            contains(f"{what}: message", error.body["message"], message)
        return error
    raise Difference(f"{what}: got {result!r}, want {kind.__name__}")
