"""What a snapshot's bytes mean: enough to build it again on the device, and nothing of MLX."""

import json
import math

import attrs

SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of an element, by safetensors' names of types."""


@attrs.frozen
class Plane:
    """An array: row-major and without gaps, as its bytes are carried."""

    dtype: str
    """One of SIZES."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return SIZES[self.dtype] * math.prod(self.shape)


@attrs.frozen
class Manifest:
    """A snapshot taken apart. Its bytes are those of its planes, one behind the other."""

    length: int
    """Tokens that it holds."""
    trimmable: bool
    floor: int
    """Tokens at its start that the scheme left as they were (the conversion floor); 0 with the plain one."""
    structure: str
    """JSON: the caches' kinds and states, arrays replaced by their numbers among the planes."""
    planes: tuple[Plane, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes)

    def encoded(self) -> str:
        """As JSON."""
        return json.dumps(attrs.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def decoded(cls, text: str) -> "Manifest":
        """The manifest of ``encoded``.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        fields = json.loads(text)
        planes = tuple(
            Plane(plane["dtype"], tuple(map(int, plane["shape"]))) for plane in fields.pop("planes")
        )
        return cls(**fields, planes=planes)
