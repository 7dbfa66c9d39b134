"""``motet serve`` over a tiny model, as a process: ``python tiny_server.py``; JSON logs on standard error.

A prompt that holds the token GUILTY fails while it is read.
"""

import sys
from typing import Any

import mlx.core as mx
import trio

import families
from motet import EngineDied, logs
from motet.actors.system import Settings
from motet.http.server import HTTPSettings, run

GUILTY = 77


class Guilty:
    """A model that raises when it reads the guilty token in a prompt."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, tokens: mx.array, **options: Any) -> mx.array:
        if tokens.shape[1] > 1 and GUILTY in tokens.tolist()[0]:  # type: ignore[operator, index]
            raise RuntimeError("injected")
        return self._model(tokens, **options)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def main() -> int:
    logs.configure(as_json=True)
    families.tokenizer().eos_token_ids = set()  # no row ends by chance
    load = families.loader("llama", wrap=Guilty)  # type: ignore[arg-type]
    try:
        trio.run(run, load, "tiny", Settings(prompt_cache_bytes=0), HTTPSettings(port=0))
    except EngineDied:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
