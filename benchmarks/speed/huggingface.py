"""Training step and prediction of Hugging Face transformers on torch, as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.speed.predictions import PredictionJob, time_batches
from benchmarks.speed.steps import (
    CLIP_NORM,
    LEARNING_RATE,
    PRETRAINING,
    TRAIN_STEPS,
    WARMUP_STEPS,
    WEIGHT_DECAY,
    Batch,
    StepJob,
    time_steps,
)
from benchmarks.transformers_squad import parameter_groups
from bert_tf.config.bert_config import BertConfig

# transformers' names of the two forms of GELU; both are one operation of torch.
_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu_tanh": "gelu_pytorch_tanh", "gelu_erf": "gelu"}
_NO_LABEL = -100  # of words that are not predicted


def peer_config(network: BertConfig) -> transformers.BertConfig:
    """The same network in transformers' words."""
    activation = _ACTIVATIONS.get(network.hidden_act, network.hidden_act)
    return transformers.BertConfig(**{**network.to_dict(), "hidden_act": activation})


def peer_batch(batch: Batch) -> dict[str, torch.Tensor]:
    """The arguments of the model for a batch of ours."""
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


def autocast(settings: Mapping[str, Any]) -> torch.autocast:
    """bfloat16 products where the settings say so."""
    return torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16")


def predict(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the logits of a span model."""
    job, settings = PredictionJob.from_json(request), request["settings"]
    torch.set_num_threads(job.threads)
    model = transformers.BertForQuestionAnswering(peer_config(job.network)).eval()
    network = torch.compile(model) if settings["compile"] else model

    def run(batch: Batch) -> object:
        with torch.inference_mode(), autocast(settings):
            output = network(**peer_batch(batch))
        return output.start_logits.float().numpy(), output.end_logits.float().numpy()

    return time_batches(job, run)


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the step, with AdamW of one operation, as the library's Trainer takes by default."""
    job, settings = StepJob.from_json(request), request["settings"]
    torch.manual_seed(1)
    torch.set_num_threads(job.threads)
    kinds = transformers.BertForPreTraining, transformers.BertForQuestionAnswering
    kind = kinds[job.task != PRETRAINING]
    model = kind(peer_config(job.network)).train()
    if settings.get("recompute"):
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(
        parameter_groups(model, WEIGHT_DECAY), lr=LEARNING_RATE, fused=True
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP_STEPS, TRAIN_STEPS)
    network = torch.compile(model) if settings["compile"] else model
    batches = [peer_batch(batch) for batch in job.micro_batches()]

    def step() -> float:
        total = 0.0
        for batch in batches:
            with autocast(settings):
                loss = network(**batch).loss / len(batches)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return total

    return time_steps(job, step, started=request["started"])
