"""The library as docs/embedding.md shows it, and the portal's edges."""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

import families
import motet
from motet.actors.system import Settings
from motet.portal import EngineThread

DOC = pathlib.Path(__file__).parents[1] / "docs" / "embedding.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny llama as a directory that mlx-lm loads."""
    directory = tmp_path_factory.mktemp("model")
    module, config = families.build("llama")
    weights: Any = dict(tree_flatten(module.parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    families.tokenizer()._tokenizer.save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_documents_examples_run(example: str, model_directory: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", example],
        env=os.environ | {"MODEL": model_directory},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def open_tiny(**settings: Any) -> EngineThread:
    return EngineThread(families.loader("llama"), Settings(**settings))


def test_threads_share_a_batch_and_get_what_they_get_alone() -> None:
    engine = open_tiny(prompt_cache_bytes=0)
    said: dict[int, str] = {}

    def ask(key: int, seed: int) -> None:
        with engine.generate([5, 6, 7 + seed], max_tokens=60, temperature=1, seed=seed) as events:
            said[key] = "".join(event.text for event in events if isinstance(event, motet.Text))

    for seed in range(4):
        ask(seed, seed)
    threads = [threading.Thread(target=ask, args=(10 + seed, seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(said[10 + seed] == said[seed] for seed in range(4))
    engine.close()


def test_leaving_the_block_cancels_the_row() -> None:
    engine = open_tiny(batch=1)
    with engine.generate([5, 6, 7], max_tokens=4000) as events:
        next(events)
    with engine.generate([5, 6, 7], max_tokens=3) as events:  # would wait for the first, had it stayed
        assert isinstance(list(events)[-1], motet.Finished)
    engine.close()


def test_the_portal_raises_what_the_engine_raises() -> None:
    engine = open_tiny()
    with pytest.raises(motet.InvalidRequest):
        with engine.generate([]):
            pass
    with pytest.raises(FileNotFoundError):
        EngineThread(partial(_no_model), Settings())
    engine.close()


def _no_model() -> Any:
    raise FileNotFoundError("no such model")


def test_closing_ends_a_waiting_thread_with_engine_died() -> None:
    engine = open_tiny()
    endings: list[BaseException] = []
    began = threading.Event()

    def wait() -> None:
        try:
            with engine.generate([5, 6, 7], max_tokens=4000) as events:
                for _ in events:
                    began.set()
        except motet.EngineDied as error:
            endings.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert began.wait(10)
    engine.close()
    thread.join(10)
    assert len(endings) == 1
