"""The pre-training job before its first update: task and records."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.masking import MaskingOptions
from bert_tf.durable.manifest import FileEntry, describe_file, read_manifest, write_manifest
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import create_network
from bert_tf.model_directory.complete import find_model
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.pretraining.data import open_run_records
from bert_tf.tasks.pretraining.task import MASKED_LM, NEXT_SENTENCE, PretrainingTask
from bert_tf.util.errors import UserError
from tests.helpers.settings import with_values
from tests.helpers.tiny_pretraining import CONFIG, P, S, V, pretraining_settings, write_records


def features():
    """Three sequences, one without masked words and one short."""
    rng = np.random.default_rng(0)
    return {
        "input_ids": rng.integers(5, V, [3, S]).astype(np.int32),
        "input_mask": (np.arange(S) < [[S], [S], [4]]).astype(np.int32),
        "segment_ids": np.zeros([3, S], np.int32),
        "masked_lm_positions": np.tile(np.int32([1, 2, 0]), [3, 1]),
        "masked_lm_ids": rng.integers(5, V, [3, P]).astype(np.int32),
        "masked_lm_weights": np.array([[1, 1, 1], [0, 0, 0], [1, 1, 0]], np.float32),
        "next_sentence_labels": np.array([[0], [1], [1]], np.int32),
    }


HEADS = {
    "both": (True, True, [MASKED_LM, NEXT_SENTENCE]),
    "words": (True, False, [MASKED_LM]),
    "sentences": (False, True, [NEXT_SENTENCE]),
}


@pytest.mark.parametrize(("masked_lm", "next_sentence", "terms"), HEADS.values(), ids=HEADS)
def test_a_task_has_one_term_per_head(masked_lm, next_sentence, terms):
    with tf.Graph().as_default(), tf.Session() as session:
        task = PretrainingTask(CONFIG, masked_lm, next_sentence)
        network = create_network(task, ForwardOptions(), seed=1)
        assert list(task.terms) == terms
        given = {name: tf.constant(value) for name, value in features().items()}
        weights, sums = task.weights(given), network.losses(given)
        assert list(weights) == list(sums) == terms
        session.run(tf.global_variables_initializer())
        weights, sums = session.run([weights, sums])
    expected = {MASKED_LM: 5, NEXT_SENTENCE: 3}
    for term in terms:
        # The weights known before the forward pass equal those of the losses.
        assert weights[term] == expected[term] == sums[term].weight
        # With small random weights, predictions are uniform.
        classes = {MASKED_LM: V, NEXT_SENTENCE: 2}[term]
        assert sums[term].loss == pytest.approx(expected[term] * np.log(classes), rel=0.05)


def initial_weights(seed):
    with tf.Graph().as_default(), tf.Session() as session:
        create_network(PretrainingTask(CONFIG), ForwardOptions(), seed=seed)
        session.run(tf.global_variables_initializer())
        return session.run({v.op.name: v for v in tf.trainable_variables()})


def test_the_seed_determines_the_initial_weights():
    first, again, other = initial_weights(1), initial_weights(1), initial_weights(2)
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)
    name = "bert/embeddings/word_embeddings"
    assert not np.array_equal(first[name], other[name])


@pytest.mark.parametrize(("share", "whole_words"), [(0.3, True), (0.1, False)])
def test_masks_follow_the_settings(settings, share, whole_words):
    settings = with_values(settings, masked_lm_prob=share, do_whole_word_mask=whole_words)
    masking = open_run_records(settings).masking
    assert masking.options == MaskingOptions(share, P, do_whole_word_mask=whole_words)
    assert masking.vocab_size == V


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"ngram": 3, "favor_shorter_ngram": False}, "--ngram=3"),
        ({"span_masking": True}, "--span_masking=true"),
        ({"final_masked_lm_prob": 0.1}, r"--final_masked_lm_prob=0\.1"),
    ],
)
def test_how_masks_are_drawn_is_for_masks_drawn_in_training(
    settings, record_maker, tmp_path, changes, flag
):
    entries = open_run_records(settings).ledger_entries(None)
    assert entries["ngram"] == 1
    assert not {"favor_shorter_ngram", "span_masking"} & entries.keys()
    settings = with_values(settings, **changes)
    opened = open_run_records(settings)
    assert opened.masking.options == settings.data.masks
    assert changes.items() <= opened.ledger_entries(None).items()
    stored = record_maker.write(tmp_path / "stored" / "records.tfrecord", 6, masked=True)
    with pytest.raises(UserError, match=rf"{flag}: the records in .* store their masks"):
        open_run_records(with_files(settings, train=stored))


@pytest.mark.parametrize(
    ("stored", "held_out_stored", "expected"),
    [
        (False, False, "at training time"),
        (True, False, "stored, but drawn for held-out records"),
        (False, True, "at training time"),
        (True, True, "stored"),
    ],
)
def test_the_ledger_says_where_masks_come_from(settings, stored, held_out_stored, expected):
    [records] = settings.data.train_files
    opened = open_run_records(with_files(settings, held_out=records))
    opened = dataclasses.replace(
        opened,
        train=with_masks(opened.train, stored),
        held_out=with_masks(opened.held_out, held_out_stored),
        masking=None if stored and held_out_stored else opened.masking,
    )
    assert opened.ledger_entries(None)["masking"] == expected


def with_masks(opened, stored):
    return opened._replace(info=dataclasses.replace(opened.info, masked=stored))


@pytest.fixture(name="settings")
def settings_of_a_run(tmp_path):
    return pretraining_settings(tmp_path)


def with_files(settings, *, train=None, held_out=None):
    data = settings.data
    if train is not None:
        data = dataclasses.replace(data, train_files=(train,), train_patterns=str(train.parent))
    if held_out is not None:
        patterns = str(held_out.parent)
        data = dataclasses.replace(data, eval_files=(held_out,), eval_patterns=patterns)
        run = with_values(settings.run, do_eval=True)
        settings = dataclasses.replace(settings, run=run)
    return dataclasses.replace(settings, data=data)


def test_a_broken_configuration_is_named_before_records_are_read(settings, tmp_path):
    settings.data.train_files[0].write_text("not a record\n")
    model = tmp_path / "model"
    model.mkdir()
    (model / "bert_config.json").write_text("{")
    settings.bert_config_file.write_text("{")
    started = with_values(settings.run, init_checkpoint=str(model))
    for found in (settings, dataclasses.replace(settings, bert_config_file=None, run=started)):
        with pytest.raises(
            UserError, match=r"model configuration: .*bert_config\.json is not valid"
        ):
            pretraining.run(found)


@pytest.mark.parametrize("which", ["train", "held_out"])
def test_records_without_next_sentences(settings, which, tmp_path):
    records = write_records(tmp_path / "without", nsp=False)
    with pytest.raises(UserError, match="made without next sentences; give --nsp=false"):
        pretraining.run(with_files(settings, **{which: records}))


@pytest.mark.slow
def test_sentence_order_has_its_own_name(settings, tmp_path, capsys):
    records = write_records(tmp_path / "order", sentence_order=True)
    settings = with_files(settings, train=records, held_out=records)
    results = pretraining.run(settings)
    assert {"sentence_order_loss", "sentence_order_accuracy"} <= set(results)
    assert not any(name.startswith("next_sentence") for name in results)
    record = json.loads((settings.run.output_dir / "run.json").read_text())
    assert record["ledger"]["data"]["sentence_pairs"] == "sentence_order"
    capsys.readouterr()
    steps = settings.optimization.steps.num_train_steps + 1
    longer = with_values(settings.optimization, num_train_steps=steps)
    other = write_records(tmp_path / "next")
    settings = dataclasses.replace(settings, optimization=longer)
    results = pretraining.run(with_files(settings, train=other, held_out=other))
    assert "next_sentence_loss" in results
    changed = "data.sentence_pairs sentence_order -> next_sentence"
    assert changed in capsys.readouterr().out


def test_records_of_two_tasks(settings, tmp_path):
    records = write_records(tmp_path / "order", sentence_order=True)
    settings = with_files(settings, held_out=records)
    with pytest.raises(
        UserError, match=r"order/records\.tfrecord .* are of two tasks, some for next"
    ):
        open_run_records(settings)
    data = open_run_records(dataclasses.replace(settings, next_sentence=False))
    assert data.pair_tasks == ("next_sentence", "sentence_order")


def test_held_out_records_of_another_vocabulary(settings, tmp_path):
    records = write_records(tmp_path / "other", vocabulary="cd")
    with pytest.raises(UserError, match=r"other/records\.tfrecord have a different vocabulary"):
        pretraining.run(with_files(settings, held_out=records))


@pytest.mark.parametrize("which", ["train", "held_out"])
def test_a_lost_shard_is_noticed(settings, which, tmp_path):
    records = write_records(tmp_path / "shards")
    lost = records.with_name("lost.tfrecord")
    entries = (describe_file(records, count=10), FileEntry(lost.name, 5, ""))
    manifest = dataclasses.replace(read_manifest(records.parent), outputs=entries)
    write_manifest(records.parent, manifest)
    with pytest.raises(UserError, match=r"lost\.tfrecord is missing, but .*manifest\.json lists"):
        pretraining.run(with_files(settings, **{which: records}))
    assert not (settings.run.output_dir / "log.jsonl").exists()


def test_a_step_on_records_masked_at_training_time(settings, tmp_path, capsys):
    records = write_records(tmp_path / "without", nsp=False)
    settings = dataclasses.replace(with_files(settings, train=records), next_sentence=False)
    assert pretraining.run(settings) is None
    record = json.loads((settings.run.output_dir / "run.json").read_text())
    assert record["ledger"]["data"]["masking"] == "at training time"
    assert record["ledger"]["data"]["train_records"] == 10
    [line] = (settings.run.output_dir / "log.jsonl").read_text().splitlines()
    line = json.loads(line)
    assert line["step"] == 1
    assert "masked_lm_accuracy" in line
    assert "next_sentence_accuracy" not in line
    # The loss of an untrained network is that of a uniform guess.
    assert line["loss"] == pytest.approx(np.log(V), rel=0.05)
    names = tf.train.load_checkpoint(str(settings.run.output_dir)).get_variable_to_shape_map()
    assert not any("seq_relationship" in name for name in names)
    assert "warning:" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The settings of a finished run on records that include their vocabulary."""
    directory = tmp_path_factory.mktemp("trained")
    settings = pretraining_settings(directory)
    # A recipe whose vocab_size differs from the vocabulary's.
    recipe = {**CONFIG.to_dict(), "vocab_size": 2000}
    settings.bert_config_file.write_text(json.dumps(recipe))
    records = settings.data.train_files[0]
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map("w{}".format, range(V - 5))]
    content = "".join(f"{entry}\n" for entry in entries).encode()
    manifest = read_manifest(records.parent)
    digest = hashlib.sha256(content).hexdigest()
    vocabulary = dataclasses.replace(manifest.vocabulary, digest=digest)
    (records.parent / vocabulary.file_name).write_bytes(content)
    write_manifest(records.parent, dataclasses.replace(manifest, vocabulary=vocabulary))
    pretraining.run(settings)
    return settings


