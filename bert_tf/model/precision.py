"""Which class of operation computes in which floating-point type, and what the hardware has.

Variables, their gradients and every tensor that passes from one module to the next are float32.
A module casts what enters it to the type of its class and casts its result back, so the backward
pass of an operation has the type of its forward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from bert_tf.config.policy_file import TYPE_OF_PRECISION
from bert_tf.errors import UserError

PRECISIONS = tuple(TYPE_OF_PRECISION)


@dataclasses.dataclass(frozen=True)
class PrecisionPolicy:
    """The type that each class of operation computes in.

    Attributes:
      attention: the two products of attention, query with key and probabilities with value.
      dense: products with a kernel: query, key, value, the attention's and the feed-forward
        layers, the pooler, the masked-LM transform, and the words' scores.
      embeddings: table look-ups and their sum.
      softmax: attention scores from the mask on, and the attention probabilities.
      layer_norm: statistics, scale and shift.
      activations: GELU and its like, the pooler's tanh, bias additions, dropout and residuals.
      logits: the products of the heads with few classes, and the biases of all heads.
      loss: cross entropies and their sums.
      native: whether what lies between the products of a layer is computed by the compiled
        operations, which only CPUs have.
    """

    attention: tf.DType = tf.float32
    dense: tf.DType = tf.float32
    embeddings: tf.DType = tf.float32
    softmax: tf.DType = tf.float32
    layer_norm: tf.DType = tf.float32
    activations: tf.DType = tf.float32
    logits: tf.DType = tf.float32
    loss: tf.DType = tf.float32
    native: bool = dataclasses.field(default=False, metadata={"is_type": False})

    def describe(self) -> dict[str, str]:
        """Module class -> name of its type, for the ledger."""
        classes = (f.name for f in dataclasses.fields(self) if f.metadata.get("is_type", True))
        return {module: getattr(self, module).name for module in classes}

    def changed(self, types: Mapping[str, str]) -> PrecisionPolicy:
        """This policy with other types, by name, for the classes in ``types``."""
        return dataclasses.replace(self, **{k: tf.as_dtype(name) for k, name in types.items()})

    def classes_in(self, precision: str) -> list[str]:
        """The classes that compute in ``fp32``, ``bf16`` or ``fp16``."""
        name = TYPE_OF_PRECISION[precision]
        return [module for module, found in self.describe().items() if found == name]


def policy_for(precision: str) -> PrecisionPolicy:
    """The policy of ``fp32``, ``fp16`` or ``bf16``: the last two differ in their products only."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not one of {PRECISIONS}")
    product_type = TYPE_OF_PRECISION[precision]
    return PrecisionPolicy().changed({"attention": product_type, "dense": product_type})


def as_policy(precision: str | PrecisionPolicy) -> PrecisionPolicy:
    """``precision`` itself, or the policy of that name."""
    return precision if isinstance(precision, PrecisionPolicy) else policy_for(precision)


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What a job computes on: GPUs, or the CPU where there is none.

    Attributes:
      gpu_compute_capability: (major, minor) of the weakest GPU, None without one.
      gpu_count: GPUs that this process sees; a job system may show it one of several.
    """

    gpu_compute_capability: tuple[int, int] | None = None
    gpu_count: int = 0

    @property
    def has_gpu(self) -> bool:
        """Whether TensorFlow can use a GPU here."""
        return self.gpu_compute_capability is not None

    def native_precisions(self) -> tuple[str, ...]:
        """The precisions whose products are not emulated: a GPU's the fastest first.

        Of a CPU nobody can tell without measuring which of its precisions is the fastest.
        """
        if not self.has_gpu:
            return ("fp32", "bf16")
        major = self.gpu_compute_capability[0]
        if major >= 8:
            return ("bf16", "fp16", "fp32")
        return ("fp16", "fp32") if major == 7 else ("fp32",)


def probe_hardware() -> Hardware:
    """Asks the machine. Starts the GPU driver, so only entry scripts call it."""
    capabilities = [
        tf.config.experimental.get_device_details(device).get("compute_capability", (0, 0))
        for device in tf.config.list_physical_devices("GPU")
    ]
    return Hardware(
        gpu_compute_capability=min(capabilities) if capabilities else None,
        gpu_count=len(capabilities),
    )


def weakest(own: Hardware, everywhere: Sequence[Hardware]) -> Hardware:
    """``own``, reduced to what the GPUs of every rank can do."""
    capabilities = [hardware.gpu_compute_capability for hardware in everywhere]
    return dataclasses.replace(
        own, gpu_compute_capability=None if None in capabilities else min(capabilities)
    )


def resolve_precision(requested: str, hardware: Hardware) -> str:
    """Turns ``--precision`` into one of ``PRECISIONS``, as far as that can be told.

    ``auto`` takes the best of a GPU, and stays ``auto`` on a CPU, which is to be measured
    (``training/speed_choice.py``).
    """
    if requested == "auto":
        return hardware.native_precisions()[0] if hardware.has_gpu else requested
    if requested not in PRECISIONS:
        choices = ", ".join(("auto", *PRECISIONS))
        raise UserError(f"--precision={requested} is unknown; choose one of {choices}.")
    return requested


def slow_precision_warning(precision: str, hardware: Hardware) -> str | None:
    """One sentence when the hardware only emulates ``precision``, else None."""
    known = hardware.native_precisions()
    if precision in known:
        return None
    where = "GPU" if hardware.has_gpu else "CPU"
    return (
        f"this {where} only emulates {precision} products, very slowly; {known[0]} is faster here"
    )


def slow_policy_warnings(policy: PrecisionPolicy, hardware: Hardware) -> list[str]:
    """A sentence for each precision that some class has and the hardware only emulates."""
    used = [name for name in PRECISIONS if policy.classes_in(name)]
    return [warning for name in used if (warning := slow_precision_warning(name, hardware))]
