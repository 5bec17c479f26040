"""The flags of run_electra.py and the settings made from them."""

from __future__ import annotations

import dataclasses

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.training_flags import Definer
from bert_tf.config.settings import PretrainingSettings
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.replaced_tokens.objective import ReplacedTokens
from bert_tf.util.errors import UserError


def define_electra_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_electra.py: those of pre-training, and the generator's."""
    define_pretraining_flags(values)
    # ELECTRA has no next-sentence head.
    values.set_default("nsp", False)
    _define_generator_flags(Definer(values))


@flag_group("Generator")
def _define_generator_flags(define: Definer) -> None:
    define.number(
        "generator_hidden_size",
        ReplacedTokens.generator_hidden_size,
        "Width of the generator as a fraction of the discriminator's, rounded to whole attention "
        "heads of the same width; its feed-forward blocks are as much narrower.",
    )
    define.number(
        "generator_layers",
        ReplacedTokens.generator_layers,
        "Number of the generator's layers as a fraction of the discriminator's.",
    )
    define.number(
        "discriminator_weight",
        ReplacedTokens.discriminator_weight,
        "Weight of the discriminator's loss; that of the generator's masked LM is 1.",
    )


def electra_settings(values: flags.FlagValues) -> PretrainingSettings:
    """Turns the parsed flags of run_electra.py into settings; raises UserError."""
    if values.nsp:
        raise UserError("--nsp: replaced tokens are learnt without next sentences; drop the flag.")
    if not values.mlm:
        raise UserError("--mlm=false leaves no generator to replace tokens; drop the flag.")
    for name in ("generator_hidden_size", "generator_layers"):
        if not 0 < values[name].value <= 1:
            raise UserError(
                f"--{name}={values[name].value:g} must be greater than 0 and at most 1, a fraction "
                "of the discriminator's."
            )
    if values.discriminator_weight <= 0:
        raise UserError(
            f"--discriminator_weight={values.discriminator_weight:g} must be greater than 0; "
            "run_pretraining.py --nsp=false trains a masked LM alone."
        )
    objective = ReplacedTokens(
        discriminator_weight=values.discriminator_weight,
        generator_hidden_size=values.generator_hidden_size,
        generator_layers=values.generator_layers,
    )
    return dataclasses.replace(pretraining_settings(values), objective=objective)