def continued(trained, directory, init_checkpoint, **changes):
    """A run from just the weights, for two epochs."""
    run = with_values(trained.run, output_dir=directory, init_checkpoint=str(init_checkpoint))
    optimization = with_values(
        trained.optimization,
        num_train_steps=None,
        num_warmup_steps=None,
        num_train_epochs=2.0,
        warmup_proportion=0.4,
    )
    return with_values(
        trained,
        run=run,
        optimization=optimization,
        bert_config_file=None,
        **changes,
    )


@pytest.fixture(scope="module")
def more(trained, tmp_path_factory):
    """The settings of a finished run from those weights."""
    settings = continued(trained, tmp_path_factory.mktemp("more"), trained.run.output_dir)
    pretraining.run(settings)
    return settings


@pytest.mark.slow
def test_a_model_directory_is_all_that_the_next_command_needs(trained, more):
    model = trained.run.output_dir
    [copy] = trained.data.train_files[0].parent.glob("*.vocab")
    assert (model / "vocab.txt").read_bytes() == copy.read_bytes()
    assert json.loads((model / "tokenizer_config.json").read_text()) == {"do_lower_case": True}
    parts = find_model(model)  # as fill_mask does
    assert parts.config == CONFIG.with_explicit_gelu()
    assert parts.notes == ()
    for name in ("bert_config.json", "vocab.txt", "tokenizer_config.json"):
        assert (more.run.output_dir / name).read_bytes() == (model / name).read_bytes()
    pretraining.run(trained)  # the recipe's size does not stand in the way of the same command


