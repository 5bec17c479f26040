"""The flags of run_electra.py and the settings made from them."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.tasks.replaced_tokens.objective import ReplacedTokens
from bert_tf.util.errors import UserError


def define_electra_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_electra.py: those of pre-training plus the generator's."""
    define_pretraining_flags(values)
    # ELECTRA has no next-sentence head.
    values.set_default("nsp", False)
    _define_generator_flags(Definer(values))


@flag_group("Generator")
def _define_generator_flags(define: Definer) -> None:
    define.settings(ReplacedTokens)


def electra_settings(values: flags.FlagValues) -> PretrainingSettings:
    """Turns the parsed flags of run_electra.py into settings; raises UserError."""
    if values.nsp:
        raise UserError("--nsp: replaced-token detection has no next sentences; drop the flag.")
    if not values.mlm:
        raise UserError("--mlm=false leaves no generator to replace tokens; drop the flag.")
    return pretraining_settings(values, objective=from_flags(ReplacedTokens, values))
