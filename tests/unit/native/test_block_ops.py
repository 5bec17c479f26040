"""The operations between products against their formulas, on every set of instructions."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from scipy import stats

from bert_tf.model.blocks import native_operations
from bert_tf.model.dropout import Draw, numbers_like
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.programs import run
from tests.unit.native.block_program import (
    ATTENDED,
    COUNTER,
    KEY,
    PLACES,
    TEMPERATURE,
    THRESHOLD,
    Attended,
    B,
    D,
    S,
    attention,
    not_numbers,
)

pytestmark = [requires_native_ops, pytest.mark.each_tensorflow]

PROGRAM = "tests/unit/native/block_program.py"
INSTRUCTIONS = ("best", "avx512_bf16", "avx512", "avx2", "generic")
TYPES = ("float32", "bfloat16")
# Half a unit in the last place of what is rounded to bfloat16; float32 sums elsewhere.
TOLERANCE = {"float32": 3e-6, "bfloat16": 2.0**-8}


def computed_by(directory, instructions, threads=1):
    """What block_program.py computes with a set of instructions: name -> array."""
    path = directory / f"{instructions}-{threads}.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_TF_INSTRUCTIONS", instructions)
        run(PROGRAM, path, threads)
    return dict(np.load(path))


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("blocks")
    ways = {name: computed_by(directory, name) for name in INSTRUCTIONS}
    threads = {"two threads": 2, "three threads": 3}
    return {**ways, **{n: computed_by(directory, "best", threads=t) for n, t in threads.items()}}


@pytest.fixture(params=TYPES)
def found(request, computed):
    """Inputs and outputs of one type, as float64; ``tolerance`` is the type's."""
    own = {
        name.split("/")[1]: array.astype(np.float64)
        for name, array in computed[INSTRUCTIONS[0]].items()
        if name.startswith(f"{request.param}/")
    }
    return {**own, "tolerance": TOLERANCE[request.param]}


def assert_close(found, name, expected, tolerance=None):
    tolerance = tolerance or found["tolerance"]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found[name], expected, rtol=tolerance, atol=tolerance * scale / 4)


def masks(*shape):
    """1 / (1 - rate) where an element stays, by the numbers that TensorFlow's Philox draws."""
    with tf.Graph().as_default(), tf.Session() as session:
        draw = Draw(tf.constant([KEY], tf.uint64), tf.constant(COUNTER, tf.uint64), THRESHOLD)
        numbers = session.run(numbers_like(tf.zeros(shape), draw))
    return np.where(numbers >= THRESHOLD, 65536 / (65536 - THRESHOLD), 0.0)


@pytest.mark.parametrize("other", [*INSTRUCTIONS[1:], "two threads", "three threads"])
def test_instructions_and_threads_change_no_bit(computed, other):
    """But for attention, where products are added in another order.

    That is in float32 without fused multiply-adds, and in bfloat16 with tiles.
    """
    for name, array in computed[INSTRUCTIONS[0]].items():
        same = computed[other][name]
        adds_otherwise = other == "generic" if name.startswith("float32/") else _with_tiles(other)
        if adds_otherwise and ("context" in name or "joined" in name):
            tolerance = 1e-5 if name.startswith("float32/") else 2.0**-9
            assert np.linalg.norm(array - same) <= tolerance * np.linalg.norm(array), name
        else:
            np.testing.assert_array_equal(array, same, err_msg=name)


def _with_tiles(other):
    """Whether the best instructions have tiles and the others have none."""
    return other in INSTRUCTIONS and "amx_bf16" in Path("/proc/cpuinfo").read_text()


def test_gelu(found):
    x = found["inner"] + found["inner_bias"]
    u = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    assert_close(found, "gelu", 0.5 * x * (1 + np.tanh(u)))
    dx = found["dinner"] * (0.5 * (1 + np.tanh(u)) + 0.5 * x * slope / np.cosh(u) ** 2)
    assert_close(found, "gradient of inner", dx)
    # The sum is of what was not rounded yet.
    assert_close(found, "gradient of inner_bias", dx.sum((0, 1)), TOLERANCE["float32"])


def test_exact_gelu(found):
    x = found["exact_inner"] + found["exact_inner_bias"]
    below, density = stats.norm.cdf(x), stats.norm.pdf(x)
    assert_close(found, "exact gelu", x * below)
    dx = found["dinner"] * (below + x * density)
    assert_close(found, "gradient of exact_inner", dx)
    assert_close(found, "gradient of exact_inner_bias", dx.sum((0, 1)), TOLERANCE["float32"])


