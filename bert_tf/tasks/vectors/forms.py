"""The forms of the output: google-research/bert's JSON lines, and arrays.

A form encodes parts independently; their bytes, in order, follow a header. An array of tokens has a
second file that says which token of which text each row belongs to.

In JSON, numbers are rounded to six digits. Python formats a number in half a microsecond, so these
lines would take longer to write than to compute. Here the digits come from tables.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Union

import numpy as np

from bert_tf.tasks.vectors.chosen import ChosenVectors
from bert_tf.tasks.vectors.settings import FeatureSettings
from bert_tf.tasks.vectors.texts import TokenSequence
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.errors import UserError

# A row of the second file of an array of tokens.
TOKEN_ROW = np.dtype([("text", "<i8"), ("id", "<i4")])

_DIGITS = 6
_UNIT = 10**_DIGITS
# Up to here Python writes exponents: 9.9e-05. In the tables, such numbers follow the others.
_SMALLEST_PLAIN = 10 ** (_DIGITS - 4)
_INTEGERS = 1000  # larger numbers are formatted one by one
_NUMBER = np.dtype([("sign", "S1"), ("integer", "S3"), ("fraction", "S8"), ("separator", "S2")])


class Encoded(NamedTuple):
    """A part of the output.

    Attributes:
      content: uint8, its bytes in the output file.
      tokens: uint8, its bytes in the file of tokens; empty if there is none.
      rows: rows of an array in it.
    """

    content: np.ndarray
    tokens: np.ndarray
    rows: int


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """google-research/bert's lines of ``extract_features.py``, one per text.

    If tokens are pooled, a line has ``layers`` instead of ``features``, which lists tokens.

    Attributes:
      layers: as the user numbered them.
      tokens_file: the second file, for an array of tokens; otherwise None.
    """

    layers: Sequence[int]
    tokenizer: Tokenizer

    tokens_file: ClassVar[None] = None

    def encode(
        self, first: int, sequences: Sequence[TokenSequence], vectors: Sequence[np.ndarray]
    ) -> Encoded:
        """Encodes the vectors of consecutive texts, of which ``first`` is the first one's number.

        ``vectors`` are float32 [layers, D], or [tokens, layers, D] if tokens are not pooled. Raises
        UserError for numbers that the form cannot represent.
        """
        lines = [
            self._line(number, sequence, values)
            for number, (sequence, values) in enumerate(zip(sequences, vectors), start=first)
        ]
        return Encoded(_bytes(b"".join(lines)), _bytes(b""), len(lines))

    def headers(self, rows: int) -> tuple[bytes, bytes]:
        """What precedes the bytes of all parts, of ``rows`` rows, in both files."""
        del rows
        return b"", b""

    def _line(self, number: int, sequence: TokenSequence, values: np.ndarray) -> bytes:
        start = b'{"linex_index": %d, ' % number
        rows = iter(rows_as_json(values.reshape(-1, values.shape[-1])))
        if values.ndim == 2:
            return b'%s"layers": [%s]}\n' % (start, self._one(rows))
        tokens = self.tokenizer.convert_ids_to_tokens(sequence.ids.tolist())
        features = [
            b'{"token": %s, "layers": [%s]}' % (json.dumps(token).encode(), self._one(rows))
            for token in tokens
        ]
        return b'%s"features": [%s]}\n' % (start, b", ".join(features))

    def _one(self, rows: Iterator[bytes]) -> bytes:
        """The layers of one token or text; takes as many of the rows."""
        return b", ".join(
            b'{"index": %d, "values": [%s]}' % (layer, next(rows)) for layer in self.layers
        )


class Array:
    """A .npy file of all vectors, which can be mapped into memory.

    Rows are texts or tokens: [rows, D], or [rows, layers, D] for several layers.
    """

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...], *, tokens: bool) -> None:
        """``shape`` is that of a row; ``tokens`` are not pooled, so that a row is a token's."""
        self.tokens_file = tokens_file_of(path) if tokens else None
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shape = shape

    def encode(
        self, first: int, sequences: Sequence[TokenSequence], vectors: Sequence[np.ndarray]
    ) -> Encoded:
        """See :class:`JsonLines`."""
        if self.tokens_file is None:
            return self._encoded(np.stack(vectors), b"")
        counts = [len(sequence.ids) for sequence in sequences]
        tokens = np.empty(sum(counts), TOKEN_ROW)
        tokens["text"] = np.repeat(np.arange(first, first + len(counts)), counts)
        tokens["id"] = np.concatenate([sequence.ids for sequence in sequences])
        return self._encoded(np.concatenate(vectors), tokens.tobytes())

    def _encoded(self, values: np.ndarray, tokens: bytes) -> Encoded:
        with np.errstate(over="ignore"):
            converted = values.astype(self._dtype)
        if not np.isfinite(converted).all():
            raise UserError(
                f"--output_dtype={self._dtype.name} cannot hold a component of "
                f"{np.abs(values).max():.3g}; give --output_dtype=float32 or --normalize."
            )
        return Encoded(_bytes(converted.tobytes()), _bytes(tokens), len(values))

    def headers(self, rows: int) -> tuple[bytes, bytes]:
        """See :class:`JsonLines`."""
        tokens = b"" if self.tokens_file is None else _header(TOKEN_ROW, (rows,))
        return _header(self._dtype, (rows, *self._shape)), tokens


