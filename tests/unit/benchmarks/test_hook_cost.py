"""The cost of hooks, on a network that takes a moment."""

import json

from tests.helpers.programs import run
from tests.helpers.tiny_pretraining import CONFIG


def test_all_variants_are_timed(tmp_path):
    network = tmp_path / "bert_config.json"
    network.write_text(json.dumps(CONFIG.to_dict()))
    run(
        "-m", "benchmarks.studies.hook_cost", f"--bert_config_file={network}", "--batch_size=2",
        "--seq_length=12", "--predictions=2", "--turns=2", "--threads=1", "--optimizer_type=lamb",
        f"--json={tmp_path}/results.json",
    )  # fmt: skip
    results = {r["name"]: r for r in json.loads((tmp_path / "results.json").read_text())}
    for name in ("plain", "with_batch", "with_summary"):
        assert len(results[name]["config"]["turns"]) == 2
        assert min(results[name]["config"]["turns"]) > 0
    assert {"with_batch_to_plain", "with_summary_to_plain"} <= results.keys()
