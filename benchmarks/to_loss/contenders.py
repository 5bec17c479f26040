"""The contenders: peers as published and with other rates, ours with any recipe."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from benchmarks.speed.subjects import MALLOC, Subject
from bert_tf.util.errors import UserError

GOOGLE = "benchmarks.to_loss.google"
RUN_MLM = "benchmarks.to_loss.run_mlm"
OURS = "benchmarks.to_loss.ours"

_SEPARATOR = re.compile(r":(?=[a-z_]+=|[a-z_]+$)")  # but not the colon of a ramp

# google-research/bert, README and flags: Adam at 1e-4 (Devlin et al. 2019, appendix A.2), warm-up
# over the first tenth (--num_warmup_steps of --num_train_steps), --train_batch_size=32.
_GOOGLE = {"amp": True, "learning_rate": 1e-4, "batch_size": 32, "warmup_share": 0.1}
# transformers, run_mlm.py and TrainingArguments: AdamW at 5e-5, no warm-up, batches of 8.
_RUN_MLM = {"precision": "bf16", "learning_rate": 5e-5, "batch_size": 8, "warmup_share": 0.0}
# google's recipe for our program.
_AS_GOOGLE = {
    "records": "pairs_static",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "learning_rate": 1e-4,
    "train_batch_size": 32,
    "warmup_share": 0.1,
    "lr_schedule": "google",
}
_FAST = {"flagfile": "recipes/fast_tiny_one_cpu.flags", "warmup_share": 0.1}
# Settings that a recipe may change.
_PLAIN = {
    "records": "packed",
    "nsp": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "learning_rate": 2e-3,
    "adam_bias_correction": True,
    "train_batch_size": 32,
    "warmup_share": 0.1,
}


@dataclasses.dataclass(frozen=True)
class Contender:
    """A program with its settings.

    Attributes:
      name: for tables and flags; with a ``:``, a known contender with other settings.
      module: the module that trains.
      settings: settings for that module.
      environment: additional environment variables of its process.
    """

    name: str
    module: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether this project trains."""
        return self.module == OURS

    @property
    def subject(self) -> Subject:
        """The subject to run in a process."""
        return Subject(self.name, self.module, self.settings, self.environment)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("google-bert", GOOGLE, _GOOGLE),
        Contender("google-bert-fp32", GOOGLE, {**_GOOGLE, "amp": False}),
        Contender("transformers", RUN_MLM, _RUN_MLM, MALLOC),
        Contender("transformers-fp32", RUN_MLM, {**_RUN_MLM, "precision": "fp32"}, MALLOC),
        Contender("ours-as-google", OURS, _AS_GOOGLE),
        Contender("ours", OURS, _PLAIN),
        Contender("ours-fast", OURS, _FAST),
    )
}


def contender(name: str) -> Contender:
    """A contender by name, such as ``google-bert:learning_rate=1e-3:batch_size=64``.

    Raises UserError for an unknown name and for settings without a value.
    """
    known, *changes = _SEPARATOR.split(name)
    if known not in CONTENDERS:
        raise UserError(f"--subjects: {known!r} is not one of {', '.join(CONTENDERS)}.")
    found = CONTENDERS[known]
    settings = dict(found.settings)
    for change in changes:
        key, is_setting, text = change.partition("=")
        if not is_setting:
            raise UserError(f"--subjects: {change!r} of {name!r} is not SETTING=VALUE.")
        settings[key] = _value(text)
    return dataclasses.replace(found, name=name, settings=settings)


def _value(text: str) -> Any:
    """Parses a boolean, an integer, a number or a word."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
