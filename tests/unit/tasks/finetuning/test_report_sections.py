"""Sections of reports that fine-tuning tasks share."""

import re

import numpy as np

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.tasks.finetuning.report_sections import results_section
from bert_tf.train.run_log import RunLog


def test_charts_end_with_the_evaluation_that_is_reported(tmp_path):
    RunLog(tmp_path).evaluation(10, {"eval_accuracy": 0.25, "eval_loss": 0.75})
    write_checkpoint(str(tmp_path / "model.ckpt-20"), {"global_step": np.int64(20)})
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')
    results = {"eval_accuracy": 0.5, "eval_loss": 0.625}
    section = results_section(tmp_path, {}, results, charted=["eval_accuracy"])
    found = [re.findall(r"<title>.* at (\d+): ([\d.]+)</title>", each) for each in section.charts]
    assert found == [[("10", "0.75"), ("20", "0.625")], [("10", "0.25"), ("20", "0.5")]]
