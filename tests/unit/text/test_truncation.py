"""Which tokens are kept of texts that are too long together."""

import itertools

from bert_tf.text.tokenizer import kept_counts


def popped(counts, room):
    """One token after the other, as google-research/bert describes it."""
    kept = list(counts)
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    return kept


def test_pairs_lose_the_ends_of_the_longer_text():
    for first, second, room in itertools.product(range(7), range(7), range(2, 9)):
        assert kept_counts([first, second], room) == popped([first, second], room)


def test_a_single_text_loses_its_end():
    assert kept_counts([9], 5) == [5]
    assert kept_counts([3], 5) == [3]
