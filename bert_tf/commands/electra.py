"""Pre-trains BERT by replaced-token detection, as ELECTRA does."""

from __future__ import annotations

from bert_tf.commands.scripts import PretrainingScript
from bert_tf.tasks.replaced_tokens.objective import define_electra_flags, electra_settings


class Electra(PretrainingScript):
    """run_electra.py."""

    define = staticmethod(define_electra_flags)
    settings = staticmethod(electra_settings)


SCRIPT = Electra()
run = SCRIPT.run

if __name__ == "__main__":
    run()
