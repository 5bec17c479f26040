"""What the doctor says of planned pre-trainings, each with one thing wrong."""

import dataclasses
import shutil

import numpy as np
import pytest
from absl import flags

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.commands.doctor import TRAINING_SCRIPTS, show
from bert_tf.doctor.examination import examine
from bert_tf.durable.manifest import FileEntry, VocabularyEntry, read_manifest, write_manifest
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.record import write_model_files
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.console import Grade
from bert_tf.util.digest import digest_of_file
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
from tests.helpers.forward_passes import pretraining_specs
from tests.helpers.programs import holder_of, run
from tests.helpers.record_maker import SPECIAL_IDS, VOCAB_SIZE, RecordMaker

FINE, HINT, WARNING, ERROR = Grade
ENTRIES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *(f"word{i}" for i in range(5, VOCAB_SIZE)),
]
NETWORK = [
    *("--hidden_size=16", "--num_hidden_layers=1", "--num_attention_heads=2"),
    *("--intermediate_size=16", "--max_position_embeddings=12", "--precision=fp32"),
]
RUN = [
    *("--do_train", "--do_eval", "--max_seq_length=12", "--max_predictions_per_seq=3"),
    *("--train_batch_size=8", "--num_train_steps=40", "--num_warmup_steps=4"),
    *("--learning_rate=1e-4", "--input_file={train}", "--eval_file={heldout}"),
    "--output_dir={model}",
]


def make_records(
    directory, *, count=200, first=0, entries=ENTRIES, masked=True, lower_case=True, **changes
):
    """Records with a manifest and their vocabulary; ``changes`` replace a feature by a value."""
    maker = RecordMaker()
    directory.mkdir()
    made = maker.examples
    maker.examples = lambda *args, **options: {
        name: np.full_like(values, changes[name]) if name in changes else values
        for name, values in made(*args, **options).items()
    }
    maker.write(directory / "a.tfrecord", count, first=first, masked=masked)
    vocabulary = directory / "wordpiece.vocab"
    vocabulary.write_text("".join(f"{entry}\n" for entry in entries))
    entry = VocabularyEntry(
        digest_of_file(vocabulary), len(entries), "wordpiece", lower_case, SPECIAL_IDS
    )
    vocabulary.rename(directory / entry.file_name)
    return maker.write_manifest(directory, vocabulary=entry)


@pytest.fixture
def places(tmp_path):
    """Directories of the run; those of records are made."""
    return {
        "train": make_records(tmp_path / "train"),
        "heldout": make_records(tmp_path / "heldout", count=20, first=1000),
        "model": tmp_path / "model",
    }


def make_weights(directory, vocabulary):
    """A model directory of a network with 24 positions."""
    network = {flag.partition("=")[0][2:]: flag.partition("=")[2] for flag in NETWORK}
    del network["precision"]
    config = BertConfig(vocab_size=VOCAB_SIZE, **{k: int(v) for k, v in network.items()})
    config = dataclasses.replace(config, max_position_embeddings=24)
    arrays = {spec.name: np.zeros(spec.shape, np.float32) for spec in pretraining_specs(config)}
    directory.mkdir()
    write_checkpoint(str(directory / "model.ckpt"), arrays)
    write_model_files(directory, config, TokenizerFiles(vocabulary))
    return directory


def said_of(places, *more, num_ranks=1, without=()):
    """The findings on the run with further flags, which win."""
    values = flags.FlagValues()
    TRAINING_SCRIPTS["run_pretraining.py"].define(values)
    given = [flag.format(**places) for flag in [*NETWORK, *RUN, *more]]
    values(["doctor", *(flag for flag in given if flag not in without)])
    return examine(
        TRAINING_SCRIPTS["run_pretraining.py"],
        values,
        num_ranks=num_ranks,
        ranks_per_host=num_ranks,
    )


def of_grade(findings, grade):
    return [(part, sentence) for found, part, sentence in findings if found == grade]


