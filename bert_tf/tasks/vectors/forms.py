"""The forms of the output: google-research/bert's JSON lines, and arrays.

A form turns the vectors of consecutive texts into named arrays. A file has the arrays of all
parts, one after the other. An array of tokens has a second one that says which token of which text
each of its rows belongs to.

In JSON, numbers are rounded to six digits. Python formats a number in half a microsecond, so these
lines would take longer to write than to compute. Here the digits come from tables.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_tf.durable.resumable import ArrayParts
from bert_tf.tasks.vectors.texts import TokenSequence
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open

# The arrays: bytes of lines, or vectors and the tokens that these belong to.
LINES, VECTORS, TOKENS_OF_ROWS = "lines", "vectors", "tokens"
TOKEN_ROW = np.dtype([("text", "<i8"), ("id", "<i4")])

_DIGITS = 6
_UNIT = 10**_DIGITS
# Up to here Python writes exponents: 9.9e-05. In the tables, such numbers follow the others.
_SMALLEST_PLAIN = 10 ** (_DIGITS - 4)
_INTEGERS = 1000  # larger numbers are formatted one by one
_NUMBER = np.dtype([("sign", "S1"), ("integer", "S3"), ("fraction", "S8"), ("separator", "S2")])


def as_arrays(
    first: int, sequences: Sequence[TokenSequence], vectors: Sequence[np.ndarray], *, dtype: str
) -> dict[str, np.ndarray]:
    """The vectors of consecutive texts as rows, of which one is a text's or a token's.

    Args:
      first: the number of the first text.
      sequences: the sequences of the texts.
      vectors: float32 [layers, D] each, or [tokens, layers, D] if tokens are not pooled.
      dtype: the type of the result.

    Returns: ``VECTORS``, [rows, D], or [rows, layers, D] for several layers; and
    ``TOKENS_OF_ROWS`` if tokens are not pooled. Raises UserError for numbers that the type cannot
    represent.
    """
    is_pooled = vectors[0].ndim == 2
    values = np.stack(vectors) if is_pooled else np.concatenate(vectors)
    with np.errstate(over="ignore"):
        converted = values.astype(np.dtype(dtype).newbyteorder("<"))
    if not np.isfinite(converted).all():
        raise UserError(
            f"--output_dtype={dtype} cannot hold a component of {np.abs(values).max():.3g}; give "
            "--output_dtype=float32 or --normalize."
        )
    rows = converted[:, 0] if converted.shape[1] == 1 else converted
    if is_pooled:
        return {VECTORS: rows}
    tokens = np.empty(len(rows), TOKEN_ROW)
    counts = [len(sequence.ids) for sequence in sequences]
    tokens["text"] = np.repeat(np.arange(first, first + len(counts)), counts)
    tokens["id"] = np.concatenate([sequence.ids for sequence in sequences])
    return {VECTORS: rows, TOKENS_OF_ROWS: tokens}


def as_lines(
    first: int,
    sequences: Sequence[TokenSequence],
    vectors: Sequence[np.ndarray],
    *,
    layers: Sequence[int],
    tokenizer: Tokenizer,
) -> dict[str, np.ndarray]:
    """The vectors of consecutive texts as google-research/bert's ``extract_features.py`` has them.

    If tokens are pooled, a line has ``layers`` instead of ``features``, which lists tokens. The
    arguments are as for :func:`as_arrays`; ``layers`` are as the user numbered them.

    Returns: ``LINES``, uint8, one line per text.
    """

    def next_layers(rows: Iterator[bytes]) -> bytes:
        numbered = (b'{"index": %d, "values": [%s]}' % (layer, next(rows)) for layer in layers)
        return b"[%s]" % b", ".join(numbered)

    lines = []
    for number, (sequence, values) in enumerate(zip(sequences, vectors), start=first):
        rows = iter(rows_as_json(values.reshape(-1, values.shape[-1])))
        if values.ndim == 2:
            content = b'"layers": %s' % next_layers(rows)
        else:
            tokens = tokenizer.convert_ids_to_tokens(sequence.ids.tolist())
            features = (
                b'{"token": %s, "layers": %s}' % (json.dumps(token).encode(), next_layers(rows))
                for token in tokens
            )
            content = b'"features": [%s]' % b", ".join(features)
        lines.append(b'{"linex_index": %d, %s}\n' % (number, content))
    return {LINES: np.frombuffer(b"".join(lines), np.uint8)}


def tokens_file_of(path: Path) -> Path:
    """The file of the tokens of an array's rows."""
    return path.with_suffix(f".tokens{path.suffix}")


def join(parts: ArrayParts, paths: Mapping[str, Path], *, rows: int) -> None:
    """Writes the arrays of each name to a file, one after the other.

    It is a ``.npy`` file with so many rows, which can be mapped into memory, or ``LINES``.
    """
    with contextlib.ExitStack() as opened:
        files = {
            name: opened.enter_context(atomic_open(path, "wb", durable=True))
            for name, path in paths.items()
        }
        for number, part in enumerate(parts.read_all()):
            for name, file in files.items():
                if number == 0 and name != LINES:
                    file.write(_header(part[name], rows))
                file.write(part[name].tobytes())


def _header(array: np.ndarray, rows: int) -> bytes:
    """What begins a ``.npy`` file with such rows as an array has."""
    buffer = io.BytesIO()
    description = np.lib.format.dtype_to_descr(array.dtype)
    np.lib.format.write_array_header_1_0(
        buffer,
        {"descr": description, "fortran_order": False, "shape": (rows, *array.shape[1:])},
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
