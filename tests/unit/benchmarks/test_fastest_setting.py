"""The settings beside auto, and how near auto comes to the best of them."""

from benchmarks.fastest_setting import nearness
from benchmarks.speed.ours import Settings
from benchmarks.speed.subjects import AUTO, every_setting


def turn(seconds):
    return {"seconds": seconds, "precision": "fp32", "operations": "native"}


def test_auto_is_compared_with_the_best_setting_by_medians():
    found = {
        AUTO: [turn(1.0), turn(1.25), turn(9.0)],
        "ours-fp32-native-2": [turn(1.2), turn(0.1), turn(1.2)],
        "ours-bf16-native-2": [turn(2.0), turn(2.0), turn(0.2)],
    }
    assert nearness(found) == (
        "auto took fp32 with native operations and makes 96.0% of the rate of the best setting, "
        "ours-fp32-native-2"
    )


def test_every_setting_is_one_that_a_user_can_give():
    subjects = every_setting(8)
    assert [subject.name for subject in subjects[:3]] == [
        AUTO,
        "ours-fp32-native-8",
        "ours-fp32-tensorflow-8",
    ]
    settings = [Settings(**subject.settings) for subject in subjects[1:]]
    assert len(set(settings)) == len(settings) == 2 * 2 * 2
    assert {s.threads for s in settings} == {8, 4}
    assert len(every_setting(1)) == 1 + 2 * 2
