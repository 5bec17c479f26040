"""Parts in which results count: devices, types, loss curves, a killed run, the CPU's results."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.hlo_types import (
    AFTER,
    BEFORE,
    INPUTS,
    LOGARITHMS,
    OUTPUTS,
    PRODUCTS,
    added,
    dumped_types,
    of_operations,
)
from benchmarks.gpu.lab import LENGTHS, PRECISIONS, SCRIPTS, Lab
from benchmarks.gpu.rows import PASSED, Case, attempts, checked, missing
from benchmarks.gpu.runs import RunError, read_training, require_success, run_program
from benchmarks.loss_curves_compare import Curve, difference
from benchmarks.results import Result, result
from benchmarks.speed.process import script_command
from benchmarks.speed.steps import PRETRAINING
from bert_tf.util.files import read_json

_VERSIONS = """
import importlib.metadata, json
print(json.dumps({name: importlib.metadata.version(name) for name in ("torch", "transformers")}))
"""
# XLA's names for the types in a ledger.
_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_FLOATS = {*_TYPES.values(), "f64"}
_CURVES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp32 without XLA": {"precision": "fp32", "use_xla": False},
    "fp32, another seed": {"precision": "fp32", "seed": 2},
}
# Which curves are compared; the pair with fp16 is NVIDIA's.
_PAIRS = (
    ("bf16", "fp32"),
    ("fp16", "fp32"),
    ("fp32 without XLA", "fp32"),
    ("fp16", "fp32 without XLA"),
    ("fp32, another seed", "fp32"),
)
# Largest differences between GPU and CPU by --tf32: losses in nats, and components of vectors,
# whose root mean square is about 1. Sums in another order differ by some 1e-6, relatively; TF32
# rounds factors to 10 bits, by up to 5e-4.
_BOUNDS = {False: 1e-4, True: 2e-2}


def device(lab: Lab) -> Iterator[Result]:
    """GPUs, versions and the files that XLA needs."""
    seen = lab.seen
    driver: dict[str, str] = next(iter(seen["driver"]), {})
    versions = {name: seen[name] for name in ("tensorflow", "cuda", "cudnn", "gpus")}
    yield result("GPUs that TensorFlow sees", len(seen["gpus"]), "GPUs", {**versions, **driver})
    if driver:
        yield result("GPU memory", float(driver["memory_mib"]) / 1024, "GiB", driver)
    for name in ("ptxas", "libdevice"):
        yield result(f"{name} found", float(seen[name] is not None), "", {"path": seen[name]})
    try:
        yield result("torch found", 1.0, "", lab.in_peer_python("-c", _VERSIONS), "transformers")
    except (RunError, OSError) as error:
        yield missing("torch found", "", error, "transformers")


def types(lab: Lab) -> Iterator[Result]:
    """The types of the operations in compiled modules, and whether they keep the policy."""
    yield from attempts(
        Case(name, functools.partial(_types_of, lab, name), "operations") for name in PRECISIONS
    )


def _types_of(lab: Lab, precision: str) -> Iterator[Result]:
    trained, dump = lab.small_run(precision)
    promised = list(_promised(trained.record["ledger"]["precision"]))
    for words, stage in {"asked for": BEFORE, "optimized": AFTER}.items():
        modules = dumped_types(dump, stage)
        counts = added(modules.values())
        if not of_operations(counts, PRODUCTS):
            raise RunError(f"no products in the modules that XLA wrote to {dump}")
        for what, operations, allowed in promised:
            found = of_operations(counts, operations)
            kinds = {kind: set(kind.split(" x ")) for kind in found}
            floats = {kind: n for kind, n in found.items() if kinds[kind] & _FLOATS}
            passed = all(kinds[kind] <= allowed for kind in floats)
            if what == "products":  # those that are promised in half precision have to be there
                passed &= allowed - {"f32"} <= set().union(*kinds.values())
            config = {"types": floats, "allowed": sorted(allowed), "modules": list(modules)}
            name = f"{precision}, {words}: {what}"
            yield result(name, sum(floats.values()), "operations", {**config, PASSED: passed})
        if not lab.has_gpu:
            return  # XLA's optimizations for CPUs have float32 in place of half precision


def _promised(policy: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], set[str]]]:
    """What to look at: its name, operations, and the types that a ledger's policy allows there."""

    def of_classes(*names: str) -> set[str]:
        return {"f32", *(_TYPES[policy[name]] for name in names)}

    yield "products", PRODUCTS, of_classes("attention", "dense", "logits", "embeddings")
    yield "exponentials (softmax)", ("exponential",), of_classes("softmax", "loss", "activations")
    yield "reciprocal roots (norms)", ("rsqrt",), of_classes("layer_norm")
    yield "logarithms (losses)", LOGARITHMS, of_classes("loss")
    yield "weights and other inputs", (INPUTS,), {"f32"}
    yield "new weights and other outputs", (OUTPUTS,), {"f32"}


