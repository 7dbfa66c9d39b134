"""The format of an entry's file: safetensors, whose metadata carry what the entry is.

    8 bytes      length of the header, little-endian
    the header   JSON, padded with spaces to 8 bytes: __metadata__, tokens, and the planes 0, 1, 2 ...
    tokens       I32 [n]
    the planes   in order, without gaps

Metadata: format, version, namespace, manifest, checksums (one of tokens, one a plane) and the header's own
checksum, which is that of the header with zeros in its place. All are BLAKE2b of 16 bytes, in hexadecimal: so
the header's length is known before the planes are, and it is written last.

The safetensors package writes and reads whole files; a file here is written while the device hands bytes
over, and read while it takes them. mx.load and the safetensors package read what is written here.
"""

import array
import hashlib
import json
import sys

import attrs

from motet.channels.archive import Draft, Filed
from motet.channels.manifest import Manifest
from motet.channels.namespace import Namespace

FORMAT = "motet-prompt-cache"
VERSION = "1"
_LONGEST_HEADER = 64 << 20
_ZEROS = "0" * 32


class BadFile(Exception):
    """Not an entry's file, or not as it was written."""


def checksum() -> "hashlib.blake2b":
    """An empty one."""
    return hashlib.blake2b(digest_size=16)


@attrs.frozen
class Header:
    """What stands at a file's start."""

    filed: Filed
    checksums: tuple[str, ...]
    """Of the tokens, and of each plane."""
    data_start: int
    """Where the planes begin."""

    @property
    def size(self) -> int:
        """The whole file's."""
        return self.data_start + self.filed.manifest.nbytes


def encode(draft: Draft, plane_checksums: list[str] | None = None) -> bytes:
    """The file's bytes up to its planes; the same length without their checksums."""
    manifest, tokens = draft.manifest, _packed(draft.tokens)
    digest = checksum()
    digest.update(tokens)
    sums = plane_checksums if plane_checksums is not None else [_ZEROS] * len(manifest.planes)
    fields: dict[str, object] = {
        "__metadata__": {
            "format": FORMAT,
            "version": VERSION,
            "checksum": _ZEROS,
            "checksums": " ".join([digest.hexdigest(), *sums]),
            "namespace": draft.namespace.encoded(),
            "manifest": manifest.encoded(),
        },
        "tokens": {"dtype": "I32", "shape": [len(draft.tokens)], "data_offsets": [0, len(tokens)]},
    }
    at = len(tokens)
    for number, plane in enumerate(manifest.planes):
        offsets = [at, at := at + plane.nbytes]
        fields[str(number)] = {"dtype": plane.dtype, "shape": list(plane.shape), "data_offsets": offsets}
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    digest = checksum()
    digest.update(header)
    header = header.replace(_ZEROS.encode(), digest.hexdigest().encode(), 1)
    return len(header).to_bytes(8, "little") + header + tokens


def header_length(first: bytes, size: int) -> int:
    """From a file's first 8 bytes and its size.

    Raises:
        BadFile: no file begins so.
    """
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > min(_LONGEST_HEADER, size - 8):
        raise BadFile("cut off or not an entry")
    return length


def decode(name: str, header: bytes, size: int) -> Header:
    """The header, without the tokens behind it, which ``with_tokens`` adds.

    Args:
        name: the file's.
        header: what stands behind the first 8 bytes.
        size: the whole file's.

    Raises:
        BadFile: it is of another format, or damaged.
    """
    try:
        metadata = json.loads(header)["__metadata__"]
        if (metadata["format"], metadata["version"]) != (FORMAT, VERSION):
            raise BadFile("of another format")
        told = metadata["checksum"].encode()
        digest = checksum()
        digest.update(header.replace(told, _ZEROS.encode(), 1))
        if digest.hexdigest().encode() != told:
            raise BadFile("its header is damaged")
        manifest = Manifest.decoded(metadata["manifest"])
        namespace = Namespace.decoded(metadata["namespace"])
        sums = tuple(metadata["checksums"].split(" "))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(f"its header cannot be read: {error}") from error
    start = 8 + len(header) + 4 * manifest.length
    whole = Header(Filed(name, namespace, (), manifest), sums, start)
    if len(sums) != 1 + len(manifest.planes) or whole.size != size:
        raise BadFile("not of its length")
    return whole


def with_tokens(header: Header, data: bytes) -> Header:
    """The header and the tokens behind it.

    Raises:
        BadFile: they are damaged.
    """
    digest = checksum()
    digest.update(data)
    if digest.hexdigest() != header.checksums[0]:
        raise BadFile("its tokens are damaged")
    tokens = array.array("i")
    tokens.frombytes(data)
    if sys.byteorder == "big":
        tokens.byteswap()
    return attrs.evolve(header, filed=attrs.evolve(header.filed, tokens=tuple(tokens)))


def _packed(tokens: tuple[int, ...]) -> bytes:
    packed = array.array("i", tokens)
    assert packed.itemsize == 4
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
