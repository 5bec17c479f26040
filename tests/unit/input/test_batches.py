"""What the records of questions must hold, and what is left of padded sequences."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.input.batches import BatchReader, dataset_of_positions, user_errors
from bert_tf.records.layouts import CHOICE_TRAINING, SQUAD_PREDICTION, SQUAD_TRAINING
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.util.errors import UserError

S, KEPT = 12, 8


def write(path, *, training=True, **changes):
    """Six records of eight tokens; ``changes`` are values at [row, column] of a feature."""
    examples = {
        "unique_ids": 1_000_000_000 + np.arange(6)[:, None],
        "input_ids": np.full((6, S), 9),
        "input_mask": np.tile(np.arange(S) < KEPT, (6, 1)).astype(np.int64),
        "segment_ids": np.zeros((6, S), np.int64),
    }
    if training:
        examples["start_positions"] = np.full((6, 1), 2)
        examples["end_positions"] = np.full((6, 1), KEPT - 1)
        examples["is_impossible"] = np.zeros((6, 1), np.int64)
    for name, (row, column, value) in changes.items():
        examples[name][row, column] = value
    with TFRecordWriter(path) as writer:
        spec = SQUAD_TRAINING if training else SQUAD_PREDICTION
        for record in spec.encode_batch(examples):
            writer.write(record)
    return path


def read(*paths, kept=KEPT, training=True, type_vocab_size=2):
    """All batches of three, in the order of the files."""
    reader = BatchReader(
        RecordSet(paths),
        spec=SQUAD_TRAINING if training else SQUAD_PREDICTION,
        lengths={"max_seq_length": S},
        vocab_size=20,
        type_vocab_size=type_vocab_size,
        batch_size=3,
        indices=lambda position: np.arange(3 * position, 3 * position + 3),
        positions_kept=None if kept is None else lambda _: kept,
    )
    found = []
    with tf.Graph().as_default(), tf.Session() as session, user_errors():
        dataset = dataset_of_positions(0, 2 * len(paths), reader.read)
        following = tf.data.make_one_shot_iterator(dataset).get_next()
        for _ in range(2 * len(paths)):
            found.append(session.run(following))
    return found


@pytest.mark.parametrize("kept", [None, KEPT, S])
@pytest.mark.parametrize("training", [True, False])
def test_sequences_are_cut_in_their_padding(tmp_path, kept, training):
    for batch in read(write(tmp_path / "a", training=training), kept=kept, training=training):
        assert batch["input_ids"].shape == (3, kept or S)
        assert batch["input_mask"].sum() == 3 * KEPT


@pytest.mark.parametrize(
    ("feature", "column", "value", "said"),
    [
        ("unique_ids", 0, 2**31, "it must be 0 to 2147483647"),
        ("input_ids", KEPT - 1, 20, "ids in the model's vocabulary are 0 to 19"),
        ("input_ids", S - 1, 2**40, "ids in the model's vocabulary are 0 to 19"),
        ("input_mask", S - 1, -1, "it must be 0 or 1"),
        ("segment_ids", 0, 2, "the model's segments are 0 to 1"),
        ("start_positions", 0, -1, f"positions in the sequence are 0 to {KEPT - 1}"),
        ("end_positions", 0, KEPT, f"positions in the sequence are 0 to {KEPT - 1}"),
        ("is_impossible", 0, 2, "it must be 0 or 1"),
    ],
)
def test_a_value_out_of_range_is_named(tmp_path, feature, column, value, said):
    good = write(tmp_path / "good")
    path = write(tmp_path / "wrong", **{feature: (4, column, value)})
    with pytest.raises(UserError) as error:
        read(good, path)
    assert str(error.value) == (
        f"record 4 of {path} cannot be used: its {feature} contains {value}, but {said}; "
        "delete the file and make it again."
    )


def test_a_network_without_segments_takes_any(tmp_path):
    for value in (1, 2, 2**31 - 1):
        path = write(tmp_path / str(value), segment_ids=(4, 0, value))
        _, batch = read(path, type_vocab_size=0)
        assert batch["segment_ids"][1, 0] == value
    for value in (-1, 2**31):
        path = write(tmp_path / str(value), segment_ids=(4, 0, value))
        with pytest.raises(UserError, match=rf"^record 4 of .* segment_ids contains {value}, but"):
            read(path, type_vocab_size=0)


def test_no_token_is_cut_off(tmp_path):
    path = write(tmp_path / "a", input_mask=(5, KEPT, 1))
    assert len(read(path, kept=KEPT + 1)) == 2
    sentence = rf"^record 5 of {path} .*: it has more tokens than the {KEPT} that were counted"
    with pytest.raises(UserError, match=sentence):
        read(path, kept=KEPT)


def test_the_first_of_several_wrong_records_is_named(tmp_path):
    path = write(tmp_path / "a", segment_ids=(2, 0, 9), input_ids=(1, 0, -3))
    with pytest.raises(UserError, match=r"^record 1 of .* its input_ids contains -3"):
        read(path)


def choices(path, **changes):
    """Six records of three sequences of eight tokens; ``changes`` as above, [row, choice, column].

    Returns their batch, cut to ``KEPT`` positions.
    """
    mask = np.tile(np.arange(S) < KEPT, (6, 3, 1)).astype(np.int64)
    examples = {
        "unique_ids": np.arange(6)[:, None],
        "input_ids": mask * np.arange(6 * 3 * S).reshape(mask.shape) % 20,
        "input_mask": mask,
        "segment_ids": np.zeros_like(mask),
        "labels": np.arange(6)[:, None] % 3,
    }
    for name, (*place, value) in changes.items():
        examples[name][tuple(place)] = value
    with TFRecordWriter(path) as writer:
        flat = {name: values.reshape(6, -1) for name, values in examples.items()}
        for record in CHOICE_TRAINING.encode_batch(flat):
            writer.write(record)
    reader = BatchReader(
        RecordSet([path]),
        spec=CHOICE_TRAINING,
        lengths={"max_seq_length": S, "num_choices": 3},
        vocab_size=20,
        type_vocab_size=2,
        batch_size=6,
        indices=lambda _: np.arange(6),
        positions_kept=lambda _: KEPT,
    )
    with tf.Graph().as_default(), tf.Session() as session, user_errors():
        features = reader.read(tf.constant(0, tf.int64))
        assert features["input_ids"].shape.as_list() == [6, 3, None]
        return examples, session.run(features)


def test_records_of_several_sequences_are_cut_in_each(tmp_path):
    examples, batch = choices(tmp_path / "a")
    for name in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(batch[name], examples[name][..., :KEPT])
    np.testing.assert_array_equal(batch["labels"], examples["labels"])


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("input_ids", (4, 2, 0, 20), "its input_ids contains 20"),
        ("input_mask", (4, 1, KEPT, 1), f"it has more tokens than the {KEPT}"),
    ],
)
def test_every_sequence_of_a_record_is_checked(tmp_path, name, place, said):
    with pytest.raises(UserError, match=f"^record 4 of .*{said}"):
        choices(tmp_path / "a", **{name: place})