def curves(lab: Lab) -> Iterator[Result]:
    """Loss curves on the same data, and how far they are apart."""
    found: dict[str, Curve] = {}

    def of_run(name: str) -> Iterator[Result]:
        trained, _ = lab.small_run(**_CURVES[name])
        losses = [np.inf if line["loss"] is None else line["loss"] for line in trained.log]
        if not losses:
            raise RunError("it logged no loss")
        found[name] = Curve(tuple(line["step"] for line in trained.log), tuple(losses), 0.0)
        skipped = trained.log[-1].get("skipped_updates", 0)
        config = {"steps": found[name].steps, "losses": losses, "skipped_updates": skipped}
        yield result(f"{name}, last loss", losses[-1], "nats", config)
        for one, other in _PAIRS:
            if name in (one, other) and {one, other} <= found.keys():
                apart = difference(found[one], found[other])
                means = {"mean": apart.mean, "updates": lab.sizes.curve_updates}
                yield result(f"{one} to {other}, largest", apart.largest, "nats", means)

    yield from attempts(Case(name, functools.partial(of_run, name), "nats") for name in _CURVES)


def resume(lab: Lab) -> Iterator[Result]:
    """Whether a run that is killed between checkpoints ends in the bits of one that is not."""
    updates, spacing = lab.sizes.saving
    flags = lab.small_flags(
        deterministic=True,
        precision="bf16",
        num_train_steps=updates,
        save_checkpoints_steps=spacing,
        display_loss_steps=1,
    )
    whole = lab.train("not killed", flags, keep_weights=True).directory
    killed, log, output = (lab.work / name for name in ("killed", "killed/log.jsonl", "killed.txt"))
    script = script_command(SCRIPTS[PRETRAINING], {**flags, "output_dir": killed})
    run = functools.partial(
        run_program,
        [sys.executable, *script],
        output,
        deadline=lab.deadline,
        environment=lab.environment,
    )
    logged = 0

    def is_between_checkpoints() -> bool:
        nonlocal logged
        logged = log.read_bytes().count(b"\n") if log.exists() else 0
        return logged > spacing and logged % spacing > 2

    ended = run(label="resume: to be killed", kill_when=is_between_checkpoints)
    if ended.status >= 0:
        require_success(ended, output)
        raise RunError("the run ended before it could be killed")
    config = {"killed_after": logged}
    require_success(run(label="resume: started again"), output)
    config["resumed_at"] = read_training(killed).record["ledger"]["steps"]["start_step"]
    if not 0 < config["resumed_at"] <= config["killed_after"]:
        raise RunError(f"it was killed after {logged} updates, resumed at {config['resumed_at']}")
    different, config["arrays"] = _different_arrays(whole, killed)
    yield checked("arrays that differ after a kill", different, "arrays", bound=0, **config)


def _different_arrays(one: Path, other: Path) -> tuple[int, int]:
    """How many arrays of two runs' last checkpoints differ in a bit, and how many there are."""
    import tensorflow.compat.v1 as tf

    values = []
    for directory in (one, other):
        reader = tf.train.load_checkpoint(str(directory))
        names = reader.get_variable_to_shape_map()
        values.append({name: np.asarray(reader.get_tensor(name)).tobytes() for name in names})
    first, second = values
    names = first.keys() | second.keys()
    return sum(first.get(name) != second.get(name) for name in names), len(names)


def cpu(lab: Lab) -> Iterator[Result]:
    """How far evaluation and vectors of texts on the GPU are from those on the CPU."""
    model = lab.small_run("fp32")[0].directory
    no_gpu = {"CUDA_VISIBLE_DEVICES": "-1"}
    loss, vectors = _evaluated(lab, model, "CPU", {"use_xla": False}, no_gpu)
    where = "GPU" if lab.has_gpu else "CPU, compiled,"
    config = {"texts": len(vectors), "rms": float(np.sqrt(np.mean(vectors**2)))}
    for tf32, bound in _BOUNDS.items():
        name = f"{where} to CPU, TF32 {'on' if tf32 else 'off'}"
        other_loss, others = _evaluated(lab, model, name, {"use_xla": True, "tf32": tf32}, {})
        yield checked(f"{name}: loss", abs(other_loss - loss), "nats", bound=bound)
        apart = float(np.abs(others - vectors).max())
        yield checked(f"{name}: vectors", apart, "", bound=bound, **config)


def _evaluated(
    lab: Lab,
    model: Path,
    name: str,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
) -> tuple[float, np.ndarray]:
    """The held-out loss in nats, and vectors of made-up texts, float32 [texts, hidden size]."""
    small, output = lab.small_flags(), lab.work / f"evaluated {name}"
    texts, vectors = lab.work / "texts.txt", output.with_suffix(".npy")
    texts.write_text("".join(f"w{number} w{2 * number} w1\n" for number in range(50)))
    evaluation = {
        "do_eval": True, "eval_file": small["input_file"], "output_dir": output,
        "eval_batch_size": lab.sizes.small.batch, "max_eval_steps": 4,
        **{name: small[name] for name in LENGTHS if name in small}, **flags,
    }  # fmt: skip
    features = {"input_file": texts, "output_file": vectors, "pooling": "mean"}
    features.update({name: value for name, value in flags.items() if name == "tf32"})
    if lab.data is None:  # otherwise the vocabulary of the records is stored with the weights
        features["vocab_file"] = lab.vocabulary_file(lab.sizes.small.network)
    shared = {
        "init_checkpoint": model,
        "bert_config_file": small["bert_config_file"],
        "precision": "fp32",
    }
    for script, more in (("run_pretraining.py", evaluation), ("run_features.py", features)):
        lab.run(script, {**shared, **more}, f"{name}, {script}", environment)
    return read_json(output / "eval_results.json", what="results")["loss"], np.load(vectors)
