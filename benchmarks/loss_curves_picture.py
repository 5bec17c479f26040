"""The picture of loss_curves: the curves, and below them how far each is from the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.loss_curves_compare import Curve, deviations
from bert_tf.files import atomic_open

# What a colour-blind reader can tell apart (Okabe and Ito, 2002).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#332288")


def draw(
    reference: Curve,
    seeds: Mapping[str, Curve],
    variants: Mapping[str, Curve],
    *,
    path: Path,
    title: str,
) -> None:
    """Writes an SVG of smoothed curves.

    Args:
      reference: black above, the zero line below.
      seeds: the reference's other seeds, by name; grey.
      variants: coloured.
      path: the file.
      title: what was trained.
    """
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text, and the same curves give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "loss_curves"})
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(8, 7), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    styles = [
        *((name, curve, {"color": "0.6", "linewidth": 1}) for name, curve in seeds.items()),
        *(
            (name, curve, {"color": _COLOURS[number % len(_COLOURS)], "linewidth": 1.2})
            for number, (name, curve) in enumerate(variants.items())
        ),
    ]
    above.plot(reference.steps, reference.losses, color="black", linewidth=2, label="fp32")
    below.axhline(0, color="black", linewidth=1)
    for name, curve, style in styles:
        above.plot(curve.steps, curve.losses, label=name, **style)
        below.plot(curve.steps, deviations(curve, reference), **style)
    above.set_title(title, fontsize=10)
    above.set_ylabel("training loss, smoothed (nats)")
    above.legend(fontsize=8)
    below.set_ylabel("above fp32 (nats)")
    below.set_xlabel("updates")
    for axes in (above, below):
        axes.grid(color="0.9")
    with atomic_open(path, "wb") as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
    pyplot.close(figure)
