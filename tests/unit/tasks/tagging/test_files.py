"""Files of labelled words: sentences equal what was written, and the line of what is wrong."""

import re

import pytest

from bert_tf.tasks.tagging.files import (
    Sentence,
    check_labels,
    columns_of,
    find_split,
    read_tagged,
    with_predictions,
)
from bert_tf.util.errors import UserError

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

-DOCSTART- -X- -X- O
  Peter   NNP B-NP B-PER \r

"""
SENTENCES = [
    Sentence(3, ["EU", "rejects"], ["B-ORG", "O"]),
    Sentence(7, ["Peter"], ["B-PER"]),
]


def read(tmp_path, content, *, needs_labels=True):
    path = tmp_path / "some.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_tagged(path, flag="data_dir", needs_labels=needs_labels)


def test_sentences_of_conll(tmp_path):
    file = read(tmp_path, CONLL)
    assert file.sentences == SENTENCES
    assert (file.num_words, file.labels) == (3, ["B-ORG", "B-PER", "O"])


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffEU\tB-ORG\nrejects\tO\n\n\nPeter\tB-PER",
        "EU B-ORG\r\nrejects O\r\n \t \r\nPeter B-PER\r\n",
    ],
    ids=["tabs", "blanks"],
)
def test_two_columns(tmp_path, content):
    found = [(s.words, s.labels) for s in read(tmp_path, content).sentences]
    assert found == [(s.words, s.labels) for s in SENTENCES]


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("a  b c", ["a", "b", "c"]),
        ("New York\tB-LOC", ["New York", "B-LOC"]),
        ("a \t b", ["a", "b"]),
        # Not blanks, as far as words go.
        ("10\u00a0000 O", ["10\u00a0000", "O"]),
        ("a\u3000b", ["a\u3000b"]),
        ("", []),
        (" \t", []),
        ("-DOCSTART-", []),
        ("-DOCSTART- -X- O O", []),
        ("  -DOCSTART-(10023675)\tO", []),
        ("a O\t ", ["a", "O"]),
        ("\tO", ["", "O"]),
        ("\u200b\tO", ["\u200b", "O"]),
    ],
)
def test_columns(line, columns):
    assert columns_of(line) == columns


CONVENTIONS = {
    # Sentences end with a line that has only its tab; words have blanks, emoji, or nothing to see.
    "WNUT 17": (
        "RT\tO\n@ user\tO\n\U0001f60d\ufe0f\tO\n\t\n\ufe0f\tO\nNew York \tB-location  \n\t\n\n",
        [["RT", "@ user", "\U0001f60d\ufe0f"], ["\ufe0f", "New York"]],
        [["O", "O", "O"], ["O", "B-location"]],
    ),
    "NCBI in SciBERT's files": (
        "colon\tNN\tO\tB-Disease\ncancer\tNN\tO\tI-Disease\n\nIt\tPRP\tO\tO\n",
        [["colon", "cancer"], ["It"]],
        [["B-Disease", "I-Disease"], ["O"]],
    ),
    "BioBERT": ("colon\tB\ncancer\tI\n.\tO\n\n", [["colon", "cancer", "."]], [["B", "I", "O"]]),
    "BC5CDR": (
        "-DOCSTART- (10023675)\n\nNaloxone\tNN\tI-Chemical\n\n  -DOCSTART-\t-X-\tO\n\nIt\tPR\tO\n",
        [["Naloxone"], ["It"]],
        [["I-Chemical"], ["O"]],
    ),
}


@pytest.mark.parametrize(("content", "words", "labels"), CONVENTIONS.values(), ids=CONVENTIONS)
def test_conventions_of_published_files(tmp_path, content, words, labels):
    file = read(tmp_path, content)
    assert [sentence.words for sentence in file.sentences] == words
    assert [sentence.labels for sentence in file.sentences] == labels
    # Whoever reads the predictions finds them in a column of their own.
    predicted = [[f"{label}?" for label in of_sentence] for of_sentence in labels]
    again = read(tmp_path, "\n".join(with_predictions(file, predicted)))
    assert [sentence.words for sentence in again.sentences] == words
    assert [sentence.labels for sentence in again.sentences] == predicted


@pytest.mark.parametrize("word", ["\u3000", "\u00a0", "\u0085", "\u2028", "\x1c", "\x0c"])
@pytest.mark.parametrize("content", ["a{0}b O\n{0} O\nb B-A\n\n{0} O\n", "{0}\tO\n b\u00a0\tO\n"])
def test_only_blanks_and_tabs_separate(tmp_path, word, content):
    """Not other white space, which may be a word, or the first or last character of one."""
    content = content.format(word)
    rows = [re.split("[ \t]", line.strip(" ")) for line in content.split("\n") if line]
    for needs_labels in (True, False):
        if needs_labels:
            text, columns = content, rows
        else:
            text, columns = re.sub("[ \t](O|B-A)\n", "\n", content), [row[:1] for row in rows]
        file = read(tmp_path, text, needs_labels=needs_labels)
        assert len(file.sentences) == content.count("\n\n") + 1
        assert [word for s in file.sentences for word in s.words] == [row[0] for row in rows]
        labels = [["X"] * len(sentence.words) for sentence in file.sentences]
        lines = [re.split("[ \t]", line) for line in with_predictions(file, labels) if line]
        assert lines == [[*row, "X"] for row in columns]


def test_words_without_labels(tmp_path):
    file = read(tmp_path, "EU NNP\nrejects VBZ\n\nPeter\tNNP\n", needs_labels=False)
    assert file.sentences == [Sentence(1, ["EU", "rejects"], []), Sentence(4, ["Peter"], [])]
    assert read(tmp_path, "{}\n[1]\n", needs_labels=False).sentences[0].words == ["{}", "[1]"]


def test_running_text_is_not_taken_for_words_with_columns(tmp_path):
    words = r"line 2 of .*some\.txt has 6 columns, and the lines before it 3; .* one word on each"
    with pytest.raises(UserError, match=words):
        read(tmp_path, "EU rejects it.\nPeter Blackburn lives in Brussels .\n", needs_labels=False)


WRONG = {
    "no label": ("EU B-ORG\n\nrejects\n", "line 3 of {} has the word 'rejects' without a label"),
    "empty label": ("EU\tB-ORG\nrejects\t \tO\n", "line 2 of {} has 3 columns, and the lines bef"),
    "one column": ("EU\n", "line 1 of {} has the word 'EU' without a label; correct it"),
    "fewer columns": ("EU NNP B-ORG\nrejects O\n", "line 2 of {} has 2 columns, and the lines"),
    "more columns": ("EU O\nrejects VBZ O\n", "line 2 of {} has 3 columns"),
    "blank in a word, no label": (
        "EU\tB-ORG\nNew York\n",
        "line 2 of {} has the word 'New York' without a label; correct it",
    ),
    "blanks in a file with tabs": (
        "EU\tB-ORG\nrejects O\n",
        "line 2 of {} has the word 'rejects O' without a label",
    ),
    "no word": ("EU\tB-ORG\n\tO\n", "line 2 of {} has no word before its first tab; correct it"),
    "a blank as a word": ("EU\tO\n  \tO\n", "line 2 of {} has no word before its first tab"),
    "no sentences": ("-DOCSTART- -X- O O\n\n", "{} has no sentences; give a file with a word on"),
    "empty": ("", "{} is empty"),
    "JSON": ('{"words": ["EU"], "labels": ["O"]}\n', "line 1 of {} is a JSON object; give"),
    "Latin-1": (b"EU O\ncaf\xe9 O\n", "line 2 of {} is not UTF-8; convert the file"),
    "UTF-16": ("EU O\n".encode("utf-16"), "line 1 of {} is not UTF-8; convert the file"),
}


@pytest.mark.parametrize(("content", "words"), WRONG.values(), ids=WRONG)
def test_refused_files(tmp_path, content, words):
    words = "--data_dir: .*" + re.escape(words.format(tmp_path / "some.txt"))
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path, content)
    assert "\n" not in str(error.value)


def test_a_label_that_the_model_does_not_have(tmp_path):
    file = read(tmp_path, CONLL)
    check_labels(file, file.labels)
    sentence = (
        r"--data_dir: line 7 of .*some\.txt has the label 'B-PER', which the model does not have; "
        r"its labels are B-ORG, O\.$"
    )
    with pytest.raises(UserError, match=sentence):
        check_labels(file, ["B-ORG", "O"])
    many = [f"L{number}" for number in range(20)]
    with pytest.raises(UserError, match=r"L0, .* L11 and 8 more\.$"):
        check_labels(file, many)


def test_the_file_of_a_split(tmp_path):
    sentence = r"--data_dir: .* has no file dev\.txt or dev\.tsv or .* or valid\.conll; give"
    with pytest.raises(UserError, match=sentence):
        find_split(tmp_path, "dev", flag="data_dir")
    for name in ("valid.conll", "devel.tsv", "dev.txt"):
        (tmp_path / name).write_text("content")
        assert find_split(tmp_path, "dev", flag="data_dir") == tmp_path / name


def test_predictions_are_a_further_column(tmp_path):
    """Whoever reads both files finds the same words on the same lines."""
    lines = list(with_predictions(read(tmp_path, CONLL), [["O", "B-X"], ["B-PER"]]))
    assert lines == [
        *("", "", "EU NNP B-NP B-ORG O", "rejects VBZ B-VP O B-X", "", ""),
        *("Peter   NNP B-NP B-PER B-PER", ""),
    ]
    lines = with_predictions(read(tmp_path, "New York\tO\n", needs_labels=False), [["B-LOC"]])
    assert list(lines) == ["New York\tO\tB-LOC"]
