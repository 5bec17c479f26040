"""Small pre-training runs in one process, whose ranks may share the optimizer's state.

Run under mpirun or alone by tests beside it: ``python shared_state_program.py DIRECTORY RUN...``,
each run ``NAME:SHARED:STEPS:OPTIMIZER`` or ``NAME:SHARED:STEPS:OPTIMIZER:MICRO``: it trains in
``DIRECTORY/NAME`` up to so many steps, from where its directory is, with micro batches of two or
``MICRO`` sequences.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.tasks.pretraining import run as pretraining
from tests.helpers.settings import with_values
from tests.helpers.tiny_pretraining import pretraining_settings

GLOBAL_BATCH, STEPS = 12, 6


def train(usual, directory, name, shared, steps, optimizer, micro="2"):
    """One run; the schedule is that of all steps, whatever the ranks."""
    world_size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    optimization = with_values(
        usual.optimization,
        micro_batch_size=int(micro),
        global_batch_size=GLOBAL_BATCH,
        num_train_steps=STEPS,
        stop_after_steps=int(steps),
        scale_steps_by_ranks=False,
        optimizer=optimizer,
        shard_optimizer_state=shared == "shared",
    )
    runtime = dataclasses.replace(
        usual.runtime,
        library="horovod" if world_size > 1 else None,
        deterministic=True,
        num_threads=1,
    )
    run = dataclasses.replace(usual.run, output_dir=Path(directory) / name)
    settings = dataclasses.replace(usual, optimization=optimization, runtime=runtime, run=run)
    pretraining.run(settings)


def main(directory, *runs):
    with tempfile.TemporaryDirectory() as own:
        usual = pretraining_settings(Path(own))
        for run in runs:
            train(usual, directory, *run.split(":"))


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(*sys.argv[1:])
