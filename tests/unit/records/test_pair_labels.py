"""Labels of sentence pairs that teach nothing."""

import pytest

from bert_tf.records.info import one_sided_labels


@pytest.mark.parametrize(("label_1", "total"), [(0, 0), (5, 100), (50, 100), (95, 100), (1, 2)])
def test_two_labels_can_be_learned(label_1, total):
    assert one_sided_labels(label_1, total) is None


@pytest.mark.parametrize(
    ("label_1", "total", "sentence"),
    [
        (40, 40, "all sentence pairs have label 1,"),
        (0, 40, "all sentence pairs have label 0,"),
        (96, 100, "96.0% of the sentence pairs have label 1,"),
        (4, 100, "96.0% of the sentence pairs have label 0,"),
    ],
)
def test_one_label_has_a_cure(label_1, total, sentence):
    found = one_sided_labels(label_1, total)
    assert found.startswith(sentence)
    assert "several sentences in a document" in found
    assert "--nsp=false" in found
