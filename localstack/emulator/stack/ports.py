"""Ports of 127.0.0.1, and the proof that nothing listens anywhere else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

from .failure import StackFailure

HOST = "127.0.0.1"
_LISTENING = "0A"
_LOOPBACK_V6 = "00000000000000000000000001000000"


def free_port() -> int:
    """Returns a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def check_free(port: int) -> None:
    """Raises when a port that the user asked for is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise StackFailure(f"port {port} is in use: choose another with --port") from error


def accepts(port: int) -> bool:
    """Tells whether something listens on a port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def check_loopback_only(pids: Iterable[int]) -> None:
    """Raises when one of the processes, or a child of one, listens beyond this machine."""
    for pid in _with_descendants(pids):
        for address in _listening(pid):
            if not is_loopback(address):
                raise StackFailure(f"process {pid} listens on {address}: emulators must stay on {HOST}")


def is_loopback(address: str) -> bool:
    """Tells whether an address as /proc/net/tcp has it, e.g. `0100007F:11D6`, is this machine's own."""
    host = address.split(":")[0]
    return host == _LOOPBACK_V6 or host.endswith("7F") and len(host) == 8 or host.endswith("FFFF00000100007F")


def _with_descendants(pids: Iterable[int]) -> list[int]:
    found, pending = [], list(pids)
    while pending:
        pid = pending.pop()
        found.append(pid)
        try:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pending.extend(int(child) for child in children.read_text().split())
        except OSError:
            continue
    return found


def _listening(pid: int) -> list[str]:
    try:
        inodes = {
            target[8:-1]
            for entry in os.scandir(f"/proc/{pid}/fd")
            if (target := _link(entry.path)).startswith("socket:[")
        }
    except OSError:
        return []
    addresses = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        fields = [line.split() for line in lines]
        addresses += [row[1] for row in fields if row[3] == _LISTENING and row[9] in inodes]
    return addresses


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
