"""Converted directories as transformers loads them: the same ids and outputs as here.

The program next to this file runs with this interpreter's transformers, and with those of the
interpreters in BERT_TF_TRANSFORMERS (paths, separated by blanks), which have other versions.
"""

import json
import os
import sys

import numpy as np
import pytest

from bert_tf.checkpoint.formats import open_source
from bert_tf.commands.convert import convert
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Classes
from bert_tf.text.tokenizer_files import TokenizerFiles
from tests.helpers.model_records import set_record
from tests.helpers.programs import ROOT, run
from tests.helpers.sentencepiece_models import LINES, train_sentencepiece
from tests.unit.checkpoint.tiny_models import LABELS, our_outputs, save_google

PROGRAM = ROOT / "tests/end_to_end/transformers_program.py"
PYTHONS = [sys.executable, *os.environ.get("BERT_TF_TRANSFORMERS", "").split()]
GOLDEN = json.loads((ROOT / "tests/data/google_tokenizer_golden.json").read_text())
# Names of special tokens in a text mean these tokens there.
CASES = [case for case in GOLDEN["cases"] if "[MASK]" not in case["text"]]

WORDS = "where does anna live ? in paris , the old town of a friend . un ##able ##s"
ENTRIES = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(" ")]
TEXTS = ["Anna does live in Paris .", "the Towns, unable"]
QUESTION = {"question": "Where does Anna live?", "context": "Anna live in old Paris."}
MASKED = "anna does [MASK] in paris"
CASINGS = ("uncased", "cased")
CLASSES = {
    "one": Classes.of_texts(SINGLE_LABEL, ("bad", "good", "so so")),
    "several": Classes.of_texts(MULTI_LABEL, ("news", "sports", "town")),
    "rating": Classes(REGRESSION),
}
HEADS = {
    **dict.fromkeys(CLASSES, "BertForSequenceClassification"),
    "labels": "BertForTokenClassification",
    "words": "BertForMaskedLM",
    "pretrained": "BertForPreTraining",
    "answers": "BertForQuestionAnswering",
    "bare": "BertModel",
    "distilled": "DistilBertForMaskedLM",
    "distilled labels": "DistilBertForTokenClassification",
}

pytestmark = pytest.mark.slow


class Models:
    """Directories by name, ours and the converted ones, and the vocabulary of most of them."""

    def __init__(self, place):
        self.place = place
        vocab = place / "vocab.txt"
        vocab.write_text("\n".join(ENTRIES) + "\n")
        self.files = TokenizerFiles(vocab, do_lower_case=True)
        self.tokenizer = self.files.load()

    def make(self, name, class_name, tokenizer_files=None):
        classes = CLASSES.get(name)
        ours = self.place / f"our {name}"
        files = tokenizer_files or self.files
        number = len(classes.labels) or 1 if classes else 3
        save_google(ours, class_name, tokenizer_files=files, num_classes=number)
        if classes:
            set_record(ours, classes=classes)
        return convert(open_source(ours), self.place / name, "huggingface")

    def load(self, name):
        """Our tokenizer of a directory."""
        return open_source(self.place / f"our {name}").files.tokenizer_files.load()

    def outputs(self, name, *inputs):
        """Our network's outputs for each input: texts, in which [MASK] may be a word."""
        rows = list(map(self.encoded, inputs))
        batch = np.zeros([3, len(rows), max(len(ids) for ids, _ in rows)], np.int64)
        for row, (ids, segments) in enumerate(rows):
            batch[:, row, : len(ids)] = ids, np.ones(len(ids)), segments
        found = our_outputs(self.place / f"our {name}", HEADS[name], batch)
        return [
            {key: value[row][: len(ids)] for key, value in found.items()}
            for row, (ids, _) in enumerate(rows)
        ]

    def encoded(self, texts):
        """Ids and segments of a text or a pair."""
        ids, segments = [self.tokenizer.cls_id], [0]
        for segment, text in enumerate([texts] if isinstance(texts, str) else texts):
            before, *after = map(self.tokenizer.encode, text.split("[MASK]"))
            part = [*before, *(i for more in after for i in (self.tokenizer.mask_id, *more))]
            ids += [*part, self.tokenizer.sep_id]
            segments += [segment] * (len(part) + 1)
        return ids, segments


