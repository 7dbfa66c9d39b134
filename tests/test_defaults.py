"""How a model is sampled where a request says nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import save_model

import families
from motet.actors.request import Request
from motet.engine import model
from motet.engine.defaults import SamplingDefaults, from_config, sampling_defaults


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({}, SamplingDefaults()),
        ({"eos_token_id": 2, "max_length": 20}, SamplingDefaults()),
        ({"temperature": 0.6, "top_p": 0.95}, SamplingDefaults(temperature=0.6, top_p=0.95)),
        ({"do_sample": True, "top_k": 20}, SamplingDefaults(temperature=1.0, top_k=20)),
        (
            {"do_sample": True, "temperature": 0.7, "min_p": 0.1, "top_p": None},
            SamplingDefaults(temperature=0.7, min_p=0.1),
        ),
        (
            {"do_sample": False, "temperature": 0.6, "top_k": 5, "repetition_penalty": 1.1},
            SamplingDefaults(repetition_penalty=1.1),
        ),
    ],
)
def test_a_generation_config_is_read_as_transformers_reads_it(
    config: dict[str, Any], want: SamplingDefaults
) -> None:
    assert from_config(config) == want


@pytest.mark.parametrize(
    "config",
    [{"temperature": -1}, {"top_p": 0}, {"top_k": 2.5}, {"min_p": "0.1"}, {"repetition_penalty": True}],
)
def test_a_value_that_makes_no_sense_is_not_used(config: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=next(iter(config))):
        assert from_config(config) == SamplingDefaults()


def test_a_file_that_is_no_json_is_not_used(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == SamplingDefaults()
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.warns(UserWarning, match="cannot be read"):
        assert sampling_defaults(tmp_path) == SamplingDefaults()


def test_a_loaded_model_knows_its_defaults(tmp_path: Path) -> None:
    module, config = families.build("llama")
    save_model(tmp_path, module)
    (tmp_path / "config.json").write_text(json.dumps(config))
    families.tokenizer()._tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20}))
    loaded, _ = model.load(str(tmp_path))
    assert loaded.facts.sampling == SamplingDefaults(temperature=0.6, top_k=20)


def test_what_a_request_says_comes_before_the_models_defaults() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.2)
    unset = Request("a").sampling(1, None, defaults, ())
    assert (unset.temperature, unset.top_p, unset.top_k, unset.repetition_penalty) == (0.6, 0.9, 20, 1.2)
    said = Request("a", temperature=0, top_p=1, repetition_penalty=1).sampling(1, None, defaults, ())
    assert (said.temperature, said.top_p, said.top_k, said.repetition_penalty) == (0, 1, 20, 1)
    assert Request("a").sampling(1, None, SamplingDefaults(), ()).temperature == 0


def test_only_a_row_with_xtc_carries_the_tokens_that_it_spares() -> None:
    assert Request("a").sampling(1, None, SamplingDefaults(), (2, 3)).xtc_special == ()
    assert Request("a", xtc_probability=0.1).sampling(1, None, SamplingDefaults(), (2, 3)).xtc_special == (
        2,
        3,
    )
