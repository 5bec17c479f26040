"""Files and sequences of GLUE, against rows written out."""

import pytest

from bert_tf.errors import UserError
from bert_tf.glue.formats import GLUE_TASKS, Row, read_rows, sequence_of
from bert_tf.text.loading import load_tokenizer
from tests.small_span_model import VOCABULARY

FILES = {
    "cola": 'gj04\t1\t\tHe said "no.\ngj04\t0\t*\tMe no.\n',
    "mrpc": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t70\t71\tHe said "no.\tNo.\n'
    "0\t1\t2\tMe no.\tYes.\n",
    "sst-2": 'sentence\tlabel\nHe said "no.\t1\nMe no.\t0\n',
    "sts-b": 'main\tMSR\t2012\t1\t5.000\tHe said "no.\tNo.\n'
    "main\tMSR\t2012\t2\t0.25\tMe no.\tYes.\n",
    "wnli": 'index\tsentence1\tsentence2\tlabel\n4\tHe said "no.\tNo.\t1\n9\tMe no.\tYes.\t0\n',
}


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_rows(tmp_path, name):
    path = tmp_path / "train.tsv"
    path.write_text(FILES[name], encoding="utf-8")
    task = GLUE_TASKS[name]
    has_two = task.second is not None
    labels = (5.0, 0.25) if name == "sts-b" else (1.0, 0.0)
    assert read_rows(task, path, flag="glue_dir") == [
        Row('He said "no.', "No." if has_two else None, labels[0]),
        Row("Me no.", "Yes." if has_two else None, labels[1]),
    ]


def test_a_row_of_another_task(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text(FILES["sst-2"])
    with pytest.raises(UserError, match=r"--glue_dir: line 2 of .*train\.tsv has other columns"):
        read_rows(GLUE_TASKS["mrpc"], path, flag="glue_dir")


@pytest.mark.parametrize(
    ("row", "most", "tokens", "segments"),
    [
        (("who wrote it", None), 9, "[CLS] who wrote it [SEP]", "0 0 0 0 0"),
        (("who wrote it", None), 4, "[CLS] who wrote [SEP]", "0 0 0 0"),
        (("who", "anna"), 9, "[CLS] who [SEP] anna [SEP]", "0 0 0 1 1"),
        # The longer one is cut, of equal ones the second.
        (("who wrote it", "by anna"), 6, "[CLS] who wrote [SEP] by [SEP]", "0 0 0 0 1 1"),
    ],
)
def test_sequences(tmp_path, row, most, tokens, segments):
    (tmp_path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in VOCABULARY))
    tokenizer = load_tokenizer(vocab_file=tmp_path / "vocab.txt", do_lower_case=True)
    ids, found = sequence_of(Row(*row, 1.0), tokenizer, most)
    assert [VOCABULARY[i] for i in ids] == tokens.split()
    assert found == [int(s) for s in segments.split()]
