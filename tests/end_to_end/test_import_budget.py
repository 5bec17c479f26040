"""How much of the code a default run loads: a figure that may only fall.

    python -m pytest tests/end_to_end/test_import_budget.py -s

shows it by package.
"""

import json
from collections import Counter

import pytest

from tests.helpers import squad_files
from tests.helpers.programs import run
from tests.helpers.tiny_pretraining import CONFIG, P, S, write_records

REPORT = """
import json, runpy, sys
out, script, *flags = sys.argv[1:]
sys.argv = [script, *flags]
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
files = {name: module.__file__ for name, module in sys.modules.items()
         if name.partition(".")[0] in ("bert_tf", "data_prep") and module.__file__
         and not name.startswith("bert_tf.commands.")}
lines = {name: len(open(path, encoding="utf-8").readlines()) for name, path in files.items()
         if path.endswith(".py") and not path.endswith("__init__.py")}
open(out, "w").write(json.dumps(lines))
"""


def pretraining(directory):
    (directory / "bert_config.json").write_text(json.dumps(CONFIG.to_dict()))
    records = write_records(directory / "records")
    return [
        f"--input_file={records.parent}",
        f"--bert_config_file={directory}/bert_config.json",
        f"--max_seq_length={S}",
        f"--max_predictions_per_seq={P}",
        "--num_train_steps=1",
        "--num_warmup_steps=0",
    ]


def squad(directory):
    model = squad_files.write_model(directory / "start")
    train = squad_files.write_squad(directory / "train.json", 4, seed=1)
    dev = squad_files.write_squad(directory / "dev.json", 2, seed=2)
    return [
        f"--bert_config_file={model}/bert_config.json",
        f"--vocab_file={model}/vocab.txt",
        f"--train_file={train}",
        f"--predict_file={dev}",
        "--num_train_steps=1",
        "--num_warmup_steps=0",
    ]


@pytest.mark.parametrize(
    ("script", "flags_of", "more", "most_files", "most_lines"),
    [
        ("run_pretraining.py", pretraining, [], 96, 20_140),
        pytest.param("run_squad.py", squad, [], 109, 22_600, marks=pytest.mark.slow),
        pytest.param(
            "run_squad.py", squad, ["--do_predict"], 119, 24_100, marks=pytest.mark.exhaustive
        ),
    ],
)
def test_a_default_run_loads_no_more_than_it_did(
    tmp_path, script, flags_of, more, most_files, most_lines
):
    """Files are counted without __init__ and without the command's own.

    Lower a number when the code gets below it. Lines rose a little once, when small modules that
    were loaded only where needed became parts of others: fewer files, more lines.
    """
    out, program = tmp_path / "lines.json", tmp_path / "report.py"
    program.write_text(REPORT)
    usual = ["--do_train", "--train_batch_size=2", f"--output_dir={tmp_path}/model"]
    run(program, out, script, *flags_of(tmp_path), *usual, *more, fresh=True)
    lines = json.loads(out.read_text())
    packages = Counter()
    for name, count in lines.items():
        packages[".".join(name.split(".")[:2])] += count
    print(script, *more, len(lines), "files", sum(lines.values()), "lines", packages.most_common())
    assert len(lines) <= most_files
    assert sum(lines.values()) <= most_lines
