"""From a Wikipedia on a server to a trained model, with fragments of a real dump."""

import json
import math

import pytest

from bert_tf.durable.manifest import read_manifest
from tests.helpers.mediawiki import publish
from tests.helpers.programs import ROOT, run
from tests.helpers.web_server import web_server

FRAGMENTS = ROOT.parent / "shared" / "data" / "wikipedia"

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not FRAGMENTS.is_dir(), reason="needs ../shared/data/wikipedia"),
]


def test_a_dump_becomes_a_model(tmp_path):
    fragments = sorted(FRAGMENTS.glob("*.xml.bz2"))
    assert len(fragments) == 2
    with web_server() as web:
        files = {f"enwiki-{file.name}": file.read_bytes() for file in fragments}
        publish(web, "20240601", files, wiki="enwiki")
        data = tmp_path / "data"
        prepare = ["-m", "data_prep.pipeline", "--source=wikipedia", f"--mirror={web.address}"]
        done = run(*prepare, f"--output_dir={data}", "--vocab_size=3000", "--dupe_factor=1")
    assert done.returncode == 0, done.stderr
    counts = {stage: read_manifest(data / stage).counts for stage in ("text", "clean", "sentences")}
    assert counts["text"]["articles"] > 100
    assert counts["clean"]["documents"] > 90
    train, heldout = (
        read_manifest(data / "records" / name).counts for name in ("train", "heldout")
    )
    assert train["records"] > 3000 > heldout["records"] > 0
    # No markup is left. [UNK] would be a sign that characters were damaged.
    sentences = "".join(p.read_text() for p in (data / "sentences").glob("*.txt"))
    for mark in ("[[", "]]", "{{", "}}", "<ref", "&nbsp;", "{|", "'''"):
        assert sentences.count(mark) <= 2, mark
    config = json.loads((ROOT / "recipes" / "bert_tiny.json").read_text())
    (tmp_path / "network.json").write_text(json.dumps({**config, "vocab_size": 3000}))
    done = run(
        "run_pretraining.py",
        f"--bert_config_file={tmp_path}/network.json",
        f"--input_file={data}/records/train",
        f"--eval_file={data}/records/heldout",
        f"--output_dir={tmp_path}/model",
        *("--do_train", "--do_eval", "--train_batch_size=32", "--num_train_steps=60"),
        *("--num_warmup_steps=10", "--learning_rate=2e-3", "--max_eval_steps=10"),
    )
    assert done.returncode == 0, done.stderr
    results = (tmp_path / "model" / "eval_results.txt").read_text()
    values = dict(line.split(" = ") for line in results.splitlines())
    assert float(values["masked_lm_loss"]) < math.log(3000) - 0.5
