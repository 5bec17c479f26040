"""Reports in a real browser: filters, highlights, links and paging do what they say."""

import contextlib
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from bert_tf.tasks.question_answering.examples import Answer
from bert_tf.tasks.question_answering.metrics import ThresholdPoint
from bert_tf.tasks.tagging.files import read_tagged
from bert_tf.tasks.tagging.report import write_report as write_tagging_report
from tests.helpers.programs import skip_without
from tests.helpers.squad_answers import answered, write_logs, write_report

with contextlib.suppress(ImportError):  # it has no package for Python 3.9
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select, WebDriverWait

BROWSER_FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium refuses to run as root with its sandbox; containers often are root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1600",
)
HEBREW, SMILEY, GOTHIC = "\u05e0\u05d4\u05e8", "\U0001f600", "\U00010348"
WORDS = ["mill", "river", "<b>", "&amp;", SMILEY, HEBREW, "</script>", GOTHIC, "Müller", "'quoted'"]
# Each question with the type that a reader would give it.
QUESTIONS = {
    "Who built it?": "who",
    "What stood there?": "what",
    "How many wheels did it have?": "how many/much",
    "How was it built?": "how",
    "Name the <i>river</i> & its mouth": "other",
}
LENGTHS = {1: "1", 2: "2", 3: "3", 4: "4–5", 7: "6–10", 12: "11+"}


def make_rows():
    """60 questions: every filter has several values, every context an emoji before the answer."""
    draw = random.Random(11)
    rows = []
    for number in range(60):
        words = [SMILEY, *(draw.choice(WORDS) for _ in range(40)), f"word{number % 20}"]
        context = " ".join(words)
        num_words = draw.choice(list(LENGTHS))
        first = draw.randrange(1, 25)
        answer, start = piece(words, first, num_words)
        answerable = draw.random() < 0.6
        predicted, place = piece(words, max(1, first + draw.randrange(-2, 3)), num_words)
        if draw.random() < 0.3:
            predicted, place = "", None
        if predicted == (answer if answerable else ""):
            f1 = exact = 1.0
        else:
            f1, exact = (draw.choice([0, 0.25, 0.5, 2 / 3]) if answerable and predicted else 0, 0.0)
        rows.append(
            SimpleNamespace(
                name=f"id{number:02}",
                title=draw.choice(["Old_mills", "Rivers & <seas>", HEBREW]),
                question=draw.choice(list(QUESTIONS)),
                context=context,
                answers=[Answer(answer, start)] if answerable else [],
                predicted=predicted,
                span=None if place is None else (place, place + len(predicted)),
                f1=f1,
                exact=exact,
                answerable=answerable,
                null_odds=draw.gauss(0, 3),
                nbest=[
                    (predicted, round(draw.uniform(0.4, 1), 3)),
                    ("another", 0.2),
                    ("", 0.0004),
                    *((f"folded {number}", 0.01) for number in range(2)),
                ],
            )
        )
    return rows


def piece(words, first, num_words):
    """So many words of the context and the character that they start at."""
    return " ".join(words[first : first + num_words]), len(" ".join(words[:first])) + 1


ROWS = make_rows()
BY_ID = {row.name: row for row in ROWS}


def outcome(row):
    if row.exact:
        return "exact"
    return "partly right" if row.f1 else "wrong"


def length(row):
    answers = row.answers
    return LENGTHS[len(answers[0].text.split(" "))] if answers else "no answer"


# Filter name to the value that a question has of it.
FILTERS = {
    "Outcome": outcome,
    "Question type": lambda row: QUESTIONS[row.question],
    "Answer length": length,
    "Answerable": lambda row: "yes" if row.answerable else "no",
    "Article": lambda row: row.title.replace("_", " "),
}
ORDERS = {
    "mixed": lambda row: int(row.name[2:]) * 2654435769 % 2**32,
    "as in the file": lambda row: row.name,
    "worst F1 first": lambda row: row.f1,
    "best F1 first": lambda row: -row.f1,
    "most confident wrong first": lambda row: (
        ["wrong", "partly right", "exact"].index(outcome(row)),
        -row.nbest[0][1],
    ),
}


