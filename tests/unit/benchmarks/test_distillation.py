"""The benchmarks of distillation: the peer's step, and the published study."""

import dataclasses

import numpy as np
import pytest
from absl import flags

from benchmarks.communication.rank_jobs import Measured
from benchmarks.script import define_flags
from benchmarks.speed import cached_teacher
from benchmarks.speed.ours import task_of
from benchmarks.speed.process import run_in_process
from benchmarks.speed.steps import DISTILLATION, StepJob
from benchmarks.speed.subjects import DISTILLING
from benchmarks.studies import distillation_study
from benchmarks.studies.distillation_study import STUDY, measure, predicted_minutes
from bert_tf.model.config import BertConfig

NETWORK = BertConfig(
    vocab_size=50,
    hidden_size=8,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    type_vocab_size=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
JOB = StepJob(NETWORK, DISTILLATION, batch_size=3, seq_length=8, predictions=2)


def test_the_study_is_computation_and_allreduces():
    """Minutes of 8 GPUs = a + b x allreduces a sequence; the second and third row give a and b."""
    allreduces = np.array([1 / 9, 1 / 16, 1 / (16 * 50)])
    system = np.stack([np.ones(2), allreduces[1:]], axis=1)
    computation, communication = np.linalg.solve(system, [402.0, 204.0])
    ring = {gpus: (gpus - 1) / gpus for gpus in (8, 32, 64)}
    for row, minutes in zip(STUDY, (computation + communication / 9, 402.0, 204.0)):
        assert predicted_minutes(row) == pytest.approx(minutes)
    for row in STUDY[3:]:
        slower = communication * allreduces[2] * ring[row.gpus] / ring[8]
        assert predicted_minutes(row) == pytest.approx(8 / row.gpus * (computation + slower))


def test_minutes_follow_from_the_time_of_an_update(monkeypatch):
    """Ranks that take 2 ms for a sequence and 30 ms for an allreduce, in 60,000 sequences."""
    jobs = []

    def run_on_link(job, cases, link):
        jobs.append((job.flags["micro_batch_size"], [str(case) for case in cases], link))
        computation = 50 * job.flags["micro_batch_size"] * 0.002
        allreduces = {"every_micro_batch": 50, "delayed": 1}
        seconds = {c: [computation + 0.03 * allreduces[c.kind]] * 3 for c in cases}
        return Measured(seconds, {"hosts": 2})

    values = flags.FlagValues()
    define_flags(distillation_study.FLAGS, values)
    values(["program", "--records=20000"])
    monkeypatch.setattr(flags, "FLAGS", values)
    monkeypatch.setattr(distillation_study, "run_on_link", run_on_link)
    found = {row["name"]: row["value"] for row in measure("100")}
    each, both = ["every_micro_batch:50:none"], ["every_micro_batch:50:none", "delayed:50:none"]
    assert jobs == [(9, each, "100"), (16, both, "100")]
    minutes = [30_000 / 60 * (0.002 + share * 0.03) for share in (1 / 9, 1 / 16, 1 / 800)]
    for row, expected in zip(STUDY, minutes):
        assert found[row.name] == pytest.approx(expected)
        assert found[f"{row.name}, to the first"] == pytest.approx(expected / minutes[0])


@pytest.mark.parametrize("restrict", [False, True])
def test_ours_and_the_peer_distil_the_same(restrict):
    job = dataclasses.replace(JOB, restrict_ce_to_mask=restrict)
    task = task_of(job)
    assert task.student.config == job.student
    assert (job.student.num_hidden_layers, task.teacher.config) == (2, NETWORK)
    assert task.student.score_all_tokens is not restrict


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_kept_teacher_is_a_subject_that_is_compared_with_the_peer(precision):
    subject = DISTILLING[f"ours-{precision}-cached-teacher"]
    assert subject.module == cached_teacher.__name__
    assert subject.is_compared_with(DISTILLING[f"transformers-{precision}-malloc"])
    task = cached_teacher.task_of(JOB)
    assert (task.student.config, task.teacher.config) == (JOB.student, NETWORK)
    assert not task.teacher_specs()
    assert task.most_targets() == cached_teacher.TARGETS


def test_an_epochs_share_of_a_kept_teachers_step():
    subject = DISTILLING["ours-fp32-cached-teacher"]
    found = run_in_process(subject, JOB.to_json(), "train")
    assert found["loss"] > 0
    assert found["seconds"] < found["first_step_seconds"]


@pytest.mark.parametrize("restrict", [False, True])
def test_the_peers_loss(restrict):
    """In numpy, from the networks' outputs; all words in the batch are tokens."""
    torch = pytest.importorskip("torch")
    huggingface = pytest.importorskip("benchmarks.speed.huggingface")
    torch.manual_seed(3)
    module = huggingface.Distillation(dataclasses.replace(JOB, restrict_ce_to_mask=restrict))
    with torch.no_grad():
        for parameter in [*module.parameters(), *module._teacher[0].parameters()]:
            parameter.normal_(std=0.3)
    [batch] = JOB.micro_batches()
    inputs = huggingface.peer_batch(batch)
    found = module(**inputs).loss
    found.backward()
    assert all(p.grad is None for p in module._teacher[0].parameters())
    teachers = {id(p) for p in module._teacher[0].parameters()}
    assert teachers.isdisjoint(id(p) for p in module.parameters())

    labels = inputs.pop("labels")
    del inputs["next_sentence_label"]
    outputs = [
        network(**inputs, output_hidden_states=True)
        for network in (module.student, module._teacher[0])
    ]
    learnt, known = (o.logits.detach().double().numpy().reshape(-1, 50) for o in outputs)
    vectors = [o.hidden_states[-1].detach().double().numpy().reshape(-1, 8) for o in outputs]
    labels = labels.numpy().ravel()
    masked = labels >= 0
    compared = masked if restrict else np.ones_like(masked)

    def log_softmax(x):
        return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

    p, q = (log_softmax(scores[compared] / 2) for scores in (known, learnt))
    divergence = (np.exp(p) * (p - q)).sum(axis=-1).mean()
    words = -log_softmax(learnt)[masked, labels[masked]].mean()
    s, t = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in vectors)
    distance = 1 - (s * t).sum(axis=-1).mean()
    assert found.item() == pytest.approx(5 * 4 * divergence + 2 * words + distance, rel=1e-4)
