"""Whether the labels of sentence pairs can teach anything."""

from __future__ import annotations

LEAST_OF_A_LABEL = 0.05


def one_sided_labels(label_1: int, total: int) -> str | None:
    """What is wrong with the labels of sentence pairs, and the cure; None if nothing is.

    The next sentence of half of the pairs is random (label 1; Devlin et al. 2018, appendix A.2).
    With one sentence to a document, no sentence has a next one, and all of them are.

    Args:
      label_1: how many pairs have label 1.
      total: all pairs, or those of a sample.
    """
    if not total or min(label_1, total - label_1) >= LEAST_OF_A_LABEL * total:
        return None
    label = int(2 * label_1 > total)
    number = max(label_1, total - label_1)
    return (
        f"{'all' if number == total else f'{number / total:.1%} of the'} sentence pairs have label "
        f"{label}, so next-sentence prediction has nothing to learn; make the records from text "
        "with several sentences in a document, each on a line of its own and a blank line only "
        "between documents, or make them and train with --nsp=false"
    )
