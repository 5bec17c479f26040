"""What the start of a run removes of killed ones. Its other duties are tested with the runs."""

import dataclasses
import tempfile

from bert_tf.train.run import begin
from bert_tf.util.temporary import TemporaryDirectory
from tests.helpers.settings import runtime_settings
from tests.helpers.tiny_pretraining import pretraining_settings

LEFTOVER, MINE = ".perplexity.json.4194305.tmp", ".notes.tmp"


def test_a_run_removes_what_killed_ones_left(tmp_path, monkeypatch):
    shared, plan = tmp_path / "shared", tmp_path / "plan"
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    settings = pretraining_settings(tmp_path).run
    for directory in (shared, plan, settings.output_dir):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MINE).touch()
        (directory / LEFTOVER).touch()
    abandoned = TemporaryDirectory("weights")
    abandoned._lock.close()  # as the system does for a process that was killed
    dry = dataclasses.replace(settings, dry_run=True)
    with begin(dry, runtime_settings(), plan_dir=plan):
        assert len(list(shared.iterdir())) == 3
        assert (settings.output_dir / LEFTOVER).exists()
    with begin(settings, runtime_settings(), plan_dir=plan):
        assert {path.name for path in shared.iterdir()} == {MINE, LEFTOVER}
        for directory in (plan, settings.output_dir):
            assert (directory / MINE).exists()
            assert not (directory / LEFTOVER).exists()
