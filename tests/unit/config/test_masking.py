"""The settings of masks, declared once."""

import pytest

from bert_tf.config.masking import MaskingOptions
from bert_tf.util.errors import UserError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"masked_lm_prob": 0.0}, r"--masked_lm_prob=0 must be in \(0, 1\]\."),
        ({"masked_lm_prob": 1.5}, r"--masked_lm_prob=1\.5 must be in \(0, 1\]\."),
        ({"max_predictions_per_seq": 0}, "--max_predictions_per_seq=0 must be at least 1"),
        ({"ngram": 0}, "--ngram=0 must be at least 1"),
        ({"ngram": 2, "span_masking": True}, "--span_masking .* --ngram=2 .*; drop one of them"),
    ],
)
def test_impossible_values(values, message):
    with pytest.raises(UserError, match=message):
        MaskingOptions(**values)


def test_manifests_record_what_is_used():
    usual = {"max_predictions_per_seq": 20, "masked_lm_prob": 0.15, "do_whole_word_mask": False}
    assert list(MaskingOptions().parameters().items()) == list(usual.items())
    assert MaskingOptions(favor_shorter_ngram=False).parameters() == usual
    ngrams = MaskingOptions(ngram=2).parameters()
    assert ngrams == {**usual, "ngram": 2, "favor_shorter_ngram": True}
    assert MaskingOptions(span_masking=True).parameters() == {**usual, "span_masking": True}


def test_what_is_masked_together():
    assert MaskingOptions(masked_lm_prob=0.3, favor_shorter_ngram=False).together == ()
    both = MaskingOptions(do_whole_word_mask=True, ngram=3)
    assert both.together == ("do_whole_word_mask", "ngram")
    assert both.needs_words
    spans = MaskingOptions(span_masking=True)
    assert spans.together == ("span_masking",)
    assert spans.needs_words


@pytest.mark.parametrize(
    "values", [{}, {"ngram": 3, "favor_shorter_ngram": False}, {"span_masking": True}]
)
def test_what_manifests_record_is_read_again(values):
    options = MaskingOptions(0.3, 77, **values)
    parameters = {**options.parameters(), "dupe_factor": 10}
    assert MaskingOptions.from_parameters(parameters) == options
    assert MaskingOptions.from_parameters({"dupe_factor": 10}) is None
