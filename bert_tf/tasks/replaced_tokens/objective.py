"""The objective and flags of ELECTRA (Clark et al. 2020), used by runs of ``tasks.pretraining``.

Imports no TensorFlow, so that invalid flags are reported without delay.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.config.declared import Settings, setting
from bert_tf.model.config import BertConfig
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval

if TYPE_CHECKING:
    from bert_tf.tasks.replaced_tokens.task import ReplacedTokenTask

_FRACTION = Interval(0, 1, open_low=True)


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(Settings):
    """Masked LM for the generator, and detection of its samples for the discriminator.

    Implements :class:`bert_tf.tasks.pretraining.settings.Objective`. Defaults are those of
    google-research/electra's small and base networks.
    """

    discriminator_weight: float = setting(
        50.0,
        "Weight of the discriminator's loss; the generator's masked LM loss has weight 1.",
        bounds=Interval(0, open_low=True),
        advice="run_pretraining.py --nsp=false trains a masked LM alone",
    )
    generator_hidden_size: float = setting(
        0.25,
        "Width of the generator as a fraction of the discriminator's, rounded to whole attention "
        "heads of the same width; its feed-forward blocks shrink in proportion.",
        bounds=_FRACTION,
        advice="a fraction of the discriminator's",
    )
    generator_layers: float = setting(
        1.0,
        "Number of generator layers as a fraction of the discriminator's.",
        bounds=_FRACTION,
        advice="a fraction of the discriminator's",
    )

    def generator(self, config: BertConfig) -> BertConfig:
        """The generator's architecture: heads as wide as the discriminator's, and at least one."""
        heads = max(1, round(config.num_attention_heads * self.generator_hidden_size))
        share = heads / config.num_attention_heads
        return dataclasses.replace(
            config,
            hidden_size=config.hidden_size // config.num_attention_heads * heads,
            num_attention_heads=heads,
            intermediate_size=max(1, round(config.intermediate_size * share)),
            num_hidden_layers=max(1, round(config.num_hidden_layers * self.generator_layers)),
        )

    def task(self, config: BertConfig) -> ReplacedTokenTask:
        """The task of both networks."""
        from bert_tf.tasks.replaced_tokens.task import ReplacedTokenTask

        return ReplacedTokenTask(config, self.generator(config), self.discriminator_weight)


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
