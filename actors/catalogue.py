"""Which files there are, and which of them serves a prompt."""

from motet.actors.prefixes import PrefixIndex
from motet.channels.archive import Filed
from motet.channels.namespace import Namespace


class Catalogue:
    """Files by name, found by their tokens within a namespace."""

    def __init__(self) -> None:
        self._files: dict[str, Filed] = {}
        self._indices: dict[Namespace, PrefixIndex[str]] = {}

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: Filed) -> bool:
        """Take a file in. False, and it is not: another holds the same."""
        index = self._indices.setdefault(file.namespace, PrefixIndex())
        known, length = index.longest(file.tokens)
        if known is not None and length == len(file.tokens) == len(self._files[known].tokens):
            return False
        self._files[file.name] = file
        index.add(file.tokens, file.name, cuttable=file.manifest.trimmable)
        return True

    def drop(self, names: tuple[str, ...]) -> None:
        """Files that are no more. Without effect on those that are not known."""
        for name in names:
            file = self._files.pop(name, None)
            if file is not None:
                self._indices[file.namespace].remove(file.tokens)

    def longest(
        self, namespace: Namespace, tokens: tuple[int, ...], edge: int = 1
    ) -> tuple[Filed | None, int]:
        """The file that serves the longest prefix, and its length, a multiple of ``edge``."""
        index = self._indices.get(namespace)
        name, length = (None, 0) if index is None else index.longest(tokens, edge)
        return (None, 0) if name is None else (self._files[name], length)

    def prefixes(self, namespace: Namespace, tokens: tuple[int, ...]) -> tuple[str, ...]:
        """Files that a longer one which can be cut makes needless."""
        index = self._indices.get(namespace)
        return () if index is None else tuple(index.on_the_way_to(tokens))
