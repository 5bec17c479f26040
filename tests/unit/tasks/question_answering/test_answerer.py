"""Answers from a model in memory, and from the command."""

import dataclasses
import functools
import io
import json
import re

import numpy as np
import pytest

from bert_tf.commands.ask import read_document, read_questions, sentence_around
from bert_tf.model_directory.complete import find_model
from bert_tf.tasks.question_answering.answers import Answerer
from bert_tf.tasks.question_answering.settings import AnswerSettings
from bert_tf.tasks.question_answering.windows import (
    WindowSettings,
    question_windows,
    sequence_arrays,
)
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.progress import Progress
from tests.helpers.programs import run
from tests.helpers.small_span_model import CONFIG, TEXT, VOCABULARY, predictor_of, write_model

QUESTION = "Who wrote the book?"


ENDS = ("start", "end")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def parts(model_dir):
    return find_model(model_dir)


@pytest.fixture(scope="module")
def answerer(parts):
    return Answerer(parts)


def scores_of_all_spans(answerer, parts, text):
    """{(first token, last token): score} in a text with one window, from the logits."""
    tokenizer = parts.tokenizer
    ids = tokenizer.encode(text)
    [window] = question_windows(tokenizer.encode(QUESTION), len(ids), answerer.windows)
    outputs = predictor_of(parts).run(sequence_arrays([(window, ids)], tokenizer, window.length))
    start, end = (outputs[f"{which}_logits"][0, window.context_offset :] for which in ENDS)
    return {(i, j): start[i] + end[j] for i in range(len(ids)) for j in range(i, len(ids))}


def test_the_answer_is_the_best_span(answerer, parts):
    scores = scores_of_all_spans(answerer, parts, TEXT)
    (first, last), score = max(scores.items(), key=lambda item: item[1])
    encoding = parts.tokenizer.encode_with_offsets(TEXT)
    found = answerer.answer(QUESTION, TEXT)
    best = found[0]
    assert (best.start, best.end) == (encoding.starts[first], encoding.ends[last])
    assert best.score == pytest.approx(score, rel=1e-5)
    assert sum(answer.probability for answer in found) == pytest.approx(1)
    assert [a.score for a in found] == sorted((a.score for a in found), reverse=True)
    for answer in found:
        assert answer.text == TEXT[answer.start : answer.end]


def test_no_answer_is_possible_in_version_2(parts):
    def best(threshold):
        settings = AnswerSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
        return Answerer(parts, settings=settings).answer(QUESTION, TEXT)

    none, some = best(-1e4), best(1e4)
    assert (none[0].text, none[0].start, none[0].end) == ("", None, None)
    assert some[0].text
    assert sorted(a.text for a in none) == sorted(a.text for a in some)


def test_padding_and_batches_change_nothing(parts):
    """Windows of several lengths: alone, and together with longer ones."""
    text = " ".join([TEXT] * 3)
    windows = WindowSettings(max_seq_length=40, doc_stride=16, max_query_length=16)
    together = Answerer(parts, windows=windows).answer(QUESTION, text)
    alone = Answerer(parts, windows=windows, batch_size=1).answer(QUESTION, text)
    assert [a.text for a in together] == [a.text for a in alone]
    np.testing.assert_allclose([a.score for a in together], [a.score for a in alone], atol=1e-5)


def test_features_of_windows(parts):
    ids = {entry: index for index, entry in enumerate(VOCABULARY)}
    settings = WindowSettings(max_seq_length=8, doc_stride=2, max_query_length=4)
    context = parts.tokenizer.encode("anna wrote the book by the")
    windows = question_windows([ids["who"], ids["?"]], len(context), settings)
    pairs = [(window, context) for window in windows[-2:]]
    features = sequence_arrays(pairs, parts.tokenizer, 8)
    rows = ["[CLS] who ? [SEP] the book by [SEP]", "[CLS] who ? [SEP] by the [SEP] [PAD]"]
    assert features["input_ids"].tolist() == [[ids[e] for e in row.split()] for row in rows]
    assert features["input_mask"].tolist() == [[1] * 8, [1] * 7 + [0]]
    assert features["segment_ids"].tolist() == [[0] * 4 + [1] * 4, [0] * 4 + [1] * 3 + [0]]


@pytest.mark.parametrize("context", ["", " \n", "\u200b"])
def test_a_context_without_tokens_has_no_answer(answerer, context):
    [answer] = answerer.answer(QUESTION, context)
    assert (answer.text, answer.start, answer.end) == ("", None, None)


