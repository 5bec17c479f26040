"""What training and prediction would choose by measuring, for benchmarks that do as they do."""

from __future__ import annotations

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.precision import probe_hardware
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.training.speed_choice import SpeedChoice, Wanted, choose_speed
from bert_tf.training.speed_probe import JobShapes


def measured_choice(
    wanted: Wanted,
    network: BertConfig,
    *,
    sequences: int,
    length: int,
    accumulation_steps: int,
    ranks: SingleProcess,
) -> SpeedChoice:
    """The choice for micro batches of ``sequences`` x ``length``; 0 steps for a prediction."""
    shapes = JobShapes.of(
        network, sequences=sequences, length=length, accumulation_steps=accumulation_steps
    )
    return choose_speed(wanted, shapes, hardware=probe_hardware(), ranks=ranks)