def test_a_run_without_problems(places, tmp_path):
    before = content_of(tmp_path)
    findings = said_of(places)
    assert not of_grade(findings, ERROR) + of_grade(findings, WARNING)
    [(part, sentence)] = of_grade(findings, HINT)
    assert part == "vocabulary"
    assert "vocab_size is 50, not a multiple of 8" in sentence
    assert "--vocab_size=56" in sentence
    assert findings.status == 0
    parts = {part for part, _ in of_grade(findings, FINE)}
    assert {"records", "held-out records", "learning rate", "batch", "length", "disk"} <= parts
    assert {"memory", "precision", "whole run", "output directory", "configuration"} <= parts
    assert content_of(tmp_path) == before
    assert not places["model"].exists()
    assert list(show(findings, flags.FlagValues()))[-1].startswith("0 errors, 0 warnings, 1 hint; ")


@pytest.mark.parametrize(
    ("more", "grade", "part", "sentence"),
    [
        (["--learning_rate=0.5"], WARNING, "learning rate", "--learning_rate=0.5 is above the"),
        (["--learning_rate=1e-9"], WARNING, "learning rate", "--learning_rate=1e-09 is below"),
        (
            ["--learning_rate=0.5", "--optimizer_type=lamb"],
            WARNING,
            "learning rate",
            "range of lamb",
        ),
        (["--num_warmup_steps=20"], WARNING, "learning rate", "takes 50% of all updates (20 of 40"),
        (["--num_warmup_steps=0"], WARNING, "learning rate", "there is no warm-up"),
        (["--num_warmup_steps=50"], ERROR, "flags", "is more than --num_train_steps=40"),
        (["--num_train_steps=4000"], WARNING, "length", "each stored mask is seen 160 times"),
        (
            ["--num_train_steps=4000", "--save_checkpoints_steps=3000"],
            WARNING,
            "checkpoints",
            "loses up to 3,000 of its 4,000 updates (75%)",
        ),
        (["--train_batch_size=512"], WARNING, "length", "only 200 records for a global batch of 5"),
        (["--num_train_steps=10"], HINT, "length", "only 40% of the records are used"),
        (["--eval_file={train}"], WARNING, "held-out records", "records are the training records"),
        (["--max_position_embeddings=20"], HINT, "configuration", "leaves the positions up to"),
        (["--vocab_size=40"], ERROR, "whole run", "the model's vocab_size is 40, but the records"),
        (["--max_predictions_per_seq=4"], ERROR, "whole run", "the records in"),
        (["--input_file={model}"], ERROR, "flags", "no file matches"),
        (["--hidden_size=17"], ERROR, "whole run", "17"),
        (["--init_checkpoint={model}"], ERROR, "whole run", "--init_checkpoint"),
        (["--output_dir={train}/a.tfrecord/x"], ERROR, "flags", "--output_dir="),
        (["--vocab_file={model}"], ERROR, "flags", "does not exist or is not a file"),
        (["--input_file=", "--input_files_dir={train}"], HINT, "flags", "so flags that it omits"),
        (["--precision=fp16"], ERROR, "whole run", "fp16"),
    ],
    ids=lambda value: value[0].partition("{")[0] if isinstance(value, list) else "",
)
def test_one_thing_wrong(places, more, grade, part, sentence):
    findings = said_of(places, *more)
    found = [s for p, s in of_grade(findings, grade) if p == part and sentence in s]
    assert found, list(findings)
    assert findings.status == {HINT: 0, WARNING: 1, ERROR: 2}[max(grade, findings.worst)]
    if grade != HINT:
        assert findings.worst == grade


def test_a_mistake_does_not_hide_what_is_wrong_with_records(places):
    findings = said_of(places, "--max_seq_length=16", "--eval_file={train}")
    [(part, sentence)] = of_grade(findings, ERROR)
    assert part == "whole run"
    assert "have 12; give --max_seq_length=12" in sentence
    [(part, sentence)] = of_grade(findings, WARNING)
    assert "records are the training records" in sentence
    findings = said_of(places, "--hidden_size=17", "--eval_file={model}")
    assert "no file matches" in " ".join(dict(of_grade(findings, ERROR)).values())
    assert "records" in dict(of_grade(findings, FINE))