def for_epochs(settings, epochs):
    optimization = with_values(settings.optimization, num_train_epochs=epochs)
    return dataclasses.replace(settings, optimization=optimization)


@pytest.mark.slow
def test_epochs_count_passes_over_the_records(more, capsys):
    directory = more.run.output_dir
    # Ten records in batches of four: five updates are two epochs, two of them warm-up.
    steps = json.loads((directory / "run.json").read_text())["ledger"]["steps"]
    assert (steps["last_step"], steps["warmup_steps"]) == (5, 2)
    assert tf.train.latest_checkpoint(str(directory)).endswith("-5")
    pretraining.run(for_epochs(more, 1.0))
    assert "raise --num_train_epochs to train further" in capsys.readouterr().out
    pretraining.run(for_epochs(more, 3.0))
    assert tf.train.latest_checkpoint(str(directory)).endswith("-8")


def without_heads(trained, directory, *scopes):
    """A model directory whose checkpoint lacks the variables of some scopes."""
    shutil.copytree(trained.run.output_dir, directory)
    reader = tf.train.load_checkpoint(str(directory))
    names = [name for name in reader.get_variable_to_shape_map() if not name.startswith(scopes)]
    with tf.Graph().as_default(), tf.Session() as session:
        for name in names:
            tf.get_variable(name, initializer=reader.get_tensor(name), use_resource=True)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(directory / "model.ckpt"), global_step=1)
    return directory


