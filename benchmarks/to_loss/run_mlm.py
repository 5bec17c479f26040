"""Trains transformers like its run_mlm.py: grouped texts, dynamic masking, AdamW.

The loop is that of its Trainer without the bookkeeping; batches are slices of one tensor, masked
by the library's collator, which costs less than the Trainer's loader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.speed.huggingface import autocast, parameter_groups, peer_config
from benchmarks.to_loss.trainings import HUGGINGFACE, TrainingJob, run_updates

_CLIP_NORM = 1.0  # the Trainer's
_MASKED_SHARE = 0.15  # run_mlm's


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Trains with ``precision``, ``batch_size``, ``learning_rate``, ``warmup_share`` of settings.

    Returns the result of run_updates.
    """
    job, settings = TrainingJob.from_json(request), request["settings"]
    transformers.set_seed(job.seed)
    torch.set_num_threads(job.threads)
    tokenizer = transformers.BertTokenizerFast(job.data["vocab_file"], do_lower_case=True)
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=_MASKED_SHARE
    )
    batches = _batches(_grouped(tokenizer, job), settings["batch_size"])
    model = transformers.BertForMaskedLM(peer_config(job.network)).train()
    optimizer = torch.optim.AdamW(
        parameter_groups(model, weight_decay=0.0), lr=settings["learning_rate"], fused=True
    )
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(settings["warmup_share"] * job.updates), job.updates
    )

    def update() -> float:
        ids, labels = collator.torch_mask_tokens(next(batches))
        with autocast(settings["precision"]):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.item()

    def save(number: int) -> None:
        model.save_pretrained(Path(job.directory, f"{HUGGINGFACE}-{number}"))

    return run_updates(job, update, save, started=request["started"])


def _grouped(tokenizer: transformers.PreTrainedTokenizerFast, job: TrainingJob) -> torch.Tensor:
    """Concatenates all texts and cuts them into rows of full length; drops the rest."""
    lines = Path(job.data["lines"]).read_text(encoding="utf-8").splitlines()
    encoded = tokenizer(lines, add_special_tokens=True, return_attention_mask=False, verbose=False)
    ids = torch.tensor([token for line in encoded["input_ids"] for token in line])
    return ids[: len(ids) // job.seq_length * job.seq_length].view(-1, job.seq_length)


def _batches(rows: torch.Tensor, batch_size: int) -> Iterator[torch.Tensor]:
    """Endless epochs, each in a new order."""
    while True:
        for chosen in torch.randperm(len(rows)).split(batch_size):
            yield rows[chosen]
