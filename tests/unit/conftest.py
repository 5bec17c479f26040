import sys

import numpy as np
import pytest

from bert_tf.model.config import BertConfig


@pytest.fixture(scope="session", autouse=True)
def graphs_as_built():
    """Graphs run as they were built: to rewrite them takes a fourth of the time of these tests.

    Programs that tests start rewrite theirs, and so do sessions that ask for a certain rewrite.
    """
    if "tensorflow" not in sys.modules:  # loaded by a test file that needs it
        yield
        return
    import tensorflow.compat.v1 as tf

    start = tf.Session.__init__

    def start_without_rewriting(session, target="", graph=None, config=None):
        own = tf.ConfigProto()
        if config is not None:
            own.CopyFrom(config)
        rewriting = own.graph_options.rewrite_options
        asked_for = {field.name for field, _ in rewriting.ListFields()}
        if asked_for <= {"meta_optimizer_iterations"}:
            rewriting.disable_meta_optimizer = True
        start(session, target, graph, own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.Session, "__init__", start_without_rewriting)
        yield


@pytest.fixture(name="config")
def tiny_config():
    """Two layers; all sizes differ, so that mixed-up dimensions are noticed."""
    return BertConfig(
        vocab_size=37,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=11,
        type_vocab_size=2,
        initializer_range=0.3,
    )


@pytest.fixture(name="batch")
def tiny_batch():
    """Four sequences of 9 positions with different padding, segments and numbers of masks."""
    rng = np.random.RandomState(5)
    lengths = np.array([9, 6, 3, 7])
    first_segments = np.array([4, 6, 1, 5])
    mask_counts = np.array([3, 1, 0, 2])
    places = np.arange(9)
    slots = np.arange(3)
    is_mask = slots < mask_counts[:, None]
    positions = np.stack([rng.permutation(length)[:3] for length in lengths])
    return {
        "input_ids": rng.randint(0, 37, [4, 9]).astype(np.int32),
        "input_mask": (places < lengths[:, None]).astype(np.int32),
        "segment_ids": (places >= first_segments[:, None]).astype(np.int32),
        "masked_lm_positions": np.where(is_mask, positions, 0).astype(np.int32),
        "masked_lm_ids": np.where(is_mask, rng.randint(0, 37, [4, 3]), 0).astype(np.int32),
        "masked_lm_weights": is_mask.astype(np.float32),
        "next_sentence_labels": np.array([[0], [1], [1], [0]], np.int32),
    }


@pytest.fixture(name="session")
def graph_and_session():
    """A session with a new graph, which is the default graph during the test."""
    # Imported here: half of the tests need no TensorFlow.
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        yield session
