from __future__ import annotations

import numpy as np
import pytest

from bert_tf.input import stateless_random


def splitmix64(state, count):
    """The published generator in plain integers: an independent reference."""
    draws = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        draws.append(z ^ (z >> 31))
    return draws


def test_a_stream_is_splitmix64():
    """First draws of SplitMix64 from seed 1234567, as in the generator's public test vectors."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix64(1234567, 3) == known
    keys = np.array([1234567, 2**64 - 1], np.uint64)
    bits = stateless_random.random_bits(keys, 5)
    assert bits[0].tolist() == splitmix64(1234567, 5)
    assert bits[1].tolist() == splitmix64(2**64 - 1, 5)


def test_keys_are_computed_for_arrays_as_for_single_counters():
    keys = stateless_random.derive_keys(7, 3, np.arange(5))
    singles = [stateless_random.derive_keys(7, 3, i)[0] for i in range(5)]
    assert keys.tolist() == singles


def test_keys_depend_on_the_seed_and_on_each_counter_in_its_place():
    keys = {
        int(stateless_random.derive_keys(seed, *counters)[0])
        for seed in (0, 1, -1, 2**63)
        for counters in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (2**40, 5)]
    }
    assert len(keys) == 4 * 7


def test_the_low_64_bits_of_a_seed_count():
    derive = stateless_random.derive_keys
    assert derive(2**64 + 5, 1) == derive(5, 1)
    assert derive(-1, 1) == derive(2**64 - 1, 1)


def test_uniform_numbers_are_uniform():
    keys = stateless_random.derive_keys(1, np.arange(200))
    numbers = stateless_random.bits_to_uniform(stateless_random.random_bits(keys, 500))
    assert 0 <= numbers.min() < numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
    assert ((counts - 2000) ** 2 / 2000).sum() < 100  # 49 degrees of freedom: 1e-5 quantile
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.3
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("bound", [1, 2, 7, 30522])
def test_integers_fill_their_range(bound):
    bits = stateless_random.random_bits(stateless_random.derive_keys(3, 1), 40_000)
    integers = stateless_random.bits_to_integers(bits, bound)
    assert integers.min() >= 0
    assert integers.max() < bound
    assert abs(integers.mean() - (bound - 1) / 2) < bound * 0.01


def test_the_largest_draw_stays_below_the_bound():
    top = np.array([2**64 - 1], np.uint64)
    assert stateless_random.bits_to_integers(top, 30522)[0] == 30521
