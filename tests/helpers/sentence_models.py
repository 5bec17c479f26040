"""Directories as sentence-transformers writes them, and what they compute by its documentation."""

import json

import numpy as np
import torch
from safetensors.torch import save_file

from tests.unit.checkpoint.tiny_models import huggingface_model

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(34)), "Wx"]
KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# torch's modules, by the last part of their names.
ACTIVATIONS = {
    "activation.Tanh": torch.tanh,
    "activation.GELU": torch.nn.functional.gelu,
    "linear.Identity": lambda values: values,
}


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_sentence_model(
    path,
    *,
    pooling=("mean",),
    include_prompt=True,
    dense=(),
    normalize=False,
    texts=None,
    prompts=None,
    types="sentence_transformers.models.{}",
):
    """Writes a network with its modules; ``dense`` are pairs (outputs, key of ``ACTIVATIONS``)."""
    huggingface_model("BertModel").save_pretrained(path)
    (path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    write_json(path / "tokenizer_config.json", {"do_lower_case": False, "model_max_length": 14})
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    rows = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": types.format(kind)}
        for n, kind in enumerate(kinds)
    ]
    write_json(path / "modules.json", rows)
    settings = {"word_embedding_dimension": 12, "include_prompt": include_prompt}
    modes = {key: name in pooling for name, key in KEYS.items()}
    write_json(path / "1_Pooling/config.json", {**settings, **modes})
    width = 12 * len(pooling)
    for number, (outputs, activation) in enumerate(dense, start=2):
        sizes = {"in_features": width, "out_features": outputs}
        name = f"torch.nn.modules.{activation}"
        config = {**sizes, "bias": number == 2, "activation_function": name}
        write_json(path / f"{number}_Dense/config.json", config)
        rng = np.random.RandomState(number)
        state = {"linear.weight": torch.tensor(rng.randn(outputs, width), dtype=torch.float32)}
        if number == 2:
            state["linear.bias"] = torch.tensor(rng.randn(outputs), dtype=torch.float32)
            torch.save(state, path / f"{number}_Dense/pytorch_model.bin")
        else:
            save_file(state, path / f"{number}_Dense/model.safetensors")
        width = outputs
    write_json(path / "sentence_bert_config.json", texts or {"max_seq_length": 10})
    if prompts is not None:
        write_json(path / "config_sentence_transformers.json", prompts)
    return path


def sentence_vectors(path, texts, *, length=10, prompt="", lower=False):
    """The vectors of texts of words, [texts, W]; computed from the files with torch."""
    network = huggingface_model("BertModel")
    settings = json.loads((path / "1_Pooling/config.json").read_text())
    left_out = 0 if settings["include_prompt"] else len(prompt.split()) + bool(prompt)
    found = []
    for text in texts:
        words = f"{prompt}{text}".split()
        words = [word.lower() for word in words] if lower else words
        ids = [ENTRIES.index(word) if word in ENTRIES else 1 for word in words][: length - 2]
        with torch.no_grad():
            tokens = network(torch.tensor([[2, *ids, 3]])).last_hidden_state[0]
        kept = tokens[left_out:]
        weights = torch.arange(1, len(tokens) + 1)[left_out:, None].float()
        pooled = {
            "cls": tokens[0],
            "max": kept.max(dim=0).values,
            "mean": kept.mean(dim=0),
            "mean_sqrt_len": kept.sum(dim=0) / len(kept) ** 0.5,
            "weightedmean": (kept * weights).sum(dim=0) / weights.sum(),
            "lasttoken": tokens[-1],
        }
        vector = torch.cat([pooled[name] for name, key in KEYS.items() if settings[key]])
        for row in json.loads((path / "modules.json").read_text())[2:]:
            vector = _module(path / row["path"], row["type"].rpartition(".")[2], vector)
        found.append(vector.numpy())
    return np.stack(found)


def _module(path, kind, vector):
    if kind == "Normalize":
        return torch.nn.functional.normalize(vector, dim=0)
    config = json.loads((path / "config.json").read_text())
    if config["bias"]:
        state = torch.load(path / "pytorch_model.bin", weights_only=True)
    else:
        from safetensors.torch import load_file

        state = {"linear.bias": 0.0, **load_file(path / "model.safetensors")}
    activation = ACTIVATIONS[".".join(config["activation_function"].split(".")[-2:])]
    return activation(state["linear.weight"] @ vector + state["linear.bias"])
