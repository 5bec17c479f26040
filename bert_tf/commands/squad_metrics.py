"""The official SQuAD metric: exact match and F1, v1.1 and v2.0.

    python -m bert_tf.commands.squad_metrics --data_file=dev-v2.0.json \\
        --predictions_file=predictions.json [--null_odds_file=null_odds.json]

The results agree with the authors' evaluate-v1.1.py and evaluate-v2.0.py to the last digit. Data
with unanswerable questions is scored as v2.0, as is any data if null odds are given; otherwise it
is scored as v1.1. Answers in languages without blanks are compared by characters (--score_by).
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping

from absl import flags

from bert_tf.cli.flags import Number, flag_group, run_command
from bert_tf.tasks.question_answering.examples import (
    AUTO,
    SCORE_UNITS,
    SquadFile,
    read_squad,
)
from bert_tf.tasks.question_answering.metrics import (
    evaluate,
    note_on_unit,
    questions_without_answer,
    read_answers,
    read_null_odds,
    scored_by,
)
from bert_tf.util.errors import UserError

_SHOWN_IDS = 3  # of questions without a prediction, in the warning


@flag_group("Files to score")
def define_flags() -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("data_file", None, "SQuAD file with the true answers.", required=True)
    flags.DEFINE_string(
        "predictions_file", None, "JSON object: question id to answer.", required=True
    )
    flags.DEFINE_string(
        "null_odds_file",
        None,
        'v2.0: JSON object, question id to score difference in favour of "no answer".',
    )
    flags.DEFINE_enum(
        "score_by",
        AUTO,
        SCORE_UNITS,
        "What is compared with the true answers, as in run_squad.py.",
    )
    flags.DEFINE(
        Number(infinite=True),
        "na_prob_thresh",
        1.0,
        "With --null_odds_file: questions with higher odds count as unanswered. The official "
        "default is meant for probabilities; with odds, give the --null_score_diff_threshold "
        "of the predictions.",
    )


def main(_: object) -> None:
    """Prints the scores as one JSON object."""
    values = flags.FLAGS
    if values["na_prob_thresh"].present and not values.null_odds_file:
        raise UserError("--na_prob_thresh applies to --null_odds_file; give both.")
    squad = read_squad(
        values.data_file, flag="data_file", version_2_with_negative=True, needs_answers=False
    )
    squad = scored_by(squad, values.score_by)
    answers = read_answers(values.predictions_file, flag="predictions_file")
    null_odds = None
    if values.null_odds_file:
        null_odds = read_null_odds(values.null_odds_file, flag="null_odds_file")
    result = evaluate(squad, answers, null_odds, na_prob_thresh=values.na_prob_thresh)
    if note := note_on_unit(squad):
        print(note, file=sys.stderr)
    _warn_of_missing(squad, answers, do_count="exact" not in result)
    print(json.dumps(result, indent=2))


def _warn_of_missing(squad: SquadFile, answers: Mapping[str, str], *, do_count: bool) -> None:
    missing = questions_without_answer(squad, answers)
    if missing:
        effect = "count as 0" if do_count else "do not count"
        shown = ", ".join(missing[:_SHOWN_IDS]) + (", ..." if len(missing) > _SHOWN_IDS else "")
        print(
            f"warning: {len(missing)} of {len(squad.examples)} questions have no prediction and "
            f"{effect}: {shown}",
            file=sys.stderr,
        )


run = functools.partial(run_command, main, define_flags)


if __name__ == "__main__":
    run()
