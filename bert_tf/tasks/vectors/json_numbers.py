"""Numbers as JSON, rounded to six digits, many at a time.

Python formats a number in half a microsecond, so the rows of google-research/bert's output would
take longer to write than to compute. Here the digits come from tables.
"""

from __future__ import annotations

import functools

import numpy as np

_DIGITS = 6
_UNIT = 10**_DIGITS
# Up to here Python writes exponents: 9.9e-05. In the tables, such numbers follow the others.
_SMALLEST_PLAIN = 10 ** (_DIGITS - 4)
_INTEGERS = 1000  # larger numbers are formatted one by one
_NUMBER = np.dtype([("sign", "S1"), ("integer", "S3"), ("fraction", "S8"), ("separator", "S2")])


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
