"""The ledger of every recipe, through its flags, against what its source publishes."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from bert_tf.diagnose.memory import estimate_memory
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.question_answering.settings import define_squad_flags, squad_settings
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.schedules import polynomial
from tests.helpers import jobs
from tests.helpers.jobs import begun, job_of, resolve_on
from tests.helpers.programs import ROOT
from tests.helpers.settings import with_values

RECIPES = ROOT / "recipes"
PRETRAINING = sorted(
    path.name for kind in ("bert", "fast") for path in RECIPES.glob(f"{kind}_*.flags")
)

# Devlin et al. 2019, appendix A.2.
PAPER_UPDATES, PAPER_WARMUP, PAPER_RATE = 1_000_000, 10_000, 1e-4
# DeepSpeed's tutorial of April 2020 (docs/_tutorials/bert-pretraining.md, commit 5fb22a055).
DEEPSPEED_SEQUENCES = {128: 402_679_081, 512: 34_464_170}
DEEPSPEED_UPDATES = {128: 24_430, 512: 2_089}
# Questions of SQuAD 1.1's training file.
SQUAD_QUESTIONS = 87_599


class Ranks(SingleProcess):
    """So many ranks, none of which has been started."""

    def __init__(self, world_size):
        super().__init__(num_threads=1)
        self.world_size = world_size


@dataclasses.dataclass(frozen=True)
class Published:
    """What a source states of a phase.

    Attributes:
      length: tokens of a sequence.
      batch: its factors: ranks, sequences of a micro batch, accumulation steps.
      updates, warmup: updates of all ranks, and those of the warm-up.
      rate: the peak.
      sequences: of all updates, as a number of its own.
      others: other numbers of ranks -> accumulation steps, for the same updates.
    """

    length: int
    batch: tuple[int, int, int]
    updates: int
    warmup: int
    rate: float
    sequences: int
    others: dict[int, int] = dataclasses.field(default_factory=dict)


PUBLISHED = {
    # README of google-research/bert: 90,000 updates at 128, then 10,000 at 512.
    "bert_base_phase1.flags": Published(
        128, (8, 32, 1), 90_000, 10_000, 1e-4, 23_040_000, {1: 8, 2: 4}
    ),
    "bert_base_phase2.flags": Published(
        512, (8, 8, 4), 10_000, 1_000, 1e-4, 2_560_000, {1: 32, 32: 1}
    ),
    "bert_base_paper_phase1.flags": Published(
        128, (8, 32, 1), 900_000, 10_000, 1e-4, 230_400_000, {1: 8}
    ),
    "bert_base_paper_phase2.flags": Published(
        512, (8, 8, 4), 100_000, 0, 1e-4 * 100_000 / 990_000, 25_600_000, {1: 32}
    ),
    "bert_base_one_gpu_phase1.flags": Published(128, (1, 32, 8), 90_000, 10_000, 1e-4, 23_040_000),
    "bert_base_one_gpu_phase2.flags": Published(512, (1, 4, 64), 10_000, 1_000, 1e-4, 2_560_000),
    "bert_base_eight_gpus_phase1.flags": Published(
        128, (8, 32, 4), 22_500, 2_500, 1e-4 * 4**0.5, 23_040_000
    ),
    "bert_base_eight_gpus_phase2.flags": Published(
        512, (8, 4, 32), 2_500, 250, 1e-4 * 4**0.5, 2_560_000
    ),
    # run_pretraining.py of aliyun/alibabacloud-aiacc-demo: 100,000 and 10,000 updates, by ranks.
    "bert_base_perseus.flags": Published(
        512, (8, 32, 1), 100_000 // 8, 10_000 // 8, 5e-5, 3_200_000
    ),
    # The article "BERT Meets GPUs", and the README of March 2019 of NVIDIA/DeepLearningExamples.
    "bert_large_adam.flags": Published(
        512, (64, 4, 1), 1_000_000, 10_000, 1e-4, 256_000_000, {8: 8, 16: 4}
    ),
    # scripts/run_pretraining_lamb_phase{1,2}.sh of NVIDIA/DeepLearningExamples: rates of one GPU.
    "bert_large_lamb_phase1.flags": Published(
        128, (8, 64, 128), 7_038, 2_000, 8 * 7.5e-4, 461_242_368, {1: 1024, 16: 64, 32: 32}
    ),
    "bert_large_lamb_phase2.flags": Published(
        512, (8, 8, 512), 1_564, 200, 8 * 5e-4, 51_249_152, {1: 4096, 16: 256}
    ),
    "bert_large_deepspeed_phase1.flags": Published(
        128, (16, 64, 16), 24_430, 3_740, 4e-3, 400_261_120, {64: 4, 256: 1}
    ),
    "bert_large_deepspeed_phase2.flags": Published(
        512, (16, 8, 128), 2_089, 187, 1e-3, 34_226_176, {64: 32, 256: 8}
    ),
    "bert_mini_one_cpu.flags": Published(128, (1, 64, 1), 40_000, 4_000, 5e-4, 2_560_000),
    "fast_tiny_one_cpu.flags": Published(64, (1, 32, 1), 2_400, 240, 4e-3, 76_800),
}


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """The settings of a recipe with --horovod, as the training script makes them."""
    monkeypatch.chdir(ROOT)
    data = tmp_path / "part-00000.tfrecord"
    data.write_bytes(b"data")

    def parsed(name, *more):
        values = flags.FlagValues()
        given = [f"--flagfile=recipes/{name}", f"--output_dir={tmp_path}", "--horovod", *more]
        if name in PRETRAINING:
            define_pretraining_flags(values)
            values(["program", *given, f"--input_file={data}", f"--eval_file={data}"])
            return pretraining_settings(values)
        define_squad_flags(values)
        values(["program", *given, f"--train_file={data}", f"--predict_file={data}"])
        return squad_settings(values)

    return parsed


def settled(optimization):
    """As a new run with --horovod does (``plan.resolve``)."""
    if optimization.steps.scale_steps_by_ranks is None:
        return with_values(optimization, scale_steps_by_ranks=True)
    return optimization


def ledger_of(optimization, world_size, *, records=0):
    return jobs.ledger_of(settled(optimization), ranks=Ranks(world_size), records=records)


def test_every_recipe_is_compared_with_what_is_published():
    assert sorted(PUBLISHED) == PRETRAINING


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_ledger_is_the_published_one(name, parsed):
    published = PUBLISHED[name]
    ranks, micro, accumulation = published.batch
    settings = parsed(name)
    ledger = ledger_of(settings.optimization, ranks, records=published.sequences // 4)
    assert settings.data.max_seq_length == published.length
    assert (
        settings.data.masks.max_predictions_per_seq == {64: 20, 128: 20, 512: 80}[published.length]
    )
    batch = ledger["batch"]
    assert (batch["micro_batch"], batch["accumulation_steps"]) == (micro, accumulation)
    assert batch["global_batch"] == ranks * micro * accumulation
    assert ledger["steps"]["train_steps"] == published.updates
    assert ledger["steps"]["warmup_steps"] == published.warmup
    assert ledger["learning_rate"]["peak"] == pytest.approx(published.rate, rel=1e-6)
    assert ledger["consumption"]["sequences"] == published.sequences
    assert ledger["consumption"]["epochs"] == 4


@pytest.mark.parametrize("name", [name for name in PUBLISHED if PUBLISHED[name].others])
def test_other_numbers_of_ranks_have_the_same_updates(name, parsed):
    published = PUBLISHED[name]
    for ranks, accumulation in published.others.items():
        ledger = ledger_of(parsed(name).optimization, ranks)
        assert ledger["batch"]["accumulation_steps"] == accumulation
        assert ledger["steps"]["train_steps"] == published.updates
        assert ledger["consumption"]["sequences"] == published.sequences


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_network(name, parsed):
    settings = parsed(name)
    if name == "bert_mini_one_cpu.flags":
        # BERT-Mini of google-research/bert's README: L=4, H=256.
        assert settings.network == {
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 256 // 64,
            "intermediate_size": 4 * 256,
        }
    elif name == "fast_tiny_one_cpu.flags":
        # BERT-Tiny there: L=2, H=128.
        assert (
            settings.network.items()
            >= {
                "hidden_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 128 // 64,
                "intermediate_size": 4 * 128,
                "max_position_embeddings": PUBLISHED[name].length,
            }.items()
        )
    else:
        config = "_".join(name.split("_")[:2])
        assert settings.bert_config_file.samefile(RECIPES / f"{config}.json")


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        (name, "lamb" if "lamb" in name or "deepspeed" in name else "adam")
        for name in PUBLISHED
        if not name.startswith("fast")
    ],
)
def test_the_optimizer(name, optimizer, parsed):
    found = parsed(name).optimization
    assert (found.optimizer, found.weight_decay, found.clip_norm) == (optimizer, 0.01, 1.0)
    if "lamb" in name:
        schedule = found.schedule
        assert (schedule.name, schedule.options["decay_power"]) == ("polynomial", 0.5)


def test_what_makes_the_fast_recipe_fast(parsed):
    """30 % of 64 tokens fit into its predictions, and no more."""
    settings = parsed("fast_tiny_one_cpu.flags")
    assert (settings.next_sentence, settings.optimization.optimizer) == (False, "muon")
    assert settings.network["hidden_dropout_prob"] == 0
    assert settings.network["attention_probs_dropout_prob"] == 0
    most = settings.data.masks.masked_lm_prob * settings.data.max_seq_length
    assert most <= settings.data.masks.max_predictions_per_seq < most + 1


def test_the_table_in_the_documentation():
    """Each recipe is in it, with the batch, updates and sequences of its ledger."""
    text = (ROOT / "docs/reference/recipes.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    listed = {}
    for names, _, batches, updates, sequences, *_ in rows:
        first, *second = [name.strip(" `") for name in names.split(",")]
        for phase, name in enumerate([first, *(first[: -len(s)] + s for s in second)]):
            listed[f"{name}.flags"] = (phase, batches, updates, sequences)
    assert listed.keys() == {*PUBLISHED, "squad_large.flags", "distilbert.flags"}
    for name, published in PUBLISHED.items():
        phase, batches, updates, sequences = listed[name]
        factors = published.batch[: 2 if published.batch[2] == 1 else 3]
        assert " × ".join(map(str, factors)) in batches
        assert f"{math.prod(factors):,}" in batches
        assert f"{published.updates:,}" in updates.split("+")[phase]
        assert f"{published.sequences:,}" in sequences.split("+")[phase]


def test_sums_of_the_publications():
    """What the sources say themselves of how their numbers belong together."""
    # NVIDIA: 65,536 and 32,768; 9 of 10 parts of 7,820 steps, and the rest with half the batch.
    assert 8 * 64 * 128 == 65_536
    assert 8 * 8 * 512 == 32_768
    assert (7_820 * 9 // 10, 7_820 // 10 * 65_536 // 32_768) == (7_038, 1_564)
    # NVIDIA, March 2019: 224 sequences on a DGX-2 against 112 on a DGX-1, in half as many steps.
    assert 16 * 14 == 224 == 2 * 8 * 14
    assert 1_144_000 * 224 == 2_288_000 * 112 == pytest.approx(PAPER_UPDATES * 256, rel=0.0011)
    assert 64 * 4 == 256
    # DeepSpeed: warmup_proportion x total_training_steps.
    assert round(0.02 * 187_000) == 3_740
    assert round(0.01 * 18_700) == 187
    assert 16 * 64 * 16 == 64 * 64 * 4 == 16_384 == 16 * 8 * 128


@pytest.mark.parametrize(("phase", "excess"), [(1, 0.0060), (2, 0.0070)])
def test_deepspeeds_count_of_sequences_is_larger_than_its_updates_hold(phase, excess, parsed):
    name = f"bert_large_deepspeed_phase{phase}.flags"
    length = PUBLISHED[name].length
    found = ledger_of(parsed(name).optimization, 16)
    assert found["steps"]["train_steps"] == DEEPSPEED_UPDATES[length]
    counted = DEEPSPEED_SEQUENCES[length]
    assert counted / found["consumption"]["sequences"] - 1 == pytest.approx(excess, abs=5e-5)
    text = (RECIPES / name).read_text(encoding="utf-8").replace("\n# ", " ")
    assert f"{counted:,} sequences in {DEEPSPEED_UPDATES[length]:,} updates" in text
    assert f"{round(counted / DEEPSPEED_UPDATES[length]):,} in each: {excess:.2%} more" in text


@pytest.mark.parametrize(
    ("name", "decay_rate"),
    [("bert_large_deepspeed_phase1.flags", 0.9), ("bert_large_deepspeed_phase2.flags", 0.7)],
)
def test_deepspeeds_schedule_and_coefficients(name, decay_rate, parsed):
    optimization = parsed(name).optimization
    published = PUBLISHED[name]
    assert optimization.optimizer_options["min_trust_ratio"] == 0.08
    assert optimization.optimizer_options["max_trust_ratio"] == 0.5
    schedule = resolve_on(optimization, 16).schedule
    # warmup_linear_decay_exp of bing_bert's optimization.py; its first update has rate 0.
    for step in (0, 100, published.warmup - 1, published.warmup, published.updates - 1):
        theirs = (step + 1) / published.warmup
        if step >= published.warmup:
            theirs = decay_rate ** ((step - published.warmup) / 1000)
        assert schedule.rate(step) == pytest.approx(published.rate * theirs, rel=1e-9)


def test_the_papers_phases_are_one_line():
    """The decay of both phases is that of a single run of 1,000,000 updates."""
    rates = []
    for phase in (1, 2):
        values = flags.FlagValues()
        define_pretraining_flags(values)
        values(["program", f"--flagfile={RECIPES}/bert_base_paper_phase{phase}.flags"])
        peak, end = values.learning_rate, values.end_learning_rate
        steps, warmup = values.num_train_steps, values.num_warmup_steps
        rates.append(
            polynomial(
                np.arange(steps),
                peak_rate=peak,
                end_rate=end,
                total_steps=steps,
                warmup_steps=warmup,
            )
        )
    whole = polynomial(
        np.arange(PAPER_UPDATES),
        peak_rate=PAPER_RATE,
        total_steps=PAPER_UPDATES,
        warmup_steps=PAPER_WARMUP,
    )
    np.testing.assert_allclose(np.concatenate(rates), whole, rtol=2e-7, atol=0)


@pytest.mark.parametrize("ranks", [1, 8, 16])
def test_perseus_has_the_same_sequences_on_any_number_of_gpus(ranks, parsed):
    found = ledger_of(parsed("bert_base_perseus.flags").optimization, ranks)
    assert found["steps"]["train_steps"] == 100_000 / ranks
    assert found["consumption"]["sequences"] == 3_200_000
    assert found["learning_rate"]["peak"] == 5e-5


@pytest.mark.parametrize(
    ("more", "batch"),
    [
        ((), (8, 8)),  # scripts/run_squad.sh
        (("--global_batch_size=80", "--train_batch_size=10"), (8, 10)),  # README of March 2019
        (("--global_batch_size=32", "--train_batch_size=4"), (8, 4)),  # its table of five seeds
        (("--global_batch_size=24", "--train_batch_size=3"), (8, 3)),  # its log
    ],
)
def test_squad_as_published(more, batch, parsed):
    settings = parsed("squad_large.flags", *more)
    ranks, micro = batch
    ledger = ledger_of(settings.optimization, ranks, records=SQUAD_QUESTIONS)
    assert ledger["batch"]["arithmetic"] == (
        f"{micro} (micro batch) x 1 (accumulation steps) x {ranks} (ranks) = {ranks * micro}"
    )
    # int(questions / batch * epochs) there; here the last, incomplete batch counts too.
    theirs = int(SQUAD_QUESTIONS / (ranks * micro) * 2)
    assert ledger["steps"]["train_steps"] == theirs + 1
    if micro == 3:
        assert theirs * 24 == 175_176, "the sequences in the README's log"
    assert ledger["steps"]["warmup_steps"] == pytest.approx(theirs / 10, abs=1)
    assert ledger["learning_rate"]["peak"] == pytest.approx(8 * 5e-6)
    assert ledger["consumption"]["epochs"] == pytest.approx(2, abs=0.001)
    assert (settings.max_seq_length, settings.doc_stride) == (384, 128)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_squad_on_fewer_ranks(ranks, parsed):
    settings = parsed("squad_large.flags")
    ledger = ledger_of(settings.optimization, ranks, records=SQUAD_QUESTIONS)
    assert ledger["batch"]["global_batch"] == 64
    assert ledger["steps"]["train_steps"] == 2_738


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "micro", "ranks", "precision", "gib"),
    [
        ("bert_base_one_gpu_phase1.flags", 32, 1, "fp16", 11.8),
        ("bert_base_one_gpu_phase1.flags", 32, 1, "fp32", 12.5),
        ("bert_base_one_gpu_phase2.flags", 4, 1, "fp16", 9.4),
        ("bert_base_one_gpu_phase2.flags", 4, 1, "fp32", 9.9),
        ("bert_base_one_gpu_phase2.flags", 8, 1, "fp16", 13.9),
        ("bert_base_eight_gpus_phase1.flags", 32, 8, "fp16", 12.3),
        ("bert_base_eight_gpus_phase2.flags", 4, 8, "fp16", 9.9),
    ],
)
def test_base_fits_a_gpu_of_16_gb(name, micro, ranks, precision, gib):
    published = PUBLISHED[name]
    accumulation = published.batch[1] * published.batch[2] // micro
    predictions = {128: 20, 512: 80}[published.length]
    shapes = dict.fromkeys(INPUTS, (published.length, tf.int32))
    shapes["masked_lm_positions"] = shapes["masked_lm_ids"] = (predictions, tf.int32)
    shapes["masked_lm_weights"] = (predictions, tf.float32)
    shapes["next_sentence_labels"] = (1, tf.int32)
    job = job_of(
        PretrainingTask(BertConfig.from_json_file(RECIPES / "bert_base.json")),
        run=begun(ranks=Ranks(ranks)),
        options=ForwardOptions(policy=policy_for(precision)),
        batches=lambda: tf.data.Dataset.from_tensors(
            {key: tf.zeros([micro, size], kind) for key, (size, kind) in shapes.items()}
        ),
        batch=BatchPlan(micro, accumulation, world_size=ranks),
        max_seq_length=published.length,
    )
    found = estimate_memory(job).total / 2**30
    assert found == pytest.approx(gib, abs=0.06)
    # nvidia-smi's 16,160 MiB of a V100 of 16 GB.
    assert found < 16_160 / 1024
    text = (RECIPES / name).read_text(encoding="utf-8")
    assert f"{gib} GiB" in text
