"""What a prefix's state depends on beside its tokens."""

import json

import attrs


@attrs.frozen
class Namespace:
    """Under what a state was computed. Equal tokens in unlike namespaces have nothing in common."""

    model: str = ""
    """The model's fingerprint (engine/fingerprint.py); empty if nothing outlives the process."""
    adapters: tuple[str, ...] = ()
    """The adapter set in order, each with its revision."""
    scheme: str = "plain"
    """How keys and values are encoded."""
    companions: tuple[str, ...] = ()
    """What else a method keeps with a row (a draft model's state), each with its fingerprint."""

    def encoded(self) -> str:
        """One line of text, the same for equal namespaces."""
        return json.dumps(attrs.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def decoded(cls, text: str) -> "Namespace":
        """The namespace of ``encoded``.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        fields = json.loads(text)
        return cls(
            str(fields["model"]),
            tuple(map(str, fields["adapters"])),
            str(fields["scheme"]),
            tuple(map(str, fields["companions"])),
        )


UNNAMED = Namespace()
"""Of a model whose states do not outlive the process."""