@pytest.fixture(scope="module", name="models")
def models_in_their_form(tmp_path_factory):
    models = Models(tmp_path_factory.mktemp("models"))
    for name, class_name in HEADS.items():
        models.make(name, class_name)
    for casing in CASINGS:
        vocab = models.place / f"golden-{casing}.txt"
        vocab.write_text("\n".join(GOLDEN["vocabulary"]) + "\n", encoding="utf-8")
        files = TokenizerFiles(vocab, do_lower_case=casing == "uncased")
        models.make(casing, "BertModel", files)
    return models


@pytest.fixture(scope="module", name="pieces")
def sentencepiece_models(models):
    """The same network with SentencePiece models, cased and uncased."""
    path = train_sentencepiece(models.place / "spm.model")
    for name, lower_case in (("pieces", False), ("lower pieces", True)):
        models.make(name, "BertModel", TokenizerFiles(None, path, lower_case))
    return models


@pytest.fixture(scope="module", name="results", params=PYTHONS)
def results_of_transformers(request, models, pieces):
    """What the program says: (directory's name, step) -> results, one for each input."""
    del pieces
    inputs = {
        **{(casing, "ids"): [case["text"] for case in CASES] for casing in CASINGS},
        ("pieces", "ids"): LINES,
        ("lower pieces", "ids"): LINES,
        ("words", "ids"): ["Anna [MASK] Paris[SEP]", "[mask]"],
        ("masked pieces", "ids"): ["the  [MASK]  list"],
        ("words", "pairs"): [TEXTS],
        ("distilled", "pairs"): [TEXTS],
        ("words", "special"): [None],
        ("pieces", "special"): [None],
        ("words", "decoded"): [models.tokenizer.encode(TEXTS[1])],
        ("pieces", "decoded"): [models.load("pieces").encode("the quick, brown fox")],
        **{(name, "text-classification"): TEXTS for name in CLASSES},
        **{(name, "token-classification"): TEXTS for name in ("labels", "distilled labels")},
        **{(name, "fill-mask"): [MASKED] for name in ("words", "pretrained", "distilled")},
        ("answers", "spans"): [QUESTION],
        ("answers", "question-answering"): [QUESTION],
        ("bare", "feature-extraction"): TEXTS,
    }
    jobs = [
        (str(models.place / name.removeprefix("masked ")), step, of)
        for (name, step), of in inputs.items()
    ]
    path = models.place / "jobs.json"
    path.write_text(json.dumps(jobs))
    found = json.loads(run(PROGRAM, path, fresh=True, python=request.param).stdout)
    return dict(zip(inputs, found))


@pytest.mark.parametrize("casing", CASINGS)
def test_ids_are_googles(results, casing):
    assert results[casing, "ids"] == [case[f"ids_{casing}"] for case in CASES]


@pytest.mark.parametrize("name", ["pieces", "lower pieces"])
def test_ids_are_those_of_sentencepiece(models, results, name):
    tokenizer = models.load(name)
    assert results[name, "ids"] == [tokenizer.encode(line) for line in LINES]


def test_the_names_of_special_tokens_are_these_tokens(models, results):
    token = models.tokenizer.convert_tokens_to_ids
    anna, other = results["words", "ids"]
    assert anna == token(["anna", "[MASK]", "paris", "[SEP]"])
    assert token(["[MASK]"])[0] not in other
    pieces = models.load("pieces")
    expected = [*pieces.encode("the"), pieces.mask_id, *pieces.encode("list")]
    assert results["masked pieces", "ids"] == [expected]


