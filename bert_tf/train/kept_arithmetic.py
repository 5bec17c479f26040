"""The arithmetic of a computation over several starts, which keeps what the first one chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.model.config import BertConfig
from bert_tf.train.arithmetic import Arithmetic, choose_arithmetic
from bert_tf.train.run import Run

_PRECISION, _NATIVE_OPS = "--precision", "--native_ops"


def kept_arithmetic(run: Run, config: BertConfig, plan: Mapping[str, Any] | None) -> Arithmetic:
    """Decides the precision and operations, unless the user or an earlier start did.

    Collective. Prints what is chosen. Raises UserError as ``choose_arithmetic`` does.

    Args:
      run: the run, which does not train.
      config: the network's configuration.
      plan: on rank 0, the entries that an earlier start kept; None if there was none.
    """
    earlier = run.ranks.broadcast(plan)
    runtime = run.runtime
    if earlier is not None and runtime.numerics.precision == "auto":
        precision = earlier.get(_PRECISION, "auto")
        numerics = dataclasses.replace(runtime.numerics, precision=precision)
        runtime = dataclasses.replace(runtime, numerics=numerics)
    if earlier is not None and runtime.native_ops is None:
        runtime = dataclasses.replace(runtime, native_ops=earlier.get(_NATIVE_OPS))
    arithmetic = choose_arithmetic(run, config, runtime=runtime)
    layers = "native" if arithmetic.options.native_layers else "TensorFlow's"
    ranks = "1 rank" if run.ranks.world_size == 1 else f"{run.ranks.world_size} ranks"
    run.message(
        f"precision {arithmetic.precision}, {layers} layers, {ranks} with {run.ranks.threads} "
        "threads each"
    )
    return arithmetic


def entries_of_plan(run: Run, arithmetic: Arithmetic) -> dict[str, Any]:
    """The entries of a plan that identify the arithmetic, and that a later start keeps."""
    return {
        _PRECISION: arithmetic.precision,
        _NATIVE_OPS: arithmetic.options.native_layers,
        "--precision_policy": dict(run.runtime.numerics.policy_changes),
    }
