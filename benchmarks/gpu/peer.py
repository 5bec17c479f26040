"""An update of transformers' BERT, compiled by torch, as its users write it: one JSON line.

    python benchmarks/gpu/peer.py '{"network": {...}, "task": "pretraining", "batch": 256,
        "length": 128, "predictions": 19, "updates": 20, "compile": true, "started": 0}'

Needs torch and transformers and nothing of this project, so that it runs in an environment of its
own. bf16 autocast, SDPA, fused AdamW, clipping; TF32 is allowed. Random tokens lie on the GPU
before the first update, and vocabulary logits are those of all positions, as in the library's own
examples. ``started`` is ``time.monotonic()`` when the process was started.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
import transformers

_NO_LABEL = -100
_WARM_UP = 4  # updates after the first one
# transformers' names for the activations of this project that it names otherwise.
_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu_tanh": "gelu_pytorch_tanh", "gelu_erf": "gelu"}
# The published DistilBERT's weights of the losses, and its temperature.
_SOFT, _HARD, _COSINE, _TEMPERATURE = 5.0, 2.0, 1.0, 2.0


class Distillation(torch.nn.Module):
    """A student of half the layers and its teacher, which computes in every update."""

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__()
        fewer = {**config.to_dict(), "num_hidden_layers": max(1, config.num_hidden_layers // 2)}
        self.student = transformers.BertForMaskedLM(transformers.BertConfig(**fewer))
        self.teacher = transformers.BertForMaskedLM(config).requires_grad_(False)

    def forward(self, labels: torch.Tensor, **inputs: torch.Tensor) -> SimpleNamespace:
        """The weighted sum of the three losses as ``loss``."""
        functional = torch.nn.functional
        learnt = self.student(**inputs, output_hidden_states=True)
        with torch.no_grad():
            known = self.teacher.eval()(**inputs, output_hidden_states=True)
        soft = functional.kl_div(
            (learnt.logits / _TEMPERATURE).flatten(0, 1).log_softmax(-1),
            (known.logits / _TEMPERATURE).flatten(0, 1).softmax(-1),
            reduction="batchmean",
        )
        hard = functional.cross_entropy(
            learnt.logits.flatten(0, 1), labels.flatten(), ignore_index=_NO_LABEL
        )
        last = (network.hidden_states[-1].flatten(0, 1) for network in (learnt, known))
        distance = 1 - functional.cosine_similarity(*last).mean()
        return SimpleNamespace(
            loss=_SOFT * _TEMPERATURE**2 * soft + _HARD * hard + _COSINE * distance
        )


_MODELS = {
    "pretraining": transformers.BertForPreTraining,
    "fine-tuning": transformers.BertForQuestionAnswering,
    "distillation": Distillation,
}


def batch_of(job: dict[str, Any], device: str) -> dict[str, torch.Tensor]:
    """The model's arguments for full sequences, each [batch, length] or [batch], on the device."""
    batch, length, vocabulary = job["batch"], job["length"], job["network"]["vocab_size"]
    torch.manual_seed(1)
    ids = torch.randint(vocabulary, (batch, length))
    found = {
        "input_ids": ids,
        "token_type_ids": torch.zeros_like(ids),
        "attention_mask": torch.ones_like(ids),
    }
    if job["task"] == "fine-tuning":
        ends = torch.randint(length, (batch, 2)).sort(dim=1).values
        found.update(start_positions=ends[:, 0], end_positions=ends[:, 1])
    else:
        masked = torch.rand(batch, length).argsort(dim=1)[:, : job["predictions"]]
        labels = torch.full_like(ids, _NO_LABEL)
        found["labels"] = labels.scatter(1, masked, ids.gather(1, masked))
    if job["task"] == "pretraining":
        found["next_sentence_label"] = torch.randint(2, (batch,))
    return {name: values.to(device) for name, values in found.items()}


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """``sequences_per_second``, ``peak_bytes`` (of torch's allocator, on GPUs) and start in s."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    activation = _ACTIVATIONS.get(job["network"]["hidden_act"], job["network"]["hidden_act"])
    config = transformers.BertConfig(**{**job["network"], "hidden_act": activation})
    config._attn_implementation = "sdpa"
    model = _MODELS[job["task"]](config).to(device).train()
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01, fused=True)
    network = torch.compile(model) if job["compile"] else model
    batch = batch_of(job, device)

    def update() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = network(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def seconds_of(updates: int) -> float:
        start = time.perf_counter()
        for _ in range(updates):
            update()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds_of(1)
    start_seconds = time.monotonic() - job["started"]
    seconds_of(_WARM_UP)
    seconds = seconds_of(job["updates"])
    return {
        "sequences_per_second": job["batch"] * job["updates"] / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "start_seconds": start_seconds,
    }


if __name__ == "__main__":
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({**versions, **measure(json.loads(sys.argv[1]))}), flush=True)
