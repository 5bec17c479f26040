"""The pictures in docs are what the toolkit's functions and the pages' tables give today."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tests.helpers.programs import ROOT
from tools.pictures import charts, diagrams
from tools.pictures.__main__ import DOCS, drawings

MOST_BYTES = 100_000
PICTURES = drawings()
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PICTURES)
def test_a_stored_picture_is_drawn_today(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text == PICTURES[name].svg(), "run `python -m tools.pictures`"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_stands_alone_and_fits_its_card(name):
    drawing = ET.fromstring(PICTURES[name].svg())
    width, height = (float(drawing.get(side)) for side in ("width", "height"))
    assert drawing.find(f"{SVG}title").text
    assert "prefers-color-scheme:dark" in drawing.find(f"{SVG}style").text
    assert not re.search(r"""href|url\((?!#)|@import""", PICTURES[name].svg())
    for shape in drawing.iter(f"{SVG}rect"):
        assert float(shape.get("x", 0)) + float(shape.get("width")) <= width
        assert float(shape.get("y", 0)) + float(shape.get("height")) <= height


@pytest.mark.parametrize("name", PICTURES)
def test_every_class_has_a_colour_in_both_modes(name):
    drawing = ET.fromstring(PICTURES[name].svg())
    light, dark = drawing.find(f"{SVG}style").text.split("@media")
    used = {kind for shape in drawing.iter() for kind in shape.get("class", "").split()}
    for kind in used - {"code", "strong", "dashed", "curve", "arrow"}:
        assert f".{kind}{{" in light, kind
        assert f".{kind}{{" in dark, kind


def test_the_pictures_of_the_pages_have_alternative_text_and_are_small():
    shown = set()
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for text, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text("utf-8")):
            assert len(text) > 20, f"{page}: {target}"
            shown.add((page.parent / target).resolve())
    stored = {path for kind in ("svg", "png") for path in DOCS.rglob(f"*.{kind}")}
    assert shown == stored
    for path in stored:
        assert path.stat().st_size < MOST_BYTES, path


def test_the_sentence_shows_what_each_scheme_does():
    tokens = " ".join(diagrams._LINES).split()
    kinds = set()
    for _, settings in diagrams._SCHEMES:
        masked, vocabulary = diagrams.masked_sentence(tokens, **settings)
        chosen = sorted(masked.positions[0][masked.weights[0] > 0])
        assert len(chosen) == round(0.15 * len(tokens))
        for place in chosen:
            shown = vocabulary[masked.input_ids[0, place]]
            kinds.add({"[MASK]": "hidden", tokens[place]: "kept"}.get(shown, "other"))
        words = np.cumsum([not token.startswith("##") for token in tokens])
        whole = all(
            np.isin(np.flatnonzero(words == words[place]), chosen).all() for place in chosen
        )
        assert whole == bool(settings)
        neighbours = sum(words[b] == words[a] + 1 for a, b in zip(chosen, chosen[1:]))
        assert neighbours > 0 or not {"ngram", "span_masking"} & settings.keys()
    assert kinds == {"hidden", "kept", "other"}


def test_the_schedules_panels_are_the_registry():
    from bert_tf.update.schedules import SCHEDULES

    assert {name.partition(",")[0] for name, _ in charts._PANELS} == set(SCHEDULES)
    assert charts.planned("polynomial").rate(550) == pytest.approx(0.5)


def test_peaks_are_read_from_the_table():
    page = "| ours | 32: 5582, 211: 16122 | **211** | 8: 4686, 85: 15444 | **91*** |\n"
    page += "| other-recompute | 16: 2856, 200: 12024 | 285* | 8: 2844, 70: 10204 | 122* |\n"
    page += "| third | 32: 3864, 450: 10264 | **849*** | 2: 1, 3: 4 | 5 |\n"
    assert charts.read_peaks(page) == {
        "ours": ([(32, 5582), (211, 16122)], 211, False),
        "other-recompute": ([(16, 2856), (200, 12024)], 285, True),
        "third": ([(32, 3864), (450, 10264)], 849, True),
    }
