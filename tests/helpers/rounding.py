"""How far rounded arithmetic may be from exact arithmetic, for tests that compare the two.

A bound that was read off one processor fails on the next: libraries add up in other orders, in
wider or narrower registers. Bounds here follow from the number of operations instead. They are far
below what a fault in the arithmetic makes (a term that is missing, a wrong factor, a narrower
type), so they may be generous.
"""

from __future__ import annotations

import math

# The unit roundoff u of a type: a result is off by at most u of itself.
FLOAT32, BFLOAT16, FLOAT16 = 2.0**-24, 2.0**-8, 2.0**-11


def of_products(products: int, terms: int, unit: float = FLOAT32) -> float:
    """The error of a tensor that has passed through matrix products, relative to its norm.

    In any order, a sum of n terms is off by at most n u of the sum of their sizes, and by about
    sqrt(n) u of that if the errors have random signs (Higham and Mary 2019). The sum of the sizes
    is about sqrt(n) times the sum itself if the terms have random signs. Together: n u of the sum.
    Products follow one another and err independently, so their squares add up.

    Args:
      products: their number, one after the other.
      terms: the most terms that an element of a product is the sum of.
      unit: the unit roundoff of the sums.
    """
    return math.sqrt(products) * terms * unit


def of_updates(updates: int) -> float:
    """The error of weights and moments after updates by given gradients, relative to the largest.

    An update rounds a moment or a weight when it adds to it: u. What it adds, a tenth or less, is
    the result of some ten operations: another u. Squares count double: 4 u, and errors add up. The
    gradients' own factor and the scalars of the update (rate, clip, corrections) take some more at
    the start, as much as three updates.
    """
    return 4 * (updates + 3) * FLOAT32


def of_way(of_gradients: float, weights: int) -> float:
    """The error of the way that all weights go together, relative to its norm.

    An Adam-like step is a gradient divided by its own size. One that is a hundred times smaller
    than usual makes the same step, which is off by a hundred times as much. Of N gradients the
    smallest is about 1/N of the usual: the norm of all errors is sqrt(N) times that of gradients.

    Args:
      of_gradients: the error of the gradients, relative to their norm.
      weights: N, the number of weights.
    """
    return math.sqrt(weights) * of_gradients