def expected_ids(order="mixed", wanted=None):
    """The ids of the questions whose filters have the wanted values."""
    values = (wanted or {}).items()
    chosen = [row for row in ROWS if all(FILTERS[name](row) == value for name, value in values)]
    return [row.name for row in sorted(chosen, key=ORDERS[order])]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    steps = [{"step": step, "loss": 5 / step, "f1": 10 * step**0.5} for step in range(1, 60)]
    write_logs(directory, steps, steps[::10])
    path = write_report(
        directory,
        [answered(**vars(row)) for row in ROWS],
        {"exact": 40.0, "f1": 50.0, "best_f1": 51.0, "best_f1_thresh": -0.5},
        curve=[
            ThresholdPoint(x / 10, 40 - abs(x / 10), 50 - abs(x / 10 + 0.5)) for x in range(-80, 80)
        ],
    )
    return path.as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if "webdriver" not in globals():
        skip_without("browser", "selenium is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver_program = shutil.which("chromedriver")
    if program is None or driver_program is None:
        skip_without(
            "browser",
            "no chromium or no chromedriver on PATH: install Debian's chromium and chromium-driver",
        )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    profile = tmp_path_factory.mktemp("profile")
    for flag in (*BROWSER_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_program))
    yield driver
    driver.quit()


@pytest.fixture
def page(chromium, address):
    """The report, opened anew; a test that leaves an error in the console fails."""
    open_page(chromium, address)
    yield chromium
    assert chromium.get_log("browser") == []


def open_page(chromium, address):
    chromium.get("about:blank")  # else only the part after "#" would change
    chromium.get(address)


def choose(page, name, value):
    Select(page.find_element(By.NAME, name)).select_by_value(value)


def ids_on_this_page(page):
    script = "return [...document.querySelectorAll('#list > li')].map((item) => item.dataset.id)"
    return page.execute_script(script)


def all_ids(page):
    """The ids of all pages; a script clicks the button, in one call of the browser."""
    script = """const found = [], next = document.getElementById("next");
      for (;;) {
        for (const item of document.querySelectorAll("#list > li")) found.push(item.dataset.id);
        if (next.disabled) return found;
        next.click();
      }"""
    return page.execute_script(script)


def test_pages_are_turned_with_a_button(page):
    found = ids_on_this_page(page)
    while page.find_element(By.ID, "next").is_enabled():
        page.find_element(By.ID, "next").click()
        found += ids_on_this_page(page)
    assert found == expected_ids()


@pytest.mark.parametrize("name", list(FILTERS))
def test_each_value_of_each_filter(page, name):
    select = Select(page.find_element(By.NAME, name))
    values = {option.get_attribute("value"): option.text for option in select.options}
    assert set(values) == {"", *(FILTERS[name](row) for row in ROWS)}
    for value, label in values.items():
        choose(page, name, value)
        expected = expected_ids(wanted={name: value} if value else None)
        assert all_ids(page) == expected
        assert f" of {len(expected)} (60 in total)" in page.find_element(By.ID, "count").text
        if value:
            assert label.endswith(f"({len(expected)})")


def test_filters_together_and_reset(page):
    choose(page, "Answerable", "yes")
    choose(page, "Outcome", "wrong")
    choose(page, "order", "most confident wrong first")
    wanted = {"Answerable": "yes", "Outcome": "wrong"}
    expected = expected_ids("most confident wrong first", wanted)
    assert 0 < len(expected) < len(ROWS)
    assert all_ids(page) == expected
    page.find_element(By.ID, "reset").click()
    assert all_ids(page) == expected_ids()
    assert page.current_url.partition("#")[2] in ("", "page=3")


@pytest.mark.parametrize("order", list(ORDERS))
def test_orders(page, order):
    choose(page, "order", order)
    assert all_ids(page) == expected_ids(order)


@pytest.mark.parametrize("text", ["WORD7", "id31", "who", " müller ", "</SCRIPT>", "nowhere"])
def test_search(page, text):
    page.find_element(By.NAME, "text").send_keys(text)
    wanted = text.strip().lower()
    expected = [
        identity
        for identity in expected_ids()
        for row in [BY_ID[identity]]
        if any(
            wanted in part.lower()
            for part in (
                row.context,
                row.question,
                row.name,
                row.predicted,
                *(answer for answer, _ in row.answers),
            )
        )
    ]
    assert all_ids(page) == expected


def test_highlights_are_the_spans(page):
    choose(page, "order", "as in the file")
    pieces = """return [...document.querySelectorAll("#list > li")].map((item) => ({
      id: item.dataset.id,
      context: item.querySelector(".context").textContent,
      truth: [...item.querySelectorAll("mark.true")].map((mark) => mark.textContent).join(""),
      predicted:
        [...item.querySelectorAll("mark.predicted")].map((mark) => mark.textContent).join(""),
      both: [...item.querySelectorAll("mark.true.predicted")].map((m) => m.textContent).join(""),
      question: item.querySelector("h3").textContent,
    }))"""
    overlaps = 0
    for number in range(3):
        for found in page.execute_script(pieces):
            row = BY_ID[found["id"]]
            answers = row.answers
            assert found["question"] == row.question
            assert found["context"] == row.context
            assert found["truth"] == (answers[0].text if answers else "")
            assert found["predicted"] == row.predicted
            start, end = row.span or (0, 0)
            [(true_text, true_start)] = answers or [("", 0)]
            low, high = max(start, true_start), min(end, true_start + len(true_text))
            assert found["both"] == row.context[low : max(low, high)]
            overlaps += bool(found["both"])
        if number < 2:
            page.find_element(By.ID, "next").click()
    assert overlaps > 5


