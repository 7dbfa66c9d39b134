"""Prompts that no server has seen: the same seed gives the same ones, another seed others."""

import json
import random
from pathlib import Path
from typing import Any

import tokenizers

_VOCABULARY = """
anchor apple april barley basket beacon bell birch bottle bridge bronze brother candle canal castle
cedar chapel cherry circle cloud clover coast copper corner cotton cradle crystal dawn desert dragon
drum eagle earth ember evening falcon feather fiddle field flame forest fountain garden ginger glass
granite harbor harvest hazel hollow honey island ivory jacket journey kettle kingdom ladder lantern
lemon letter linen marble market meadow mirror morning mountain needle night ocean olive orchard
paper pepper pilot plaza pocket prairie quarry rabbit raven ribbon river saddle sailor salt sand
season shadow silver sister spring stone summer table temple thunder timber tower valley velvet
village violin wagon walnut water willow window winter wolf wool yard
"""
_WORDS = _VOCABULARY.split()

_HEROES = (
    "a clockmaker who is afraid of time",
    "twins who swap their names",
    "the cook of a ship that never lands",
    "a postman with one last letter",
    "a girl who can talk to bridges",
    "an old king who wants to be a gardener",
    "two rivals who must share a boat",
    "a painter who has lost the colour blue",
)

# The words come first: a prompt cache finds nothing of it that it knows but the chat's head.
_REQUEST = "{words}: write a very long and detailed story with these words, in ten chapters, about {hero}."
_OPENING = "Here is a long story about {hero}. In it appear: {words}.\n\nChapter 1\n\n"


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


def requests(rng: random.Random, count: int) -> list[list[dict[str, str]]]:
    """Chats of 30 to 120 words, evenly unlike in length, that ask for long stories."""
    lengths = [round(30 + 90 * (i + rng.random()) / count) for i in range(count)]
    rng.shuffle(lengths)
    return [[{"role": "user", "content": _request(rng, length)}] for length in lengths]


def _request(rng: random.Random, length: int) -> str:
    hero = rng.choice(_HEROES)
    bare = len(_REQUEST.format(hero=hero, words="").split())
    return _REQUEST.format(hero=hero, words=_words(rng, max(5, length - bare)))


class TokenPrompts:
    """Prompts as token ids, for completions.

    Args:
        model: a model directory; its tokenizer is used.
        drawn: draw the ids themselves, for models that no text means anything to.
        seed: what the prompts follow from.
    """

    def __init__(self, model: str, *, drawn: bool, seed: object) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
        self._special = _special(self._tokenizer)
        self._drawn = drawn
        self._rng = random.Random(str(seed))

    def draw(self, length: int) -> list[int]:
        """A fresh prompt of so many tokens."""
        if self._drawn:
            return [self._draw_id() for _ in range(length)]
        # The end asks for a story; words before it, cut from the left, make up the length.
        text = _OPENING.format(hero=self._rng.choice(_HEROES), words=_words(self._rng, 8))
        while len(ids := self._ids(text)) < length:
            text = f"{_words(self._rng, max(8, length - len(ids)))}\n\n{text}"
        return ids[-length:]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _draw_id(self) -> int:
        while (drawn := self._rng.randrange(self._tokenizer.get_vocab_size())) in self._special:
            pass
        return drawn

    def count(self, pieces: list[str]) -> list[int]:
        """How many tokens each piece of a text is, about."""
        encoded = self._tokenizer.encode_batch(pieces, add_special_tokens=False)
        return [max(1, len(each.ids)) for each in encoded]


def _special(tokenizer: Any) -> frozenset[int]:
    added = json.loads(tokenizer.to_str())["added_tokens"]
    return frozenset(token["id"] for token in added)