def test_pairs_have_segments_where_the_network_has(models, results):
    first, second = map(models.tokenizer.encode, TEXTS)
    ids = [models.tokenizer.cls_id, *first, models.tokenizer.sep_id]
    segments = [0] * len(ids) + [1] * (len(second) + 1)
    ids += [*second, models.tokenizer.sep_id]
    usual = {"input_ids": ids, "attention_mask": [1] * len(ids)}
    assert results["words", "pairs"] == [{**usual, "token_type_ids": segments}]
    assert results["distilled", "pairs"] == [usual]


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_special_tokens_and_the_longest_input(models, results, name):
    tokenizer = models.load(name)
    roles = ("pad", "unk", "cls", "sep", "mask")
    expected = [16, *(getattr(tokenizer, f"{role}_id") for role in roles)]
    assert results[name, "special"] == [expected]


def test_ids_become_text_again(results):
    assert results["words", "decoded"] == ["the towns, unable"]
    assert results["pieces", "decoded"] == ["the quick, brown fox"]


def softmax(logits):
    odds = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


PROBABILITIES = {"one": softmax, "several": lambda x: 1 / (1 + np.exp(-x)), "rating": lambda x: x}


@pytest.mark.parametrize("name", CLASSES)
def test_texts_are_classified(models, results, name):
    outputs = models.outputs(name, *TEXTS)
    for output, found in zip(outputs, results[name, "text-classification"]):
        found = found[0] if isinstance(found[0], list) else found
        expected = PROBABILITIES[name](output["logits"])
        labels = CLASSES[name].labels or ("LABEL_0",)
        scores = {label["label"]: label["score"] for label in found}
        assert scores == pytest.approx(dict(zip(labels, expected)), rel=1e-4)


@pytest.mark.parametrize("name", ["labels", "distilled labels"])
def test_tokens_are_labelled(models, results, name):
    outputs = models.outputs(name, *TEXTS)
    for text, output, found in zip(TEXTS, outputs, results[name, "token-classification"]):
        expected = softmax(output["logits"])[1:-1]
        assert [token["entity"] for token in found] == [LABELS[i] for i in expected.argmax(-1)]
        assert [token["score"] for token in found] == pytest.approx(expected.max(-1), rel=1e-4)
        assert [token["word"] for token in found] == models.tokenizer.tokenize(text)


@pytest.mark.parametrize("name", ["words", "pretrained", "distilled"])
def test_masks_are_filled(models, results, name):
    [outputs] = models.outputs(name, MASKED)
    logits = outputs.get("logits", outputs.get("prediction_logits"))
    expected = softmax(logits[1 + MASKED.split().index("[MASK]")])
    best = np.argsort(-expected)[:3]
    found = results[name, "fill-mask"][0]
    assert [word["token"] for word in found] == best.tolist()
    assert [word["score"] for word in found] == pytest.approx(expected[best], rel=1e-4)


def test_questions_are_answered(models, results):
    """The probability of a span within the context and [CLS] is that of both of its ends."""
    [outputs] = models.outputs("answers", tuple(QUESTION.values()))
    for side, found in zip(("start", "end"), results["answers", "spans"][0]):
        np.testing.assert_allclose(found, outputs[f"{side}_logits"], rtol=1e-4, atol=1e-5)
    (answer,) = results["answers", "question-answering"]
    if answer is None:
        return
    words = models.tokenizer.encode(QUESTION["question"])
    first = len(words) + 2
    inside = [0, *range(first, first + len(models.tokenizer.encode(QUESTION["context"])))]
    start, end = (softmax(outputs[f"{side}_logits"][inside])[1:] for side in ("start", "end"))
    spans = np.triu(np.outer(start, end))
    begin, stop = np.unravel_index(spans.argmax(), spans.shape)
    offsets = models.tokenizer.encode_with_offsets(QUESTION["context"])
    assert answer["score"] == pytest.approx(spans.max(), rel=1e-4)
    assert (answer["start"], answer["end"]) == (offsets.starts[begin], offsets.ends[stop])


def test_texts_have_vectors(models, results):
    outputs = models.outputs("bare", *TEXTS)
    for output, found in zip(outputs, results["bare", "feature-extraction"]):
        np.testing.assert_allclose(found[0], output["last_hidden_state"], rtol=1e-4, atol=1e-5)