def test_candidates_and_their_probabilities(page):
    item = page.find_element(By.CSS_SELECTOR, "#list > li")
    row = BY_ID[item.get_attribute("data-id")]
    cells = [cell.text for cell in item.find_elements(By.CSS_SELECTOR, ".nbest td")]
    chance = f"{100 * row.nbest[0][1]:.1f} %"
    shown = [chance, "another", "20.0 %", "no answer", "< 0.1 %"]
    assert [text for text in cells[1:] if text] == shown
    summary = item.find_element(By.CSS_SELECTOR, ".nbest summary")
    assert summary.text == "2 more"
    summary.click()
    cells = [cell.text for cell in item.find_elements(By.CSS_SELECTOR, ".nbest td")]
    assert cells[1:] == [*shown, "folded 0", "1.0 %", "folded 1", "1.0 %"]


def test_the_first_page_is_a_fair_sample(page):
    first, all_wrong = ids_on_this_page(page), sum(outcome(row) == "wrong" for row in ROWS)
    wrong = sum(outcome(BY_ID[identity]) == "wrong" for identity in first)
    assert abs(wrong - all_wrong / 3) < 5
    thirds = [sum(int(i[2:]) // 20 == part for i in first) for part in range(3)]
    assert min(thirds) >= 5


@pytest.mark.parametrize("width", [1280, 420])
def test_charts_fill_their_cards(page, width):
    size = {"width": width, "height": 1600, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    script = """return [...document.querySelectorAll(".chart")].map((chart) => {
      const [card, plot] = [chart, chart.querySelector(".plot svg")].map((part) =>
        part.getBoundingClientRect());
      const spans = [...chart.querySelectorAll(".plot span")].map((span) =>
        span.getBoundingClientRect());
      return {
        left: plot.left - card.left, right: card.right - plot.right,
        inside: spans.every((span) => span.left >= card.left && span.right <= card.right),
      };
    })"""
    found = page.execute_script(script)
    assert len(found) == 3
    for chart in found:
        assert chart["inside"]
        assert chart["left"] < 90
        assert chart["right"] < 40
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_view_is_a_link(page, address):
    choose(page, "Article", "Rivers & <seas>")
    choose(page, "order", "best F1 first")
    page.find_element(By.NAME, "text").send_keys("word")
    view, ids = page.current_url, ids_on_this_page(page)
    open_page(page, address)
    assert ids_on_this_page(page) != ids
    open_page(page, view)
    assert (
        ids_on_this_page(page)
        == ids
        == expected_ids("best F1 first", {"Article": "Rivers & <seas>"})[:20]
    )
    open_page(page, f"{address}#page=3&Outcome=never&Question+type=")
    assert ids_on_this_page(page) == expected_ids()[40:60], "values that do not exist are ignored"


@pytest.mark.parametrize(
    ("name", "group"),
    [("Question type", "how many/much"), ("Answer length", "4–5"), ("Outcome", "partly right")],
)
def test_a_group_of_the_tables_leads_to_its_questions(page, name, group):
    page.find_element(By.LINK_TEXT, group).click()
    field = page.find_element(By.NAME, name)
    WebDriverWait(page, 10).until(lambda _: field.get_attribute("value") == group)
    assert all_ids(page) == expected_ids(wanted={name: group})


def test_the_id_can_be_copied(page):
    page.find_element(By.CSS_SELECTOR, "#list .copy").click()
    assert page.execute_script("return String(getSelection())") == ids_on_this_page(page)[0]


def test_controls_have_labels_and_take_the_keyboard(page):
    unlabelled = """return [...document.querySelectorAll("select, input, button")].filter(
      (control) => !control.textContent.trim() || control.matches("select, input")
    ).filter((control) => !(control.labels && control.labels.length)).length"""
    assert page.execute_script(unlabelled) == 0
    field = page.find_element(By.NAME, "Outcome")
    field.send_keys("w")
    assert all_ids(page) == expected_ids(wanted={"Outcome": "wrong"})


SCREENS = pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        ("dark", 420),
        pytest.param("light", 420, marks=pytest.mark.exhaustive),
        pytest.param("dark", 1280, marks=pytest.mark.exhaustive),
    ],
)
READ = (
    "body",
    ".details dt",
    ".tile span",
    "td",
    "td a, th a",
    "caption",
    ".legend .curve",
    ".legend .curve.second",
    ".legend .marker",
    "select",
    ".badges",
    "mark.true",
    ".none",
    ".plot .tick",
    ".plot .label",
    ".nbest summary",
    ".note",
)


@SCREENS
def test_it_fits_and_can_be_read(page, tmp_path, scheme, width):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    dark = page.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark == (scheme == "dark")
    size = {"width": width, "height": 1600, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    choose(page, "order", "as in the file")
    for selector in READ:
        assert contrast(page, selector) >= 4.5, selector
    assert page.save_screenshot(str(tmp_path / f"report-{scheme}-{width}.png"))
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def contrast(page, selector):
    """The WCAG 2 contrast of an element's text on what is behind it."""
    script = """
      const channels = (color) => color.match(/[\\d.]+/g).map(Number);
      const found = document.querySelector(arguments[0]);
      let behind = found;
      while (behind && channels(getComputedStyle(behind).backgroundColor)[3] === 0)
        behind = behind.parentElement;
      const colors = [getComputedStyle(found).color, getComputedStyle(behind).backgroundColor];
      return colors.map(channels);
    """
    colors = page.execute_script(script, selector)
    lighter, darker = sorted(map(luminance, colors), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color):
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in color[:3])
    ]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear))


