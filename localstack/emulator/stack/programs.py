"""The functions' programs, where they run on another system than the one that built them."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from .failure import StackFailure

_ELF = b"\x7fELF"
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)(?=\0)")

# Major version 2 since 1997: only what comes after the dot is told apart.
GlibcMinor = int


def check_glibc(zips: Path, there: GlibcMinor, architecture: str) -> None:
    """Raises when a program in `zips` cannot start on a Linux with glibc 2.`there`."""
    advice = (
        f"functions/package --target {architecture} --profile dev, "
        f"then stack up --zips {zips.parent / architecture}"
    )
    for path in sorted(zips.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            program = archive.read("bootstrap")
        if not program.startswith(_ELF):
            raise StackFailure(f"the program in {path} is not for Linux: {advice}")
        needed = max((int(minor) for minor in _GLIBC.findall(program)), default=0)
        if needed > there:
            raise StackFailure(
                f"the program in {path} needs glibc 2.{needed}, and the container has 2.{there}: {advice}"
            )