def test_exact_gelu_on_both_sides_of_zero():
    """Its error, in units of what it is near, does not grow where it is small itself."""
    given = np.linspace(-12.5, 12.5, 100_001, dtype=np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(given[np.newaxis])
        y = native_operations().bert_tf_bias_gelu(
            product=x, bias=tf.zeros([given.size]), exact=True
        )
        found, slope = session.run([y, tf.gradients(y, x)[0]])
    below, density = stats.norm.cdf(np.float64(given)), stats.norm.pdf(np.float64(given))
    np.testing.assert_allclose(found[0], given * below, rtol=1e-5, atol=1e-35)
    np.testing.assert_array_less(
        np.abs(found[0] - given * below), 1.5e-7 * np.maximum(1, np.abs(given))
    )
    np.testing.assert_allclose(slope[0], below + given * density, rtol=0, atol=4e-7)


def test_dropout_residual_and_norm(found):
    # A row is dropped as its place would be.
    mask = masks(B, S, D).reshape(B * S, D)[PLACES]
    z = mask * (found["product"] + found["bias"]) + found["residual"]
    centered = z - z.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
    normal = centered * rstd
    y = normal * found["gamma"] + found["beta"]
    assert_close(found, "full", y, TOLERANCE["float32"])
    assert_close(found, "half", y)

    dy = found["dy"] + found["dhalf"]
    scaled = dy * found["gamma"]
    along = (scaled * normal).mean(-1, keepdims=True)
    dz = rstd * (scaled - scaled.mean(-1, keepdims=True) - normal * along)
    exact = TOLERANCE["float32"]
    assert_close(found, "gradient of residual", dz, exact)
    assert_close(found, "gradient of product", mask * dz)
    assert_close(found, "gradient of bias", (mask * dz).sum(0), exact)
    assert_close(found, "gradient of gamma", (dy * normal).sum(0), exact)
    assert_close(found, "gradient of beta", dy.sum(0), exact)


def rounded(x, tolerance):
    """To the type with this tolerance, as float64."""
    dtype = np.float32 if tolerance == TOLERANCE["float32"] else tf.bfloat16.as_numpy_dtype
    return x.astype(np.float32).astype(dtype).astype(np.float64)


@pytest.mark.parametrize("name", ATTENDED)
def test_attention(found, name):
    case, tolerance = ATTENDED[name], found["tolerance"]
    B, S, N, H = case[:4]
    joined = found[f"{name}_joined"] + found[f"{name}_joined_bias"]
    joined = joined.reshape(-1, 3, N, H) * np.array([[[0.375]], [[1]], [[1]]])
    query, key, value = (case.in_places(rounded(joined[:, k], tolerance)) for k in range(3))
    scores = query @ key.swapaxes(2, 3) + case.score_bias()[:, None, None, :]
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    mask = masks(B, N, S, S)
    context = case.in_rows(mask * p @ value, case.read)
    # Several numbers are rounded on the way to each result.
    assert_close(found, f"{name} context", context.reshape(-1, N * H), 2 * tolerance)

    given = case.in_places(found[f"{name}_dcontext"].reshape(-1, N, H))
    dp = mask * (given @ value.swapaxes(2, 3))
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    gradients = (0.375 * (ds @ key), ds.swapaxes(2, 3) @ query, (mask * p).swapaxes(2, 3) @ given)
    djoined = np.stack([case.in_rows(d, case.places) for d in gradients], axis=1)
    djoined = djoined.reshape(-1, 3 * N * H)
    assert_close(found, f"gradient of {name}_joined", djoined, 4 * tolerance)
    assert_close(found, f"gradient of {name}_joined_bias", djoined.sum(0), 4 * tolerance)


NOTHING_DROPPED = {
    "key": np.zeros([1], np.uint64),
    "counter": np.zeros([2], np.uint64),
    "threshold": 0,
}


@pytest.mark.parametrize(
    ("places", "row_of", "said"),
    [
        ([0, 3], [[0, 1]], r"place 3 of row 1 is outside \[0, 2\)"),
        ([0, 1], [[0, 2]], r"row 2 is not below 2"),
        ([0], [[0, 0]], r"2 rows have places \[1\]"),
        ([0, 1], [[0, 0]], r"row 0 is in place 1 and in 0"),
        ([0, 1], [[0, -1]], r"place 1 of row 1 has row -1"),
        ([0, 1], [[0, 1, -1]], r"score biases \[1,2\] for places \[1,3\]"),
    ],
)
def test_rows_out_of_their_places_are_refused(places, row_of, said):
    with tf.Graph().as_default(), tf.Session() as session:
        context = native_operations().bert_tf_attention(
            joined=tf.zeros([2, 6]),
            bias=tf.zeros([6]),
            score_bias=tf.zeros([1, 2]),
            places=tf.placeholder_with_default(places, [None]),
            row_of=tf.placeholder_with_default(row_of, [None, None]),
            read_places=[0, 1],
            read_row_of=[[0, 1]],
            heads=1,
            scale=1.0,
            **NOTHING_DROPPED,
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match=said):
            session.run(context)


def attended(joined, padding=()):
    """Context and gradient of one head of four positions, of rows [4, 3 * H]."""
    everywhere = list(range(4))
    case = Attended(1, 4, 1, joined.shape[1] // 3, list(padding), everywhere, everywhere)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(joined, tf.float32)
        context = attention(case, x, tf.zeros([joined.shape[1]]), **NOTHING_DROPPED)
        return session.run([context, tf.gradients(context, x)[0]])


def test_attention_to_what_is_not_finite():
    """What is not a number reaches exactly what depends on it; also from infinite scores."""
    joined = np.random.default_rng(0).standard_normal((4, 3, 20))
    joined[2, 0, 17] = np.nan
    context, gradient = attended(joined.reshape(4, 60))
    assert np.isnan(context).all(-1).tolist() == [False, False, True, False]
    assert np.isfinite(context[[0, 1, 3]]).all()
    assert np.isnan(gradient.reshape(4, 3, 20)[:, 2]).all()
    joined[2, 0, 17], joined[1, 2, 3] = 0.0, np.nan
    context, _ = attended(joined.reshape(4, 60))
    assert np.argwhere(np.isnan(context)).tolist() == [[q, 3] for q in range(4)]
    joined[1, 2, 3], joined[1, 1] = np.inf, 1.0
    context, _ = attended(joined.reshape(4, 60))
    assert np.argwhere(context == np.inf).tolist() == [[q, 3] for q in range(4)]
    joined[1, 2, 3], joined[0, 0, 0], joined[:, 1, 0] = 1.0, np.inf, 1.0
    context, _ = attended(joined.reshape(4, 60))
    assert np.isnan(context).all(-1).tolist() == [True, False, False, False]


def test_padding_gets_no_attention_unless_there_is_nothing_else():
    joined = np.random.default_rng(0).standard_normal((4, 3 * 20))
    every, _ = attended(joined)
    alone, _ = attended(joined, padding=range(4))
    np.testing.assert_array_equal(alone, every)
    joined[2:, 20:] = np.nan
    found, gradient = attended(joined, padding=(2, 3))
    assert np.isfinite(found).all()
    assert (gradient[2:, 20:] == 0).all()
    assert (gradient[:2, 20:] != 0).all()


def test_softmax_loss(found):
    logits = found["words"] + found["word_bias"]
    labels, rows = found["labels"].astype(int), np.arange(len(found["labels"]))
    totals = np.log(np.exp(logits).sum(-1))
    exact = TOLERANCE["float32"]
    assert_close(found, "losses", totals - logits[rows, labels], exact)
    assert (found["best"] == logits.argmax(-1)).all()
    d = np.exp(logits - totals[:, None])
    d[rows, labels] -= 1
    d *= found["dlosses"][:, None]
    assert_close(found, "gradient of words", d)
    assert_close(found, "gradient of word_bias", d.sum(0), exact)


def test_divergence(found):
    def distribution(name):
        scores = (found[name] + found[f"{name}_bias"]).astype(float) / TEMPERATURE
        return scores - np.log(np.exp(scores).sum(-1, keepdims=True))

    learnt, known = distribution("learnt"), distribution("known")
    divergences = (np.exp(known) * (known - learnt)).sum(-1)
    exact = TOLERANCE["float32"]
    assert_close(found, "divergences", divergences, exact)
    d = (np.exp(learnt) - np.exp(known)) * found["dlosses"][:, None] / TEMPERATURE
    assert_close(found, "gradient of learnt", d)
    assert_close(found, "gradient of learnt_bias", d.sum(0), exact)


def divergence_of(known, learnt, *, bias=(0.0, 0.0, 0.0), temperature=1.0):
    known, learnt = (tf.constant(scores, tf.float32) for scores in (known, learnt))
    found = native_operations().bert_tf_divergence(
        product=learnt,
        bias=tf.constant(bias),
        known_product=known,
        known_bias=tf.zeros([3]),
        temperature=temperature,
    )
    return found.losses, tf.gradients(found.losses, learnt)[0]


def test_equal_distributions_do_not_diverge():
    """Whatever the size of their scores, and although these differ by a constant."""
    scores = np.array([[1e4, 1e4 - 3, -1e4], [0.1, -0.2, 0.3]])
    with tf.Graph().as_default(), tf.Session() as session:
        losses, gradients = session.run(divergence_of(scores, scores + [[64.0], [0.0]]))
    assert losses.tolist() == [0, 0]
    np.testing.assert_allclose(gradients, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("known", "bias", "temperature", "said"),
    [
        ([[1.0, 2.0]], (0.0, 0.0, 0.0), 1.0, r"scores are \[1,3\] and \[1,2\]"),
        ([[1.0, 2.0, 3.0]], (0.0, 0.0), 1.0, r"the biases \[2\] and \[3\]"),
        ([[1.0, 2.0, 3.0]], (0.0, 0.0, 0.0), 0.0, "temperature must be positive, not 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(known, bias, temperature, said):
    with tf.Graph().as_default(), tf.Session() as session:
        losses, _ = divergence_of(known, np.ones([1, 3]), bias=bias, temperature=temperature)
        with pytest.raises(tf.errors.InvalidArgumentError, match=said):
            session.run(losses)


def test_the_first_of_equal_classes_is_best_and_a_label_must_be_one():
    with tf.Graph().as_default(), tf.Session() as session:
        labels = tf.placeholder(tf.int32, [2])
        loss = native_operations().bert_tf_softmax_loss(
            product=tf.constant([[1.0, 3.0, 3.0], [2.0, 1.0, 2.0]]),
            bias=tf.zeros([3]),
            labels=labels,
        )
        assert session.run(loss.best, {labels: [0, 2]}).tolist() == [1, 0]
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"label 3 is outside \[0, 3\)"):
            session.run(loss.losses, {labels: [0, 3]})


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_what_is_not_a_number_stays_so_whatever_its_bits(computed, instructions):
    """Also where it is rounded to bfloat16, whose bits would be those of infinity."""
    found = {n: a for n, a in computed[instructions].items() if n.startswith("not a number/")}
    assert len(found) == 20
    assert not_numbers().size > 3000
    assert np.isnan(not_numbers()).all()
    for name, array in found.items():
        assert np.isnan(array).all(), (name, np.argwhere(~np.isnan(array))[:5])


@pytest.mark.parametrize("name", ["extremes", "extremes of exact gelu"])
def test_gelu_of_extremes(found, name):
    largest, least, much, little, some, none, *tiny = found[name].ravel()
    assert largest == np.inf
    assert not np.isfinite(least)
    assert much == pytest.approx(3e38, rel=2.0**-8)
    assert abs(little) < 1
    assert (some, none) == (pytest.approx(88), pytest.approx(0, abs=1e-30))
    np.testing.assert_allclose(tiny, 0, atol=1e-38)


def test_what_is_not_a_number_stays_so():
    with tf.Graph().as_default(), tf.Session() as session:
        x = np.ones([2, 20], np.float32)
        x[1, 17] = np.nan
        native = native_operations()
        rows, zeros = tf.constant(x), tf.zeros([20])
        gelu = native.bert_tf_bias_gelu(product=tf.cast(rows, tf.bfloat16), bias=zeros)
        norm = native.bert_tf_residual_norm(
            product=rows,
            bias=zeros,
            residual=tf.zeros([2, 20]),
            gamma=zeros + 1.0,
            beta=zeros,
            places=[0, 1],
            row_of=[[0, 1]],
            **NOTHING_DROPPED,
        )
        gelu, norm = session.run([tf.cast(gelu, tf.float32), norm.y])
    assert np.argwhere(np.isnan(gelu)).tolist() == [[1, 17]]
    assert np.isnan(norm).all(-1).tolist() == [False, True]
    assert not np.isnan(norm[0]).any()
