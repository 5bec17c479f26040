"""The program of docs/howto/your_own_task.md, as a reader would copy it."""

import re

import pytest

from tests.helpers.programs import ROOT, mpirun, requires_horovod, run
from tests.helpers.tensors import variables_of

PAGE = ROOT / "docs/howto/your_own_task.md"


def program(path, *changes):
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for before, after in changes:
        assert before in code
        code = code.replace(before, after)
    path.write_text(code, encoding="utf-8")
    return path


@pytest.mark.slow
def test_it_learns_predicts_and_resumes(tmp_path):
    first = run(program(tmp_path / "rate.py"), tmp_path / "model").stdout
    [error] = re.findall(r"root of the mean squared error: (\S+)", first)
    assert float(error) < 0.06, "half of what the mean rating of all sequences gives"
    rated = re.findall(r"rated (\S+), predicted (\S+)", first)
    assert len(rated) == 4
    for rating, predicted in rated:
        assert float(predicted) == pytest.approx(float(rating), abs=0.2)
    more = program(tmp_path / "more.py", ("num_train_steps=400", "num_train_steps=410"))
    second = run(more, tmp_path / "model").stdout
    assert f"resuming from {tmp_path / 'model' / 'model.ckpt-400'} (step 400)" in second
    assert "evaluation at step 410" in second


@pytest.mark.exhaustive
@requires_horovod
def test_two_ranks_train_what_one_process_trains(tmp_path):
    short = ("num_train_steps=400", "num_train_steps=3")
    alone = program(tmp_path / "alone.py", short)
    run(alone, tmp_path / "of_one")
    alike = 'NumericsSettings(precision="fp32")'
    half = ("micro_batch_size=32", "micro_batch_size=16")
    as_alone = ("num_train_steps=3", "num_train_steps=3, scale_steps_by_ranks=False")
    both = program(
        tmp_path / "both.py", short, as_alone, half, (alike, f'{alike}, library="horovod"')
    )
    mpirun(2, both, tmp_path / "of_two")
    weights, expected = (
        variables_of(tmp_path / name / "model.ckpt-3") for name in ("of_two", "of_one")
    )
    for name, value in expected.items():
        assert weights[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
