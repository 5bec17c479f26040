"""Muon against numpy's singular value decomposition, and against torch's."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.update.optimizer import UPDATE_COUNT, Optimizer
from bert_tf.update.optimizers import OPTIMIZERS
from bert_tf.update.optimizers.muon import orthogonalise, share_out, slots_of
from tests.helpers import rounding
from tests.helpers.updates import apply_gradients

UPDATES = 50
SHAPES = {
    "bert/embeddings/word_embeddings": (7, 8),
    "bert/encoder/layer_0/attention/self/query/kernel": (8, 8),
    "bert/encoder/layer_0/attention/self/query/bias": (8,),
    "bert/encoder/layer_0/intermediate/dense/kernel": (8, 24),
    "bert/encoder/layer_0/output/dense/kernel": (24, 8),
    "bert/encoder/layer_0/output/LayerNorm/gamma": (8,),
    "bert/pooler/dense/kernel": (8, 8),
}
MATRICES = [name for name in SHAPES if "encoder" in name and name.endswith("kernel")]
WITHOUT_DECAY = [name for name in SHAPES if name.endswith(("bias", "gamma"))]
EPSILON, DECAY = 1e-6, 0.01
BETA_1, BETA_2 = 0.9, 0.999
# Five iterations of three products round an element each time; a polynomial's slope is 3.4445.
IN_BFLOAT16 = 3.4445 * 5 * 3 * rounding.BFLOAT16
RANDOM = np.random.RandomState(0)
START = {name: RANDOM.randn(*shape).astype(np.float32) for name, shape in SHAPES.items()}
GRADIENTS = [
    {name: RANDOM.randn(*shape).astype(np.float32) for name, shape in SHAPES.items()}
    for _ in range(UPDATES)
]


def by_singular_values(matrix):
    """The iteration's polynomial applied to each singular value, float64."""
    u, values, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    values = values / np.linalg.norm(matrix)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return u * values @ v


def reference(rate, *, momentum=0.95, bias_correction=False, factor=1.0):
    """Weights after all updates, in float64, as the papers write them."""
    weights = {name: value.astype(np.float64) for name, value in START.items()}
    first, second = (dict.fromkeys(SHAPES, 0.0) for _ in range(2))
    for t, gradients in enumerate(GRADIENTS, start=1):
        for name, weight in weights.items():
            gradient = factor * gradients[name].astype(np.float64)
            if name in MATRICES:
                m = first[name] = momentum * first[name] + gradient
                nesterov = gradient + momentum * m
                step = 0.2 * max(weight.shape) ** 0.5 * by_singular_values(nesterov)
            else:
                m = first[name] = BETA_1 * first[name] + (1 - BETA_1) * gradient
                v = second[name] = BETA_2 * second[name] + (1 - BETA_2) * gradient**2
                if bias_correction:
                    m, v = m / (1 - BETA_1**t), v / (1 - BETA_2**t)
                step = m / (np.sqrt(v) + EPSILON)
            decay = 0.0 if name in WITHOUT_DECAY else DECAY
            weights[name] = weight - rate * (step + decay * weight)
    return weights


def updated(rate, *, factor=None, **options):
    """Weights after all updates, and the names of all global variables."""
    with tf.Graph().as_default(), tf.Session() as session:
        fed = {name: tf.placeholder(tf.float32, shape) for name, shape in SHAPES.items()}
        variables = {
            name: tf.get_variable(name, initializer=value, use_resource=True)
            for name, value in START.items()
        }
        pairs = [(fed[name], variable) for name, variable in variables.items()]
        factor = None if factor is None else tf.constant(factor)
        update = apply_gradients(Optimizer("muon", rate, **options), pairs, factor)
        session.run(tf.global_variables_initializer())
        for gradients in GRADIENTS:
            session.run(update, {fed[name]: gradients[name] for name in fed})
        return session.run(variables), {v.op.name for v in tf.global_variables()}


def errors(found, expected):
    """The largest difference in each variable, relative to the way that its weights went."""
    ways = {name: np.abs(expected[name] - START[name]).max() for name in SHAPES}
    return {name: np.abs(found[name] - expected[name]).max() / ways[name] for name in SHAPES}


@pytest.mark.parametrize("options", [{}, {"bias_correction": True, "momentum": 0.8}])
def test_fifty_updates_against_numpy(options, kernels):
    found, _ = updated(0.01, kernels=kernels, **options)
    assert max(errors(found, reference(0.01, **options)).values()) < 1e-4