def test_a_long_text_shows_progress_on_standard_error(answerer, monkeypatch, capsys):
    text = f"{TEXT} " * 40
    expected = answerer.answer(QUESTION, text)
    assert capsys.readouterr().err == ""
    answerer.answer(QUESTION, text, shows_progress=True)
    assert capsys.readouterr().err == ""  # nothing that took long
    at_once = functools.partial(Progress, interval_seconds=0.0)
    monkeypatch.setattr("bert_tf.tasks.question_answering.answers.Progress", at_once)
    assert answerer.answer(QUESTION, text, shows_progress=True) == expected
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert re.fullmatch(
        r"answering: 8(\.0)?/[\d.]+ windows \(\d+%\), .* windows/s, .* left", lines[0]
    )
    assert "(100%)" in lines[-1]


def test_single_files_may_be_elsewhere(model_dir, tmp_path):
    elsewhere = tmp_path / "words.txt"
    elsewhere.write_bytes("\r\n".join(VOCABULARY).encode())  # the same entries in other bytes
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG.to_dict(), "hidden_dropout_prob": 0.3}))
    found = find_model(
        model_dir, tokenizer_files=TokenizerFiles(elsewhere), bert_config_file=config
    )
    assert (found.tokenizer_files.file, found.config.hidden_dropout_prob) == (elsewhere, 0.3)
    assert found.checkpoint == model_dir
    [note] = found.notes
    assert note == f"unlike in {model_dir / 'bert_config.json'}: hidden_dropout_prob 0.1 -> 0.3"


def test_ignored_keys_of_a_given_configuration_are_noted(model_dir, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG.to_dict(), "use_cache": True}))
    [note] = find_model(model_dir, bert_config_file=config).notes
    assert note == f"warning: {config} has keys that this network ignores: use_cache"


def test_unknown_casing_is_inferred_from_the_vocabulary(tmp_path):
    model_dir = write_model(tmp_path)
    (model_dir / "tokenizer_config.json").unlink()
    (model_dir / "model.json").unlink()
    assert find_model(model_dir).tokenizer.lower_case
    (model_dir / "vocab.txt").write_text("".join(f"{e}\n" for e in [*VOCABULARY[:-1], "Anna"]))
    assert not find_model(model_dir).tokenizer.lower_case


def test_casing_that_contradicts_the_model_is_refused(model_dir):
    with pytest.raises(UserError, match=r"--do_lower_case=false, but .* state true"):
        find_model(model_dir, tokenizer_files=TokenizerFiles(do_lower_case=False))


def test_sequences_longer_than_the_networks_positions(parts):
    with pytest.raises(UserError, match=r"--max_seq_length=65 .* max_position_embeddings=64"):
        Answerer(parts, windows=WindowSettings(max_seq_length=65, max_query_length=8))


@pytest.mark.parametrize(
    ("text", "answer", "sentence"),
    [
        (TEXT, "1843", "Anna wrote the book in 1843."),
        (TEXT, "the sea", "She lived by the sea, in a town."),
        (TEXT, "where?", "Who lived where?"),
        ("one\n\ntwo\nwords\n \nthree", "two", "two words"),
        ("no end", "no", "no end"),
        ('He said "no." Then he left.', "no", 'He said "no."'),
        ("in 3.5 years", "3.5", "in 3.5 years"),
        (TEXT, "1843. She", "Anna wrote the book in 1843. She lived by the sea, in a town."),
    ],
)
def test_sentence_around(text, answer, sentence):
    start = text.index(answer)
    assert sentence_around(text, start, start + len(answer)) == sentence


def test_a_long_sentence_is_shortened():
    text = "word " * 200 + "answer" + " word" * 200
    shown = sentence_around(text, 1000, 1006)
    assert shown.startswith("... ")
    assert shown.endswith(" ...")
    assert "answer" in shown
    assert len(shown) <= 308


def test_questions_line_by_line():
    assert list(read_questions(io.StringIO("a?\n\n  b? \nc?"))) == ["a?", "b?", "c?"]


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfAnna")
    assert read_document(tmp_path / "a.txt", flag="file") == "Anna"


@pytest.mark.slow
def test_the_command_answers_one_question(model_dir, tmp_path, answerer):
    (tmp_path / "document.txt").write_text(TEXT)
    done = run("-m", "bert_tf.commands.ask", f"--model_dir={model_dir}",
               f"--file={tmp_path}/document.txt", f"--question={QUESTION}")  # fmt: skip
    best = answerer.answer(QUESTION, TEXT)[0]
    sentence = sentence_around(TEXT, best.start, best.end)
    assert done.stdout == f"{best.text}  ({best.probability:.3f})\n    {sentence}\n"
    assert not done.stderr


