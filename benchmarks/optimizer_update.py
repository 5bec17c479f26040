"""What an update of the weights costs, clip included: TensorFlow's operations and native ones.

    python -m benchmarks.optimizer_update --bert_config_file=recipes/bert_base.json --num_threads=1

Both forms move the same variables in one session, by turns, with gradients that lie ready. A
process measures one number of threads, since TensorFlow makes its threads once. Figures are medians
over turns, and ratios are medians of the ratios within a turn.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.script import run_benchmark
from bert_tf import environment
from bert_tf.config.bert_config import BertConfig
from bert_tf.errors import UserError
from bert_tf.files import require_file, write_json

OPTIMIZERS = ("adamw", "lamb")
FORMS = ("native", "tensorflow")
_CLIP_NORM, _LEARNING_RATE = 1.0, 1e-6


def seconds_by_form(
    network: BertConfig, optimizer_name: str, *, threads: int, turns: int, updates: int
) -> dict[str, list[float]]:
    """Seconds of an update in each form, one figure a turn; the first turn is not counted.

    Raises UserError where the native operations are not built.
    """
    import tensorflow.compat.v1 as tf

    from bert_tf.ranks.distribution import SingleProcess
    from bert_tf.tuning.session import SessionSettings, session_config
    from bert_tf.update.kernels import TensorFlowKernels, choose_kernels
    from bert_tf.update.optimizers import AdamW, Lamb, clip_factor

    forms = {
        "native": choose_kernels(True, has_gpu=False, ranks=SingleProcess(threads)),
        "tensorflow": TensorFlowKernels(),
    }
    taken: dict[str, list[float]] = {form: [] for form in FORMS}
    with tf.Graph().as_default():
        variables, gradients = _variables_and_gradients(network)
        # One optimizer, so that both forms move the same moments.
        optimizer = {"adamw": AdamW, "lamb": Lamb}[optimizer_name](_LEARNING_RATE)
        operations = {}
        for form, kernels in forms.items():
            optimizer.kernels = kernels
            factor = clip_factor(kernels.global_norm(gradients), _CLIP_NORM)
            operations[form] = optimizer.apply_gradients(zip(gradients, variables), factor=factor)
        with tf.Session(config=session_config(SessionSettings(threads))) as session:
            session.run(tf.global_variables_initializer())
            for turn in range(turns + 1):
                for form, operation in operations.items():
                    start = time.perf_counter()
                    for _ in range(updates):
                        session.run(operation)
                    if turn:
                        taken[form].append((time.perf_counter() - start) / updates)
    return taken


def _variables_and_gradients(network: BertConfig) -> tuple[list[Any], list[Any]]:
    """A network's variables, and numbers of their shapes that the session keeps."""
    import tensorflow.compat.v1 as tf

    from bert_tf.model.precision import policy_for
    from bert_tf.tasks.pretraining import PretrainingObjective

    objective = PretrainingObjective(
        network, policy_for("fp32"), masked_lm=True, next_sentence=True, seed=1
    )
    objective.create_variables()
    variables = tf.trainable_variables()
    gradients = [
        tf.get_variable(
            f"{variable.op.name}/gradient",
            variable.shape,
            initializer=tf.random_normal_initializer(stddev=1e-3),
            trainable=False,
            use_resource=True,
        ).read_value()
        for variable in variables
    ]
    return variables, gradients


def summarise(
    taken: dict[str, list[float]], optimizer_name: str, config: dict[str, Any]
) -> list[dict[str, Any]]:
    """Median seconds of each form and how many times faster the native one is."""

    def row(name: str, subject: str, value: float, unit: str) -> dict[str, Any]:
        return {"name": name, "subject": subject, "value": value, "unit": unit, "config": config}

    name = f"update_{optimizer_name}"
    speedups = [slow / fast for slow, fast in zip(taken["tensorflow"], taken["native"])]
    return [
        *(row(name, form, statistics.median(taken[form]), "s") for form in FORMS),
        row(f"{name}_speedup", "native", statistics.median(speedups), "x"),
    ]


def run() -> None:
    """Measures what the flags say, prints a line for each figure and writes them."""
    values = flags.FLAGS
    path = require_file(values.bert_config_file, flag="bert_config_file")
    network = BertConfig.from_json_file(path)
    unknown = [name for name in values.optimizers if name not in OPTIMIZERS]
    if unknown:
        raise UserError(f"--optimizers: {unknown[0]} is not one of {', '.join(OPTIMIZERS)}.")
    threads = values.num_threads or environment.available_cores()
    environment.quiet_tensorflow(verbose=False)
    sizes = {"num_hidden_layers": network.num_hidden_layers, "hidden_size": network.hidden_size}
    config = {**sizes, "threads": threads, "turns": values.turns, **describe_machine()}
    rows = []
    for name in values.optimizers:
        taken = seconds_by_form(
            network, name, threads=threads, turns=values.turns, updates=values.updates
        )
        for row in summarise(taken, name, config):
            rows.append(row)
            print(f"{row['name']:<22} {row['subject']:<11} {row['value']:.4g} {row['unit']}")
    if values.json:
        write_json(values.json, rows)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.optimizer_update``."""
    flags.DEFINE_string("bert_config_file", None, "The network.", required=True)
    flags.DEFINE_list("optimizers", list(OPTIMIZERS), f"Of {', '.join(OPTIMIZERS)}.")
    flags.DEFINE_integer("num_threads", None, "Threads; all cores if not given.", lower_bound=1)
    flags.DEFINE_integer("turns", 7, "Turns of both forms.", lower_bound=1)
    flags.DEFINE_integer("updates", 3, "Updates of a turn.", lower_bound=1)
    flags.DEFINE_string("json", None, "Where the figures are written.")


if __name__ == "__main__":
    run_benchmark(define_flags, run)
