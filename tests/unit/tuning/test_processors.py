"""The kind of processor that /proc/cpuinfo and the limits on oneDNN describe."""

import subprocess
import sys

import pytest

from bert_tf.tuning.hardware import (
    AMD_BF16,
    AMX,
    KINDS,
    LIMITED,
    OTHER_BF16,
    PLAIN,
    this_processor,
)
from tests.helpers.programs import ROOT, environment

AVX512 = "avx2 avx512f avx512dq avx512bw avx512vl"
BF16 = f"{AVX512} avx512_bf16"
TILES = f"{BF16} amx_bf16 amx_tile"


@pytest.fixture
def kind(tmp_path):
    """The kind of a processor with a vendor, features and environment variables."""

    def found(vendor, flags, **variables):
        path = tmp_path / "cpuinfo"
        path.write_text(
            f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\nflags\t: other\n"
        )
        return this_processor(str(path), variables)

    return found


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("GenuineIntel", TILES, AMX),
        ("AuthenticAMD", TILES, AMX),
        ("AuthenticAMD", BF16, AMD_BF16),
        ("GenuineIntel", BF16, OTHER_BF16),
        ("GenuineIntel", AVX512, PLAIN),
        ("AuthenticAMD", "avx2", PLAIN),
        ("GenuineIntel", "avx2 avx512f", LIMITED),  # as a virtual machine may show it
        ("", "", PLAIN),
    ],
)
def test_the_kind_follows_from_vendor_and_features(kind, vendor, flags, expected):
    assert kind(vendor, flags) == expected


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        (TILES, "ALL", AMX),
        (TILES, "AVX512_CORE_AMX", AMX),
        (TILES, "AVX512_CORE_BF16", OTHER_BF16),
        (TILES, "AVX512_CORE_FP16", OTHER_BF16),
        (TILES, "AVX512_CORE", PLAIN),
        (TILES, "AVX2", LIMITED),
        (AVX512, "avx2_vnni", LIMITED),
        (AVX512, "AVX512_CORE", PLAIN),
        ("avx2", "SSE41", PLAIN),
        (TILES, "unknown", AMX),  # oneDNN ignores it, too
    ],
)
@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_what_onednn_may_not_use_does_not_count(kind, name, flags, limit, expected):
    assert kind("GenuineIntel", flags, **{name: limit}) == expected


@pytest.mark.parametrize("value", ["0", "false", "False"])
def test_without_onednn_bfloat16_is_emulated(kind, value):
    assert kind("GenuineIntel", TILES, TF_ENABLE_ONEDNN_OPTS=value) == PLAIN
    assert kind("GenuineIntel", TILES, TF_ENABLE_ONEDNN_OPTS="1") == AMX


def test_a_system_without_the_file_is_plain(tmp_path):
    assert this_processor(str(tmp_path / "none"), {}) == PLAIN


def test_the_row_of_this_processor_is_found():
    assert this_processor() in KINDS


PRODUCT = """
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
with tf.Session() as session:
    x = tf.get_variable("x", [64, 128], tf.bfloat16, tf.ones_initializer())
    session.run(tf.global_variables_initializer())
    session.run(tf.matmul(x, x, transpose_b=True))
"""


@pytest.mark.each_tensorflow
@pytest.mark.parametrize("limit", ["AVX512_CORE", "AVX2"])
def test_tensorflow_crashes_where_the_table_says_so(limit):
    limits = {"ONEDNN_MAX_CPU_ISA": limit}
    found = subprocess.run(
        [sys.executable, "-c", PRODUCT],
        cwd=ROOT,
        env={**environment(), **limits},
        capture_output=True,
        check=False,
    )
    computes = this_processor(variables=limits).computes_bfloat16
    assert (found.returncode == 0) == computes, found.stderr.decode()[-500:]