@pytest.mark.slow
def test_the_command_takes_a_precision_policy(model_dir, tmp_path, answerer):
    """float16 is used as requested, and emulation is reported."""
    (tmp_path / "document.txt").write_text(TEXT)
    (tmp_path / "policy.json").write_text('{"logits": "fp16"}')
    done = run("-m", "bert_tf.commands.ask", f"--model_dir={model_dir}", "--json",
               f"--precision_policy={tmp_path}/policy.json", "--n_best_size=1",
               f"--file={tmp_path}/document.txt", f"--question={QUESTION}")  # fmt: skip
    best = answerer.answer(QUESTION, TEXT)[0]
    [found] = json.loads(done.stdout)["answers"]
    assert found["score"] == pytest.approx(best.score, rel=1e-2)
    assert found["score"] != best.score
    assert done.stderr.startswith("warning: this CPU only emulates fp16 products, very slowly; ")
    assert done.stderr.count("\n") == 1


def test_the_command_reads_questions_from_a_pipe(model_dir, tmp_path, answerer):
    (tmp_path / "document.txt").write_text(TEXT)
    command = ["-m", "bert_tf.commands.ask", f"--model_dir={model_dir}",
               f"--file={tmp_path}/document.txt", "--json", "--n_best_size=2"]  # fmt: skip
    done = run(*command, text=f"{QUESTION}\n\nWhere did Anna live?\n")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["question"], second["question"]) == (QUESTION, "Where did Anna live?")
    expected = [dataclasses.asdict(answer) for answer in answerer.answer(QUESTION, TEXT)[:2]]
    assert [a["text"] for a in first["answers"]] == [a["text"] for a in expected]
    assert first["answers"][0]["score"] == pytest.approx(expected[0]["score"], rel=1e-5)
    assert not done.stderr


def test_questions_from_a_pipe_stand_with_their_answers(model_dir, tmp_path, answerer):
    (tmp_path / "document.txt").write_text(TEXT)
    questions = [QUESTION, "Where did Anna live?"]
    done = run("-m", "bert_tf.commands.ask", f"--model_dir={model_dir}",
               f"--file={tmp_path}/document.txt", text="\n".join(questions))  # fmt: skip
    blocks = done.stdout.split("\n\n")
    assert blocks.pop() == ""
    for block, question in zip(blocks, questions):
        best = answerer.answer(question, TEXT)[0]
        first, second, *_ = block.splitlines()
        assert first == f"question> {question}"
        assert second.startswith(best.text)


BAD = [
    ("no file", ["--file=nowhere.txt"], "--file: nowhere.txt does not exist"),
    ("empty file", ["--file={empty}"], "is empty"),
    ("blank file", ["--file={blank}"], "contains only white space"),
    ("not UTF-8", ["--file={latin}"], "is not UTF-8 text (byte 3)"),
    ("no question", ["--question= "], "--question is empty"),
    ("no answers", ["--n_best_size=0"], "--n_best_size=0"),
    ("no model", ["--model_dir="], "--model_dir"),
    ("missing model", ["--model_dir=nowhere/at/all"], "--model_dir=nowhere/at/all does not exist"),
    ("model without files", ["--model_dir={directory}"], "bert_config.json"),
    ("no span head", ["--model_dir={pretrained}"], "run_squad.py --do_train --init_checkpoint="),
    ("unknown precision", ["--precision=fp8"], "--precision=fp8"),
    ("no policy", ["--precision_policy={blank}"], "--precision_policy: "),
]


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wrong")
    (directory / "empty.txt").write_text("")
    (directory / "blank.txt").write_text(" \n")
    (directory / "latin.txt").write_bytes("caf\xe9 au lait".encode("latin-1"))
    pretrained = write_model(directory / "pretrained", span_head=False)
    names = {name: directory / f"{name}.txt" for name in ("empty", "blank", "latin")}
    return {**names, "directory": directory, "pretrained": pretrained}


@pytest.mark.parametrize(("flags", "sentence"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_one_sentence(model_dir, wrong, flags, sentence):
    document = wrong["directory"] / "document.txt"
    document.write_text(TEXT)
    usual = [f"--model_dir={model_dir}", f"--file={document}", f"--question={QUESTION}"]
    done = run(
        "-m", "bert_tf.commands.ask", *usual, *(f.format(**wrong) for f in flags), check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr
    assert not done.stdout
