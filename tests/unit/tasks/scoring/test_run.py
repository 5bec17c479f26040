"""Perplexities against an implementation with one position at a time, in transformers."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.config.masking import MaskingOptions
from bert_tf.input.masking import MaskingSettings, example_keys, mask_batch
from bert_tf.tasks.scoring import run as scoring
from bert_tf.tasks.scoring.settings import ScoringSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.settings import run_settings, runtime_settings, with_values
from tests.unit.checkpoint.tiny_models import huggingface_model, save_google

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(35))]
UNK, CLS, SEP, MASK, FIRST_WORD = 1, 2, 3, 4, 5
MAX_LENGTH = 8
SPECIAL_IDS = {"pad": 0, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK}
TEXTS = [
    [3, 7, 1, 30],
    [5],
    [12, 12, 4, 0, 9, 33, 2, 8, 1],  # two sequences, of 4 and 5 tokens
    [6, 6],
    [17, 3, 22, 19, 34, 10],
]
PIECES = [
    [[FIRST_WORD + n for n in words] for words in parts]
    for parts in ([TEXTS[0]], [TEXTS[1]], [TEXTS[2][:4], TEXTS[2][4:]], [TEXTS[3]], [TEXTS[4]])
]


@pytest.fixture(scope="module")
def model():
    return huggingface_model("BertForMaskedLM")


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    lines = [" ".join(f"w{n}" for n in words) for words in TEXTS]
    (path / "texts.txt").write_text("\n".join(lines) + "\n")
    return path


def settings_of(directory, output_dir, **changes):
    runtime = runtime_settings(precision="fp32", native_ops=changes.pop("native_ops", False))
    checkpoint = changes.pop("init_checkpoint", directory)
    settings = ScoringSettings(
        bert_config_file=None,
        tokenizer_files=TokenizerFiles(),
        all_checkpoints=False,
        input_files=(directory / "texts.txt",),
        max_seq_length=MAX_LENGTH,
        num_draws=3,
        masks=MaskingOptions(masked_lm_prob=0.3, max_predictions_per_seq=8),
        batch_tokens=20,
        run=run_settings(output_dir, init_checkpoint=str(checkpoint), seed=5),
        runtime=runtime,
    )
    return with_values(settings, **changes)


def log_probability(model, ids, place, token):
    with torch.no_grad():
        logits = model(torch.tensor([list(map(int, ids))])).logits[0, place]
    return torch.log_softmax(logits.double(), dim=-1)[token].item()


def naive_log_likelihoods(model):
    """Of each text, one position of one sequence at a time."""
    totals = []
    for pieces in PIECES:
        total = 0.0
        for words in pieces:
            for place, word in enumerate(words, start=1):
                ids = [CLS, *words, SEP]
                ids[place] = MASK
                total += log_probability(model, ids, place, word)
        totals.append(total)
    return totals


def naive_draws(model, settings):
    """The mean loss of each draw, one sequence at a time."""
    means = []
    for draw in range(settings.num_draws):
        losses = []
        for number, words in enumerate(words for pieces in PIECES for words in pieces):
            ids = np.array([[CLS, *words, SEP]])
            masked = mask_batch(
                ids,
                np.array([ids.shape[1]]),
                keys=example_keys(settings.run.seed, draw, number),
                settings=MaskingSettings(settings.masks, len(ENTRIES), SPECIAL_IDS),
                counted=np.array([len(words)]),
            )
            for place in masked.positions[0][masked.weights[0] > 0]:
                losses.append(-log_probability(model, masked.input_ids[0], place, ids[0, place]))
        means.append(np.mean(losses))
    return means


@pytest.mark.parametrize(
    "native_ops",
    [
        pytest.param(False, marks=pytest.mark.slow),
        pytest.param(True, marks=requires_native_ops),
    ],
)
def test_equal_to_one_position_at_a_time(model, directory, tmp_path, native_ops, capsys):
    settings = settings_of(directory, tmp_path, native_ops=native_ops)
    [result] = scoring.run(settings)
    expected = naive_log_likelihoods(model)
    tokens = sum(map(len, TEXTS))
    rows = (tmp_path / "scores" / result["checkpoint"] / "texts.tsv").read_text().splitlines()[1:]
    found = [row.split("\t") for row in rows]
    assert [(int(n), int(t), int(w)) for n, t, w, _ in found] == [
        (number, len(words), len(words)) for number, words in enumerate(TEXTS)
    ]
    np.testing.assert_allclose([float(row[3]) for row in found], expected, rtol=1e-5)
    pseudo = result["pseudo"]
    assert pseudo["nats_per_token"] == pytest.approx(-sum(expected) / tokens, rel=1e-5)
    assert pseudo["per_token"] == pytest.approx(math.exp(-sum(expected) / tokens), rel=1e-4)
    draws = naive_draws(model, settings)
    np.testing.assert_allclose(result["masked"]["draws"], draws, rtol=1e-5)
    assert result["masked"]["per_token"] == pytest.approx(math.exp(np.mean(draws)), rel=1e-4)
    content = json.loads((tmp_path / "perplexity.json").read_text())
    assert content["results"] == [json.loads(json.dumps(result))]
    assert content["counts"]["texts_cut"] == 1
    shown = capsys.readouterr().out
    assert content["definitions"]["pseudo"] in shown
    assert "6 sequences (1 texts cut into several), 22 tokens to score, 22 words, 0 [UNK]" in shown


def test_whole_words_against_one_word_at_a_time(model, directory, tmp_path):
    """Every odd entry continues a word."""
    shutil.copytree(directory, tmp_path / "model")
    entries = [f"##{e}" if e[1:].isdigit() and int(e[1:]) % 2 else e for e in ENTRIES]
    (tmp_path / "model/vocab.txt").write_text("".join(f"{entry}\n" for entry in entries))
    words = [[0, 3, 5], [8], [10, 1], [12]]
    text = " ".join("".join(f"w{piece}" for piece in word) for word in words)
    (tmp_path / "model/texts.txt").write_text(f"{text}\n")
    settings = settings_of(
        tmp_path / "model",
        tmp_path / "out",
        metrics=("pseudo",),
        whole_words=True,
        max_seq_length=9,
    )
    [result] = scoring.run(settings)
    ids = [CLS, *(FIRST_WORD + piece for word in words for piece in word), SEP]
    total, first = 0.0, 1
    for word in words:
        places = range(first, first + len(word))
        masked = [MASK if place in places else token for place, token in enumerate(ids)]
        total -= sum(log_probability(model, masked, place, ids[place]) for place in places)
        first += len(word)
    assert result["pseudo"]["nats_per_token"] == pytest.approx(total / 7, rel=1e-5)
    assert result["pseudo"]["per_word"] == pytest.approx(math.exp(total / 4), rel=1e-4)
    about = json.loads((tmp_path / "out/perplexity.json").read_text())
    assert "all pieces of each word" in about["definitions"]["pseudo"]
    with pytest.raises(UserError, match="--whole_words is for the pseudo-perplexity"):
        settings_of(tmp_path / "model", tmp_path / "other", metrics=("masked",), whole_words=True)


@pytest.fixture(scope="module")
def whole(directory, tmp_path_factory):
    """The directory of a run, and its results."""
    path = tmp_path_factory.mktemp("whole")
    return path, scoring.run(settings_of(directory, path))


@pytest.mark.parametrize("batch_tokens", [pytest.param(1, marks=pytest.mark.slow), 1000])
def test_batches_change_nothing(directory, whole, tmp_path, batch_tokens):
    [one] = whole[1]
    [other] = scoring.run(settings_of(directory, tmp_path / "other", batch_tokens=batch_tokens))
    for metric in ("masked", "pseudo"):
        assert one[metric]["nats_per_token"] == pytest.approx(
            other[metric]["nats_per_token"], rel=1e-6
        )


def test_a_finished_run_computes_nothing(directory, whole, monkeypatch, capsys):
    monkeypatch.setattr(scoring, "Predictor", None)
    second = scoring.run(settings_of(directory, whole[0]))
    assert json.loads(json.dumps(whole[1])) == second
    assert "was evaluated before" in capsys.readouterr().out


def test_other_settings_are_refused(directory, tmp_path):
    scoring.run(settings_of(directory, tmp_path, metrics=("pseudo",)))
    with pytest.raises(UserError, match=r"\(--max_seq_length 8, not 7, sha256 of the texts\)"):
        scoring.run(settings_of(directory, tmp_path, metrics=("pseudo",), max_seq_length=7))


def google_model(path, class_name="BertForMaskedLM", **options):
    """A model directory with random weights and a text; returns the weights."""
    arrays = save_google(path, class_name, **options)
    (path / "tokenizer_config.json").unlink()  # its casing is not that of these words
    (path / "texts.txt").write_text("w1 w2\n")
    return arrays


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """A run's directory with three checkpoints, one of them incomplete."""
    path = tmp_path_factory.mktemp("training")
    for step in (20, 5):
        weights = path / str(step)
        arrays = google_model(weights, seed=step)
        write_checkpoint(str(path / f"model.ckpt-{step}"), arrays)
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(weights / name, path)
    shutil.copy(path / "model.ckpt-5.index", path / "model.ckpt-30.index")
    lines = [" ".join(f"w{n}" for n in words) for words in TEXTS]
    (path / "texts.txt").write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_all_checkpoints_of_a_run(training, tmp_path):
    changes = {"all_checkpoints": True, "metrics": ("pseudo",)}
    results = scoring.run(settings_of(training, tmp_path / "all", **changes))
    assert [(result["checkpoint"], result["step"]) for result in results] == [
        ("model.ckpt-5", 5),
        ("model.ckpt-20", 20),
    ]
    for result in results:
        single = settings_of(
            training,
            tmp_path / result["checkpoint"],
            init_checkpoint=training / result["checkpoint"],
            metrics=("pseudo",),
        )
        assert scoring.run(single) == [result]
    table = (tmp_path / "all" / "perplexity.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in table[1:]] == ["model.ckpt-5", "model.ckpt-20"]
    assert (tmp_path / "all" / "perplexity.png").is_file()
    # One more checkpoint of the same run: only that is evaluated.
    arrays = google_model(tmp_path / "more", seed=7)
    write_checkpoint(str(training / "model.ckpt-7"), arrays)
    scoring.run(settings_of(training, tmp_path / "all", **changes))
    table = (tmp_path / "all" / "perplexity.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in table[2:]] == ["model.ckpt-7", "model.ckpt-20"]


def test_scores_that_are_not_finite(tmp_path):
    arrays = google_model(tmp_path / "model")
    arrays["bert/encoder/layer_0/output/dense/bias"][:] = np.finfo(np.float32).max
    write_checkpoint(str(tmp_path / "model" / "bert_model.ckpt"), arrays)
    with pytest.raises(UserError, match="gives a score that is not finite for text 0: its train"):
        scoring.run(settings_of(tmp_path / "model", tmp_path / "out"))


def test_a_checkpoint_without_the_head(tmp_path):
    google_model(tmp_path / "model", "BertModel")
    with pytest.raises(UserError, match=r"has no masked-LM head .* run_pretraining\.py"):
        scoring.run(settings_of(tmp_path / "model", tmp_path / "out"))
    # Nothing was scored, so the directory is free for a model that has it.
    google_model(tmp_path / "other")
    assert scoring.run(settings_of(tmp_path / "other", tmp_path / "out"))


def test_another_vocabulary(directory, tmp_path):
    other = tmp_path / "vocab.txt"
    other.write_text("".join(f"{entry}\n" for entry in [*ENTRIES[:5], *ENTRIES[:4:-1]]))
    files = TokenizerFiles(other)
    with pytest.raises(UserError, match="different vocabulary"):
        scoring.run(settings_of(directory, tmp_path / "out", tokenizer_files=files))


def test_texts_without_a_known_word(directory, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("foo\nbar\n")
    with pytest.raises(UserError, match=r"none of the 2 texts .* \(2 no known token\)"):
        scoring.run(settings_of(directory, tmp_path / "out", input_files=(path,)))


def test_a_network_with_fewer_positions(directory, tmp_path):
    with pytest.raises(UserError, match=r"--max_seq_length=17 is more than .*=16; lower it"):
        scoring.run(settings_of(directory, tmp_path / "out", max_seq_length=17))


@pytest.mark.slow
def test_a_default_length_follows_the_network(directory, tmp_path, capsys):
    def run(output_dir, length, **changes):
        run = run_settings(output_dir, init_checkpoint=str(directory), seed=5, **changes)
        scoring.run(settings_of(directory, output_dir, max_seq_length=length, run=run))
        return (output_dir / "perplexity.json").read_bytes()

    unasked = {"flags": {"max_seq_length": 17}, "defaulted": frozenset({"max_seq_length"})}
    assert run(tmp_path / "default", 17, **unasked) == run(tmp_path / "given", 16)
    said = "--max_seq_length: 16, the model's max_position_embeddings, instead of the default 17"
    assert said in capsys.readouterr().out


def test_unknown_tokens_are_said(directory, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("w1 w2 w3 石\n" * 20)
    scoring.run(settings_of(directory, tmp_path / "out", input_files=(tmp_path / "texts.txt",)))
    said = (
        "texts.txt: 25.0% of the 80 tokens are unknown to the vocabulary ([UNK]), most often '石'"
    )
    assert said in capsys.readouterr().out
