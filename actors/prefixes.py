"""An index of token sequences that finds the longest usable prefix of a prompt.

A radix tree: a node holds the run of tokens since its parent. mlx-lm's PromptTrie keeps one dictionary a
token, which for a few prompts of 10,000 tokens costs more memory than it saves time, and cannot tell an
entry that may be cut from one that serves only exactly its length.
"""

from typing import Generic, TypeVar

import attrs

Value = TypeVar("Value")


@attrs.define(eq=False)
class _Node(Generic[Value]):
    run: tuple[int, ...]
    children: "dict[int, _Node[Value]]" = attrs.Factory(dict)
    value: Value | None = None
    cuttable: bool = False


class PrefixIndex(Generic[Value]):
    """Token sequences, each with a value."""

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node(())

    def add(self, tokens: tuple[int, ...], value: Value, *, cuttable: bool) -> None:
        """Index a sequence; ``cuttable`` if its value serves shorter prefixes of it too."""
        node = self._node_at(tokens)
        node.value, node.cuttable = value, cuttable

    def _node_at(self, tokens: tuple[int, ...]) -> _Node[Value]:
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                child = _Node(tokens[depth:])
                node.children[tokens[depth]] = child
                return child
            same = common_prefix(child.run, tokens[depth : depth + len(child.run)])
            if same < len(child.run):
                upper: _Node[Value] = _Node(child.run[:same], {child.run[same]: child})
                child.run = child.run[same:]
                node.children[tokens[depth]] = upper
                child = upper
            node, depth = child, depth + same
        return node

    def remove(self, tokens: tuple[int, ...]) -> None:
        """Take a sequence out that was added."""
        path = self._path(tokens)
        path[-1].value = None
        for parent, node in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
            if node.value is not None or len(node.children) > 1:
                return
            if not node.children:
                del parent.children[node.run[0]]
                continue
            (only,) = node.children.values()
            only.run = node.run + only.run
            parent.children[only.run[0]] = only
            return

    def _path(self, tokens: tuple[int, ...]) -> list[_Node[Value]]:
        path, depth = [self._root], 0
        while depth < len(tokens):
            path.append(path[-1].children[tokens[depth]])
            depth += len(path[-1].run)
        return path

    def spared(self, tokens: tuple[int, ...]) -> int:
        """How long a prefix of an indexed sequence the others serve: what its loss would not cost."""
        path = self._path(tokens)
        depth = len(tokens)
        if _cuttable_under(path[-1]):
            return depth
        for node, child in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
            depth -= len(child.run)
            if node.value is not None or _cuttable_under(node, beside=child):
                return depth
        return 0

    def on_the_way_to(self, tokens: tuple[int, ...]) -> list[Value]:
        """Values of strict prefixes of a sequence that may be cut: if its own may be, it serves for them."""
        path = [node for node, depth, whole in self._walk(tokens) if whole and depth < len(tokens)]
        return [node.value for node in path if node.value is not None and node.cuttable]

    def longest(self, tokens: tuple[int, ...], edge: int = 1) -> tuple[Value | None, int]:
        """The value that serves the longest prefix of ``tokens``, and that prefix's length.

        Lengths are multiples of ``edge``. An entry that may not be cut serves only exactly its length.
        """
        best: tuple[Value | None, int] = (None, 0)
        for node, depth, whole in reversed(self._walk(tokens)):
            if depth <= best[1]:
                break
            if whole and node.value is not None and depth % edge == 0:
                return node.value, depth
            cuttable = _any_cuttable(node)
            if cuttable is not None and depth - depth % edge > best[1]:
                best = (cuttable, depth - depth % edge)
        return best

    def _walk(self, tokens: tuple[int, ...]) -> list[tuple[_Node[Value], int, bool]]:
        """The nodes along ``tokens``, each with how many tokens match and whether to its end."""
        walked = []
        node, depth = self._root, 0
        while depth < len(tokens) and (child := node.children.get(tokens[depth])) is not None:
            same = common_prefix(child.run, tokens[depth : depth + len(child.run)])
            depth += same
            whole = same == len(child.run)
            walked.append((child, depth, whole))
            if not whole:
                break
            node = child
        return walked


def _cuttable_under(node: _Node[Value], beside: _Node[Value] | None = None) -> bool:
    """Whether a value under a node may be cut, one child not looked at."""
    return any(_any_cuttable(child) is not None for child in node.children.values() if child is not beside)


def _any_cuttable(node: _Node[Value]) -> Value | None:
    """Some cuttable value at or under a node."""
    todo = [node]
    while todo:
        node = todo.pop()
        if node.value is not None and node.cuttable:
            return node.value
        todo.extend(node.children.values())
    return None


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many tokens two runs share from their start; comparing slices runs in C."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