def test_a_bare_encoder_gets_new_heads_with_a_message(trained, tmp_path, capsys):
    bare = without_heads(trained, tmp_path / "bare", "cls", "bert/pooler")
    pretraining.run(continued(trained, tmp_path / "out", bare))
    said = capsys.readouterr().out
    assert "the checkpoint has no masked-LM head, so it starts from random weights\n" in said
    assert "the checkpoint has no next-sentence head, so it starts from random weights\n" in said
    assert tf.train.latest_checkpoint(str(tmp_path / "out")).endswith("-5")


def test_missing_heads_cannot_be_evaluated(trained, tmp_path):
    bare = without_heads(trained, tmp_path / "bare", "cls/predictions")
    settings = continued(trained, tmp_path / "out", bare)
    settings = with_files(settings, held_out=trained.data.train_files[0])
    run = dataclasses.replace(settings.run, do_train=False)
    with pytest.raises(UserError, match=r"bare/model\.ckpt-1 has no masked-LM head, so there is"):
        pretraining.run(dataclasses.replace(settings, run=run))
    allowed = with_values(run, allowed_fresh=("cls/predictions",))
    assert pretraining.run(dataclasses.replace(settings, run=allowed)) is not None


def test_a_resumed_run_must_have_its_heads(trained, tmp_path):
    bare = without_heads(trained, tmp_path / "bare", "cls/predictions")
    settings = continued(trained, bare, trained.run.output_dir)
    with pytest.raises(UserError, match=r"cannot resume from .*: it lacks cls/predictions"):
        pretraining.run(settings)


def test_default_lengths_follow_the_records(settings, capsys):
    flags = {"max_seq_length": 128}
    data = with_values(settings.data, **flags)
    run = with_values(settings.run, flags=flags, dry_run=True)
    with pytest.raises(UserError, match="--max_seq_length=128, but the records in"):
        pretraining.run(dataclasses.replace(settings, data=data, run=run))
    run = with_values(run, defaulted=frozenset(flags))
    pretraining.run(dataclasses.replace(settings, data=data, run=run))
    said = f"--max_seq_length: {settings.data.max_seq_length}, as in the records, instead of the"
    assert f"{said} default 128" in capsys.readouterr().out