Form = Union[JsonLines, Array]


def tokens_file_of(path: Path) -> Path:
    """The file of the tokens of an array's rows."""
    return path.with_suffix(f".tokens{path.suffix}")


def form_of(
    settings: FeatureSettings, chosen: ChosenVectors, width: int, tokenizer: Tokenizer
) -> Form:
    """The form that the name of the output file asks for, of vectors of ``width`` components."""
    layers = chosen.layers
    if not settings.writes_array:
        return JsonLines(layers, tokenizer)
    shape = (width,) if len(layers) == 1 else (len(layers), width)
    tokens = not chosen.is_pooled
    return Array(settings.output_file, settings.output_type, shape, tokens=tokens)


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": description, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def rows_as_json(values: np.ndarray) -> list[bytes]:
    """The text of each row between the brackets: ``0.25, -1.0``, as ``json.dumps`` writes it.

    ``values`` are finite, float32 [rows, columns]. Each is rounded to six digits after the decimal
    point like ``round(value, 6)``: a product of a float32 and a million is exact in float64.
    """
    scaled = np.rint(values.astype(np.float64) * _UNIT)
    magnitude = np.abs(scaled)
    if not values.size or magnitude.max() >= _INTEGERS * _UNIT:
        return [", ".join(map(repr, row)).encode() for row in (scaled / _UNIT).tolist()]
    integers, fractions = _tables()
    whole, rest = np.divmod(magnitude.astype(np.uint32), np.uint32(_UNIT))
    is_small = (whole == 0) & (rest < _SMALLEST_PLAIN)
    text = np.zeros(values.shape, _NUMBER)
    text["sign"] = np.where(np.signbit(scaled), b"-", b"")
    text["integer"] = integers.take(whole + is_small * np.uint32(_INTEGERS))
    text["fraction"] = fractions.take(rest + is_small * np.uint32(_UNIT))
    text["separator"][:, :-1] = b", "
    # Shorter texts are filled with zeros.
    return [row.tobytes().translate(None, b"\0") for row in text]


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """The digits before the point, and the point with the digits after it, as bytes.

    Numbers that Python writes with an exponent have no digits in the first table and all of them in
    the second.
    """
    integers = np.array([*(b"%d" % n for n in range(_INTEGERS)), b""], "S3")
    digits = np.zeros((_UNIT + _SMALLEST_PLAIN, 8), np.uint8)
    rest = np.arange(_UNIT)
    digits[:_UNIT, 0] = ord(".")
    for place in range(_DIGITS):
        # A trailing zero is left out, but for the one after the point.
        is_shown = (rest % 10 ** (_DIGITS - place) != 0) | (place == 0)
        digit = rest // 10 ** (_DIGITS - 1 - place) % 10
        digits[:_UNIT, place + 1] = np.where(is_shown, ord("0") + digit, 0)
    fractions = digits.view("S8")[:, 0]
    fractions[_UNIT:] = [repr(n / _UNIT).encode() for n in range(_SMALLEST_PLAIN)]
    return integers, fractions
