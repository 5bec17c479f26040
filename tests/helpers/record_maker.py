"""Small record files, written by us and as google's script writes them."""

from __future__ import annotations

import collections

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.durable.manifest import Manifest, VocabularyEntry, describe_file, write_manifest
from bert_tf.records.layouts import PRETRAINING_MASKED, PRETRAINING_UNMASKED
from bert_tf.records.tfrecord import TFRecordWriter

SEQ_LENGTH, PREDICTIONS, VOCAB_SIZE = 12, 3, 50
SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


class RecordMaker:
    """Writes record files of the small geometry above; the segments of record i are i's bits."""

    def examples(self, count, *, first=0, masked=True, seq_length=SEQ_LENGTH):
        rng = np.random.default_rng(first)
        shape = (count, seq_length)
        numbers = np.arange(first, first + count)[:, None]
        examples = {
            "input_ids": rng.integers(5, VOCAB_SIZE, shape),
            "input_mask": np.ones(shape, np.int64),
            "segment_ids": numbers >> np.arange(seq_length) & 1,
            "next_sentence_labels": numbers % 2,
        }
        if masked:
            shape = (count, PREDICTIONS)
            examples["masked_lm_positions"] = np.sort(rng.integers(0, seq_length, shape))
            examples["masked_lm_ids"] = rng.integers(5, VOCAB_SIZE, shape)
            examples["masked_lm_weights"] = rng.integers(0, 2, shape).astype(np.float32)
        else:
            examples["word_starts"] = (rng.random((count, seq_length)) < 0.6).astype(np.int64)
            examples["word_starts"][:, 0] = 1
        return examples

    def numbers(self, segment_ids):
        """The numbers of records, from their segment_ids [N, S]."""
        return segment_ids @ (1 << np.arange(segment_ids.shape[1]))

    def write(self, path, count, *, compression="none", **options):
        examples = self.examples(count, **options)
        masked = options.get("masked", True)
        spec = PRETRAINING_MASKED if masked else PRETRAINING_UNMASKED
        path.parent.mkdir(exist_ok=True)
        with TFRecordWriter(path, compression=compression) as writer:
            for record in spec.encode_batch(examples) if count else []:
                writer.write(record)
        return path

    def write_manifest(self, directory, **changes):
        outputs = [
            describe_file(path, count=self.count(path))
            for path in sorted(directory.glob("*.tfrecord"))
        ]
        values = {
            "stage": "create_pretraining_data",
            "parameters": {"nsp": True},
            "inputs": (),
            "outputs": tuple(outputs),
            "vocabulary": VocabularyEntry("ab", VOCAB_SIZE, "wordpiece", True, SPECIAL_IDS),
        }
        write_manifest(directory, Manifest(**{**values, **changes}))
        return directory

    def count(self, path):
        is_gzip = path.read_bytes().startswith(b"\x1f\x8b")
        options = tf.io.TFRecordOptions(compression_type="GZIP" if is_gzip else "")
        return sum(1 for _ in tf.python_io.tf_record_iterator(str(path), options))

    def write_like_google(self, path, count, *, first=0, renamed=None):
        """With the calls of google-research/bert's script: no offsets, no manifest.

        ``renamed`` gives features other names.
        """
        examples = self.examples(count, first=first)
        examples = {(renamed or {}).get(name, name): v for name, v in examples.items()}
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in range(count):
                features = collections.OrderedDict()
                for name, values in examples.items():
                    row_values = list(values[row])
                    if name == "masked_lm_weights":
                        kind = {"float_list": tf.train.FloatList(value=row_values)}
                    else:
                        kind = {"int64_list": tf.train.Int64List(value=row_values)}
                    features[name] = tf.train.Feature(**kind)
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
        return path
