"""What a session does, from its settings."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.tuning.session import SessionSettings, gpu_index, session_config
from bert_tf.util.errors import UserError


@pytest.mark.parametrize(("threads", "branches"), [(1, 1), (2, 2), (16, 2)])
def test_threads(threads, branches):
    config = session_config(SessionSettings(threads=threads))
    assert config.intra_op_parallelism_threads == threads
    assert config.inter_op_parallelism_threads == branches


def test_nothing_is_on_by_default():
    config = session_config(SessionSettings(threads=2))
    assert config.graph_options.optimizer_options.global_jit_level == tf.OptimizerOptions.DEFAULT
    assert config.gpu_options.visible_device_list == ""


@pytest.mark.parametrize(
    ("local_rank", "gpu_count", "expected"),
    [(0, 0, None), (3, 0, None), (0, 8, 0), (7, 8, 7), (0, 1, 0), (7, 1, 0)],
    ids=["no GPU", "no GPU, rank 3", "first", "last", "the only one", "each its own"],
)
def test_one_gpu_for_each_rank_of_a_host(local_rank, gpu_count, expected):
    assert gpu_index(local_rank, gpu_count) == expected


def test_a_rank_without_a_gpu_is_refused():
    with pytest.raises(UserError, match=r"local rank 4 has no GPU: .* at most 4 ranks on a host"):
        gpu_index(4, 4)


def test_a_rank_sees_its_own_gpu():
    config = session_config(SessionSettings(threads=2, gpu=3))
    assert config.gpu_options.visible_device_list == "3"
    assert config.gpu_options.allow_growth
    assert config.allow_soft_placement


def test_sessions_made_from_settings_work():
    with (
        tf.Graph().as_default(),
        tf.Session(config=session_config(SessionSettings(threads=1))) as session,
    ):
        np.testing.assert_array_equal(session.run(tf.range(3)), [0, 1, 2])