def test_steps_of_several_ranks(places):
    findings = said_of(places, num_ranks=4)
    [(_, sentence)] = of_grade(findings, WARNING)
    assert "has no --horovod" in sentence
    findings = said_of(places, "--horovod", num_ranks=4)
    assert findings.worst == HINT
    [(_, sentence)] = [hint for hint in of_grade(findings, HINT) if hint[0] == "length"]
    assert "4 ranks make 10 of them, 1 in the warm-up" in sentence
    assert ("batch", "8 (micro batch) x 1 (accumulation steps) x 4 (ranks) = 32") in of_grade(
        findings, FINE
    )
    assert any("4 ranks need" in s for p, s in of_grade(findings, FINE) if p == "memory")
    unscaled = said_of(places, "--horovod", "--scale_steps_by_ranks=false", num_ranks=4)
    assert not [hint for hint in of_grade(unscaled, HINT) if hint[0] == "length"]


@pytest.mark.parametrize(
    ("made", "part", "sentence"),
    [
        ({"input_mask": 0}, "records", "100.0% of all positions are padding"),
        (
            {"entries": [*ENTRIES, *(f"more{i}" for i in range(1000))]},
            "vocabulary",
            "about 2,400 tokens for 1,050 entries",
        ),
        (
            {"entries": [*ENTRIES, *(f"more{i}" for i in range(60))]},
            "vocabulary",
            "no id is above 49, but the vocabulary has 110 entries",
        ),
        ({"lower_case": False}, "vocabulary", "has a capital, so every word with one"),
        (
            {"entries": [*ENTRIES[:-2], "Paris", "Rome"]},
            "vocabulary",
            "have capitals (Paris, Rome), which lower-cased text never matches",
        ),
    ],
    ids=["padding", "few tokens", "low ids", "no capitals", "capitals"],
)
def test_records(places, made, part, sentence):
    shutil.rmtree(places["train"])
    make_records(places["train"], **made)
    findings = said_of(places, "--nodo_eval", without=("--do_eval",))
    assert [s for p, s in of_grade(findings, WARNING) if p == part and sentence in s], list(
        findings
    )


def test_unknown_tokens(places):
    manifest = read_manifest(places["train"])
    write_manifest(places["train"], dataclasses.replace(manifest, remark="2.0% are unknown"))
    findings = said_of(places, "--nodo_eval", without=("--do_eval",))
    assert ("records", "of their text, 2.0% are unknown") in of_grade(findings, WARNING)
    shutil.rmtree(places["train"])
    make_records(places["train"], input_ids=1)
    findings = said_of(places, "--nodo_eval", without=("--do_eval",))
    assert [s for _, s in of_grade(findings, ERROR) if "tokens are unknown to the vocabulary" in s]


def test_masks_drawn_in_training_may_be_many(places):
    shutil.rmtree(places["train"])
    make_records(places["train"], masked=False)
    more = ["--num_train_steps=4000", "--nodo_eval"]
    findings = said_of(places, *more, without=("--do_eval",))
    assert not [s for p, s in of_grade(findings, WARNING) if p == "length"]
    findings = said_of(places, *more, "--num_train_steps=20000", without=("--do_eval",))
    assert [s for p, s in of_grade(findings, WARNING) if "memorize" in s]


def test_sources_are_judged_one_by_one(places, tmp_path):
    places["more"] = make_records(tmp_path / "more", count=20, first=2000)
    findings = said_of(places, "--input_file={train}:0.25,{more}:0.75")
    lengths = [sentence for _, part, sentence in findings if part == "length"]
    assert any("consume 80 sequences from" in s and "0.4 epochs of 200" in s for s in lengths)
    assert any("consume 240 sequences from" in s and "12 epochs of 20" in s for s in lengths)
    [warning] = [sentence for part, sentence in of_grade(findings, WARNING) if part == "length"]
    assert "/more is seen 12 times" in warning