def test_gradients_are_multiplied_by_a_factor(kernels):
    """The directions of matrices have no scale, but Adam's epsilon has."""
    found, _ = updated(0.01, kernels=kernels, factor=1e-6)
    expected = reference(0.01, factor=1e-6)
    assert max(errors(found, expected).values()) < 1e-4
    assert max(errors(found, reference(0.01)).values()) > 0.1


def test_half_precision_is_near(kernels):
    """Products of bfloat16 have 8 bits; all else is float32."""
    found, _ = updated(0.01, kernels=kernels, product_type=tf.bfloat16)
    apart = errors(found, reference(0.01))
    assert all((apart[name] > 1e-4) == (name in MATRICES) for name in SHAPES), apart
    assert max(apart.values()) < IN_BFLOAT16


@pytest.mark.parametrize(
    ("product_type", "tolerance"), [("float32", 1e-3), ("bfloat16", IN_BFLOAT16)]
)
def test_matrices_equal_torch(product_type, tolerance):
    """Torch computes in bfloat16, whatever the type of the gradient."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    from torch.optim import _muon

    theirs = {name: torch.nn.Parameter(torch.tensor(START[name])) for name in MATRICES}
    optimizer = torch.optim.Muon(
        theirs.values(), lr=0.01, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"
    )
    with pytest.MonkeyPatch.context() as patch:
        if product_type == "float32":
            patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
        assert _muon  # the module whose cast is replaced
        for gradients in GRADIENTS:
            for name, parameter in theirs.items():
                parameter.grad = torch.tensor(gradients[name])
            optimizer.step()
    expected = {**START, **{name: value.detach().numpy() for name, value in theirs.items()}}
    found, _ = updated(0.01, product_type=tf.as_dtype(product_type))
    for name in MATRICES:
        way = np.abs(expected[name] - START[name]).max()
        assert np.abs(found[name] - expected[name]).max() < tolerance * way, name


@pytest.mark.parametrize("product_type", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(48, 192), (192, 48), (64, 128)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_singular_values_become_one(shape, scale, product_type):
    matrix = (scale * np.random.RandomState(1).randn(*shape)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        result = orthogonalise(tf.constant(matrix), tf.as_dtype(product_type))
        assert result.dtype == product_type
        found = session.run(tf.cast(result, tf.float64))
    values = np.linalg.svd(found, compute_uv=False)
    assert values.min() > 0.65
    assert values.max() < 1.25
    u, _, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    # The same singular vectors: nearly diagonal between them.
    between = u.T @ found @ v.T
    assert np.abs(between - np.diag(np.diag(between))).max() < 0.05


def test_zero_stays_zero():
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(orthogonalise(tf.zeros([3, 5]), tf.float32))
    np.testing.assert_array_equal(found, np.zeros([3, 5]))


def test_variables_of_a_run():
    _, names = updated(0.01, bias_correction=True)
    slots = {
        f"{name}/{slot}"
        for name in SHAPES
        for slot in (["muon_m"] if name in MATRICES else ["adam_m", "adam_v"])
    }
    assert names == {*SHAPES, *slots, UPDATE_COUNT}


@pytest.mark.parametrize(
    ("name", "shape", "is_matrix"),
    [
        ("bert/encoder/layer_11/attention/output/dense/kernel", (8, 8), True),
        ("bert/encoder/layer_0/attention/self/query/bias", (8,), False),
        ("bert/encoder/layer_0/attention/output/LayerNorm/gamma", (8,), False),
        ("bert/embeddings/word_embeddings", (9, 8), False),
        ("bert/pooler/dense/kernel", (8, 8), False),
        ("cls/predictions/transform/dense/kernel", (8, 8), False),
        ("teacher/bert/encoder/layer_0/attention/self/query/kernel", (8, 8), False),
        ("bert/encoder/layer_0/kernel", (8,), False),
    ],
)
def test_which_weights_are_matrices(name, shape, is_matrix):
    expected = ("muon_m",) if is_matrix else ("adam_m", "adam_v")
    assert slots_of(name, shape) == expected


def test_estimates_count_one_slot_for_matrices():
    row = OPTIMIZERS["muon"]
    sizes = {name: int(np.prod(shape)) for name, shape in SHAPES.items()}
    floats = sum(size if name in MATRICES else 2 * size for name, size in sizes.items())
    assert row.slot_bytes(SHAPES) == 4 * floats


@pytest.mark.parametrize(
    ("costs", "parts", "expected"),
    [
        ([5, 1, 1, 1, 2], 2, [[0], [4, 1, 2, 3]]),
        ([3, 3, 3], 3, [[0], [1], [2]]),
        ([1], 3, [[0], [], []]),
        ([], 2, [[], []]),
    ],
)
def test_work_is_shared_out(costs, parts, expected):
    assert share_out(costs, parts) == expected
