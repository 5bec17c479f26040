"""Training step and prediction of Hugging Face transformers on torch, as users write them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.speed.predictions import PredictionJob, time_batches
from benchmarks.speed.steps import DISTILLATION, PRETRAINING, RECIPE, Batch, StepJob, time_steps
from bert_tf.model.config import BertConfig
from bert_tf.tasks.distillation.settings import DistillationSettings

# transformers' names for both forms of GELU, each of which is one operation in torch.
_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu_tanh": "gelu_pytorch_tanh", "gelu_erf": "gelu"}
_NO_LABEL = -100  # for tokens that are not predicted


def peer_config(network: BertConfig) -> transformers.BertConfig:
    """The same network as a transformers configuration."""
    activation = _ACTIVATIONS.get(network.hidden_act, network.hidden_act)
    return transformers.BertConfig(**{**network.to_dict(), "hidden_act": activation})


def peer_batch(batch: Batch) -> dict[str, torch.Tensor]:
    """Converts a batch of ours to arguments of the model."""
    names = {
        "input_ids": "input_ids",
        "input_mask": "attention_mask",
        "segment_ids": "token_type_ids",
        "start_positions": "start_positions",
        "end_positions": "end_positions",
    }
    arrays = {theirs: batch[ours] for ours, theirs in names.items() if ours in batch}
    if "masked_lm_ids" in batch:
        labels = np.full_like(batch["input_ids"], _NO_LABEL)
        np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
        arrays["labels"] = labels
        arrays["next_sentence_label"] = batch["next_sentence_labels"][:, 0]
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def autocast(precision: str) -> torch.autocast:
    """bfloat16 products if the precision is bf16."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def parameter_groups(
    model: torch.nn.Module, *, weight_decay: float = RECIPE.weight_decay
) -> list[dict[str, Any]]:
    """Excludes biases and layer norms from weight decay, like the Trainer."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def predict(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the logits of a span model."""
    job, settings = PredictionJob.from_json(request), request["settings"]
    torch.set_num_threads(job.threads)
    model = transformers.BertForQuestionAnswering(peer_config(job.network)).eval()
    network = torch.compile(model) if settings.get("compile") else model

    def run(batch: Batch) -> object:
        with torch.inference_mode(), autocast(settings["precision"]):
            output = network(**peer_batch(batch))
        return output.start_logits.float().numpy(), output.end_logits.float().numpy()

    return time_batches(job, run)


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the step, with a fused AdamW, which is the default of the library's Trainer."""
    job, settings = StepJob.from_json(request), request["settings"]
    torch.manual_seed(1)
    torch.set_num_threads(job.threads)
    model = _model_of(job)
    if settings.get("recompute"):
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=RECIPE.learning_rate, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, RECIPE.warmup_steps, RECIPE.steps
    )
    network = torch.compile(model.train()) if settings.get("compile") else model.train()
    batches = [peer_batch(batch) for batch in job.micro_batches()]

    def update() -> float:
        total = 0.0
        for batch in batches:
            with autocast(settings["precision"]):
                loss = network(**batch).loss / len(batches)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), RECIPE.clip_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return total

    return time_steps(job, update, started=request["started"])


def _model_of(job: StepJob) -> torch.nn.Module:
    if job.task == DISTILLATION:
        return Distillation(job)
    kinds = transformers.BertForPreTraining, transformers.BertForQuestionAnswering
    return kinds[job.task != PRETRAINING](peer_config(job.network))


class Distillation(torch.nn.Module):
    """A student with the losses of the published DistilBERT, in the library's terms."""

    def __init__(self, job: StepJob) -> None:
        """Both networks have random weights."""
        super().__init__()
        self.student = transformers.BertForMaskedLM(peer_config(job.student))
        teacher = transformers.BertForMaskedLM(peer_config(job.network)).eval()
        self._teacher = [teacher]  # in a list, it is not among the trained modules
        self._settings = DistillationSettings("", restrict_ce_to_mask=job.restrict_ce_to_mask)

    def forward(
        self, labels: torch.Tensor, attention_mask: torch.Tensor, **inputs: torch.Tensor
    ) -> types.SimpleNamespace:
        """The sum of the losses as ``loss``."""
        del inputs["next_sentence_label"]
        settings, functional = self._settings, torch.nn.functional
        inputs = {**inputs, "attention_mask": attention_mask, "output_hidden_states": True}
        learnt = self.student(**inputs)
        with torch.no_grad():
            known = self._teacher[0](**inputs)
        is_masked = labels != _NO_LABEL
        compared = is_masked if settings.restrict_ce_to_mask else attention_mask.bool()
        divergence = functional.kl_div(
            (learnt.logits[compared] / settings.temperature).log_softmax(-1),
            (known.logits[compared] / settings.temperature).softmax(-1),
            reduction="batchmean",
        )
        cross_entropy = functional.cross_entropy(learnt.logits[is_masked], labels[is_masked])
        last = (network.hidden_states[-1][attention_mask.bool()] for network in (learnt, known))
        distance = 1 - functional.cosine_similarity(*last).mean()
        return types.SimpleNamespace(
            loss=settings.alpha_ce * settings.temperature**2 * divergence
            + settings.alpha_label * cross_entropy
            + settings.alpha_cos * distance
        )