def test_text_that_is_trained_and_evaluated_on(places):
    for name in ("train", "heldout"):
        manifest = read_manifest(places[name])
        inputs = (FileEntry("text.txt", 5, "ab"),)
        write_manifest(places[name], dataclasses.replace(manifest, inputs=inputs))
    warnings = of_grade(said_of(places), WARNING)
    [(part, sentence)] = warnings
    assert part == "held-out records"
    assert "made from the same text as training records" in sentence


def test_a_directory_in_use(places):
    with holder_of(places["model"]):
        before = content_of(places["model"])
        findings = said_of(places)
        assert content_of(places["model"]) == before
    [(part, sentence)] = of_grade(findings, WARNING)
    assert part == "output directory"
    assert f"{places['model']} is in use by process " in sentence
    findings = said_of(places)  # it was killed
    assert findings.worst == HINT
    assert any(
        "which did not exit normally" in sentence for _, sentence in of_grade(findings, HINT)
    )


@pytest.mark.slow
def test_a_run_that_is_resumed_with_changes(places):
    given = [flag.format(**places) for flag in [*NETWORK, *RUN]]
    run("run_pretraining.py", *given, "--num_train_steps=4", "--num_warmup_steps=1")
    before = content_of(places["model"])
    ended = said_of(places, "--num_train_steps=4", "--num_warmup_steps=1")
    assert any("nothing is left to train" in text for _, text in of_grade(ended, WARNING))
    assert any("resumes at step 4 " in text for _, text in of_grade(ended, FINE))
    hints = " ".join(sentence for _, sentence in of_grade(said_of(places), HINT))
    assert "changed since the run's last start: " in hints
    assert "resuming from" in hints
    assert "the learning rate jumps at step 4" in hints
    assert content_of(places["model"]) == before


def test_a_network_that_has_been_trained_is_not_to_be_changed(places, tmp_path):
    """Its vocabulary is fixed, and all of its positions and rows of embeddings are trained."""
    places["few"] = make_records(tmp_path / "few", count=40)
    unwise = ["--max_position_embeddings=24", "--input_file={few}"]
    advice = ("a smaller vocabulary", "untrained", "--vocab_size=56")
    new = " ".join(sentence for _, _, sentence in said_of(places, *unwise))
    assert [words for words in advice if words not in new] == []
    weights = make_weights(tmp_path / "weights", next(places["train"].glob("*.vocab")))
    findings = said_of(places, *unwise, f"--init_checkpoint={weights}")
    trained = " ".join(sentence for _, _, sentence in findings)
    assert [words for words in advice if words in trained] == []
    assert not of_grade(findings, ERROR)
    assert "its vocabulary is that of" in dict(of_grade(findings, FINE))["checkpoint"]


def test_weights_with_another_vocabulary(places, tmp_path):
    vocabulary = tmp_path / "other.vocab"
    vocabulary.write_text("".join(f"{entry}\n" for entry in [*ENTRIES[:5], *ENTRIES[:4:-1]]))
    weights = make_weights(tmp_path / "weights", vocabulary)
    more = ["--max_position_embeddings=24", f"--init_checkpoint={weights}"]
    [(_, sentence)] = of_grade(said_of(places, *more), ERROR)
    assert "different vocabulary" in sentence


def test_a_full_disk_is_said_once(places, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    findings = said_of(places)
    found = [(grade, part) for grade, part, sentence in findings if "only" in sentence]
    assert found == [(ERROR, "disk")]


def test_nothing_to_do(places):
    findings = said_of(places, "--nodo_train", "--nodo_eval", without=("--do_train", "--do_eval"))
    assert "--do_train" in dict(of_grade(findings, ERROR))["flags"]


def test_a_plan_of_phases(places):
    with pytest.raises(UserError, match=r"with --flagfile=one\.flags in place of --phases"):
        said_of(places, "--phases=one.flags,two.flags")