def test_without_scripts_the_tables_and_charts_remain(chromium, address):
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        open_page(chromium, address)
        assert chromium.find_element(By.CSS_SELECTOR, ".tile strong").text == "50.00"
        assert len(chromium.find_elements(By.CSS_SELECTOR, "tbody tr")) > 5
        assert len(chromium.find_elements(By.CSS_SELECTOR, "figure svg polyline")) == 5
        assert "needs JavaScript" in chromium.find_element(By.TAG_NAME, "noscript").text
        assert not chromium.find_element(By.ID, "filters").is_displayed()
    finally:
        chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


TAGGED = {  # word -> label, predicted label
    HEBREW: ("B-creative-work", "B-creative-work"),
    "</script>": ("I-creative-work", "I-creative-work"),
    "&amp;": ("O", "B-corporation"),
    SMILEY: ("B-person", "B-location"),
    "Müller": ("B-person", "B-person"),
    "Sons": ("I-person", "O"),
    "'quoted'": ("B-product", "O"),
}


@pytest.fixture(scope="module")
def tagging_address(tmp_path_factory):
    """A report with every outcome of entities, and with many types."""
    directory = tmp_path_factory.mktemp("tagging")
    rows = {**TAGGED, **{f"w{n}": (f"B-quite-a-long-type-{n}", "O") for n in range(8)}}
    text = "".join(f"{word}\t{label}\n" for word, (label, _) in rows.items())
    (directory / "dev.tsv").write_text(text)
    file = read_tagged(directory / "dev.tsv", flag="eval_file", needs_labels=True)
    predicted = [[label for _, label in rows.values()]]
    write_tagging_report(directory, file, predicted, np.ones(len(rows)), {"eval_f1": 0.2})
    return (directory / "report.html").as_uri()


@SCREENS
def test_entities_are_marked_and_can_be_read(chromium, tagging_address, scheme, width):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 1600, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    open_page(chromium, tagging_address)
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    script = """return [...document.querySelectorAll(".context mark")].map(
      (mark) => [mark.textContent, mark.className, getComputedStyle(mark).backgroundColor,
                 getComputedStyle(mark).textDecorationLine])"""
    marks = chromium.execute_script(script)[:6]
    assert [(text, classes) for text, classes, *_ in marks] == [
        (f"{HEBREW} </script>", "true predicted"),
        ("&amp;", "predicted"),
        (SMILEY, "true predicted"),
        ("Müller", "true predicted"),
        (" Sons", "true"),
        ("'quoted'", "true"),
    ]
    # What is labelled has a background, and what is predicted a line under it.
    for _, classes, background, line in marks:
        assert ("true" in classes) == (background != "rgba(0, 0, 0, 0)")
        assert ("predicted" in classes) == (line == "underline")
    listed = chromium.find_element(By.CSS_SELECTOR, ".answers").text.splitlines()
    assert listed[:8] == [
        *("correct", f"{HEBREW} </script> (creative-work)"),
        *("wrong boundaries", "Müller Sons (person)"),
        *("wrong type", f"{SMILEY} (person, predicted as location)"),
        *("missed", "'quoted' (product)"),
    ]
    for selector in (".context mark.true", ".answers dt", ".answers dd", ".legend", "td"):
        assert contrast(chromium, selector) >= 4.5, selector
    assert chromium.get_log("browser") == []
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
