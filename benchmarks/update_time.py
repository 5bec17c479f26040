"""Measures an update and its parts as one rank of a job; rank 0 prints the times as JSON.

    mpirun -np 2 python -m benchmarks.update_time --horovod \
        --bert_config_file=recipes/bert_tiny.json \
        --cases=delayed:4,every_micro_batch:4,compute:4,communication

The update is that of training, on made-up features. delayed_allreduce, scaling_model and
ranks_per_host start this program on the links that they compare.
"""

from __future__ import annotations

import json
import socket

from absl import flags

from benchmarks.communication.cases import KINDS, Case
from benchmarks.script import (
    REQUIRED,
    network_from_flags,
    run_benchmark,
    shared_flags,
    start_tensorflow,
)
from benchmarks.speed.batches import masked_words
from benchmarks.speed.steps import DISTILLATION, PRETRAINING, StepJob
from bert_tf.config.settings import CommunicationSettings
from bert_tf.util.files import write_json


def run() -> None:
    """Measures the cases given by the flags."""
    import tensorflow.compat.v1 as tf

    from benchmarks.communication import case_graphs
    from bert_tf.ranks.connect import connect
    from bert_tf.tuning.arithmetic import choose

    values = flags.FLAGS
    start_tensorflow()
    cases = list(dict.fromkeys(Case.parse(text) for text in values.cases))
    length = values.seq_length
    job = StepJob(
        network_from_flags(), values.task, values.micro_batch_size, length, masked_words(length)
    )
    ranks = connect(
        "horovod" if values.horovod else None,
        num_threads=values.num_threads,
        communication=CommunicationSettings(cycle_time_ms=values.cycle_time_ms),
    )
    choice = choose(job.network, ranks=ranks, precision=values.precision)
    with tf.Graph().as_default():
        operations = case_graphs.build_cases(
            cases, job, ranks, choice=choice, horovod=values.horovod
        )
        num_bytes = case_graphs.gradient_bytes()
        seconds = case_graphs.time_cases(
            operations, ranks, turns=values.turns, micro_batches=values.micro_batches_a_turn
        )
    found = {
        "ranks": ranks.world_size,
        "hosts": len(set(ranks.gather(socket.gethostname()))),
        "threads": ranks.threads,
        "precision": choice.precision,
        "gradient_bytes": num_bytes,
        "seconds": {str(case): turns for case, turns in seconds.items()},
    }
    if ranks.is_chief:
        print(json.dumps(found), flush=True)
        if values.json:
            write_json(values.json, found)


_CASES = "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
FLAGS = {
    "cases": (["delayed:1"], f"What to time, KIND[:NUMBER[:COMPRESSION]]. {_CASES}"),
    "horovod": (False, "Whether mpirun started several ranks."),
    "num_threads": (int, "Cores per rank (default: its part of the host's)."),
    "cycle_time_ms": (float, "Interval at which Horovod looks for gradients, in ms."),
    "bert_config_file": (REQUIRED, "The network; in a distillation, the teacher."),
    "task": ((PRETRAINING, DISTILLATION), "Task of the update."),
    **shared_flags("micro_batch_size", "precision", "micro_batches_a_turn", "json"),
    **shared_flags(seq_length=64, turns=3),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, run)
