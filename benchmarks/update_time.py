"""How long an update and its parts take, as one rank of a job; rank 0 prints it as JSON.

    mpirun -np 2 python -m benchmarks.update_time --horovod \
        --bert_config_file=recipes/bert_tiny.json \
        --cases=delayed:4,every_micro_batch:4,compute:4,communication

The update is the one that training runs, on features made up. delayed_allreduce, scaling_model
and ranks_per_host start this program on the links that they compare.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from absl import flags

from benchmarks.cases import KINDS, Case
from benchmarks.script import run_benchmark
from bert_tf import environment
from bert_tf.config.bert_config import BertConfig
from bert_tf.config.settings import CommunicationSettings
from bert_tf.errors import UserError
from bert_tf.files import require_file, write_json


def run() -> None:
    """Measures the cases of the flags."""
    import tensorflow.compat.v1 as tf

    from benchmarks import case_graphs
    from bert_tf.ranks.distribution import connect
    from bert_tf.tuning.speed_choice import Wanted, measured_choice

    values = flags.FLAGS
    environment.quiet_tensorflow(verbose=False)
    tf.disable_eager_execution()
    cases = list(dict.fromkeys(Case.parse(text) for text in values.cases))
    network = BertConfig.from_json_file(
        require_file(values.bert_config_file, flag="bert_config_file")
    )
    if values.seq_length > network.max_position_embeddings:
        raise UserError(
            f"--seq_length={values.seq_length} is more than the network's "
            f"{network.max_position_embeddings} positions; lower it."
        )
    ranks = connect(
        horovod=values.horovod,
        num_threads=values.num_threads,
        communication=CommunicationSettings(
            fusion_threshold_mb=values.fusion_threshold_mb, cycle_time_ms=values.cycle_time_ms
        ),
    )
    chosen = measured_choice(
        Wanted(values.precision),
        network,
        sequences=values.micro_batch_size,
        length=values.seq_length,
        accumulation_steps=1,
        ranks=ranks,
    ).precision
    workload = case_graphs.Workload(
        network, values.micro_batch_size, values.seq_length, precision=chosen
    )
    with tf.Graph().as_default():
        runnables = case_graphs.build_cases(cases, workload, ranks, horovod=values.horovod)
        num_bytes = case_graphs.gradient_bytes()
        seconds = case_graphs.time_cases(
            runnables, ranks, turns=values.turns, micro_batches=values.micro_batches_a_turn
        )
    found = {
        "ranks": ranks.world_size,
        "hosts": len(set(ranks.gather(socket.gethostname()))),
        "threads": ranks.threads,
        "precision": chosen,
        "gradient_bytes": num_bytes,
        "seconds": {str(case): turns for case, turns in seconds.items()},
    }
    if ranks.is_chief:
        _report(found, values.json)


def _report(found: dict[str, Any], path: str | None) -> None:
    print(json.dumps(found), flush=True)
    if path:
        write_json(path, found)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.update_time``."""
    kinds = "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
    flags.DEFINE_list("cases", ["delayed:1"], f"What to time, KIND[:NUMBER[:COMPRESSION]]. {kinds}")
    flags.DEFINE_string("bert_config_file", None, "The network.", required=True)
    flags.DEFINE_integer("micro_batch_size", 8, "Sequences of a micro batch.", lower_bound=1)
    flags.DEFINE_integer("seq_length", 64, "Tokens of a sequence.", lower_bound=2)
    flags.DEFINE_string("precision", "auto", "Precision of products, as in training.")
    flags.DEFINE_boolean("horovod", False, "Whether mpirun started several ranks.")
    flags.DEFINE_integer("num_threads", None, "Cores of a rank; its share if not given.")
    flags.DEFINE_float("fusion_threshold_mb", None, "Most MiB that travel together.")
    flags.DEFINE_float("cycle_time_ms", None, "How often Horovod looks for gradients.")
    flags.DEFINE_integer("turns", 3, "Turns of every case.", lower_bound=1)
    flags.DEFINE_integer("micro_batches_a_turn", 8, "About this many a case.", lower_bound=1)
    flags.DEFINE_string("json", None, "Where rank 0 writes the figures.")


if __name__ == "__main__":
    run_benchmark(define_flags, run)
