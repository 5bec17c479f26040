"use strict";

// The question browser. Its state is the form and a page number; both are kept in the URL after
// "#", so that a view can be shared as a link.
(() => {
  const PAGE_SIZE = 20;
  const SHOWN_CANDIDATES = 3;
  const source = document.getElementById("data");
  if (!source) return; // a report without questions

  const find = (id) => document.getElementById(id);
  const form = find("filters");
  const fields = [...form.elements].filter((element) => element.name);
  const rows = readRows(JSON.parse(source.textContent));
  // Multiples of the golden ratio are spread evenly, so that every page has questions from the
  // whole file, with right and wrong ones in proportion.
  const spread = (row) => Math.imul(row.place, 2654435769) >>> 0;
  const orders = {
    mixed: (a, b) => spread(a) - spread(b),
    worst: (a, b) => a.f1 - b.f1 || a.place - b.place,
    best: (a, b) => b.f1 - a.f1 || a.place - b.place,
    confident: (a, b) =>
      severity(a) - severity(b) || b.confidence - a.confidence || a.place - b.place,
    file: (a, b) => a.place - b.place,
  };
  let page = 1;

  function readRows(data) {
    const searchable = data.contexts.map((context) => context.toLowerCase());
    return data.rows.map((values, place) => {
      const row = { place };
      data.columns.forEach((name, column) => (row[name] = values[column]));
      const texts = [row.id, row.question, row.predicted, ...row.answers];
      row.searchable = [texts.join("\n").toLowerCase(), searchable[row.context]];
      row.title = data.titles[row.title];
      row.context = data.contexts[row.context];
      return row;
    });
  }

  function severity(row) {
    return ["wrong", "partly right", "exact"].indexOf(row.outcome);
  }

  function chosenRows() {
    const values = Object.fromEntries(fields.map((field) => [field.name, field.value]));
    const { order, text, ...filters } = values;
    const query = text.trim().toLowerCase();
    const active = Object.entries(filters).filter(([, value]) => value);
    return rows
      .filter((row) => active.every(([name, value]) => String(row[name]) === value))
      .filter((row) => row.searchable.some((part) => part.includes(query)))
      .sort(orders[order]);
  }

  function defaultValue(field) {
    return field.options ? field.options[0].value : "";
  }

  function readUrl() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    for (const field of fields) {
      field.value = parameters.get(field.name) ?? defaultValue(field);
      if (field.selectedIndex === -1) field.value = defaultValue(field);
    }
    page = Math.max(1, Number.parseInt(parameters.get("page"), 10) || 1);
  }

  function writeUrl() {
    const changed = fields.filter((field) => field.value !== defaultValue(field));
    const parameters = new URLSearchParams(changed.map((field) => [field.name, field.value]));
    if (page > 1) parameters.set("page", page);
    history.replaceState(null, "", `#${parameters}`);
  }

  function show() {
    const chosen = chosenRows();
    const pages = Math.max(1, Math.ceil(chosen.length / PAGE_SIZE));
    page = Math.min(page, pages);
    const first = (page - 1) * PAGE_SIZE;
    const shown = chosen.slice(first, first + PAGE_SIZE);
    const range = shown.length ? `${number(first + 1)}–${number(first + shown.length)}` : "0";
    find("count").textContent =
      `showing ${range} of ${number(chosen.length)} (${number(rows.length)} questions in total)`;
    find("list").replaceChildren(...shown.map(example));
    find("page").textContent = `page ${number(page)} of ${number(pages)}`;
    find("previous").disabled = page === 1;
    find("next").disabled = page === pages;
  }

  function number(value) {
    return value.toLocaleString("en");
  }

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function example(row) {
    const item = element("li", { className: "example card" });
    item.dataset.id = row.id;
    item.append(
      element("h3", { dir: "auto" }, row.question),
      element("p", { className: "badges" }, ...badges(row)),
      element(
        "div",
        { className: "sides" },
        element(
          "div",
          {},
          answers(row),
          element("p", { className: "context", dir: "auto" }, ...highlighted(row)),
        ),
        candidates(row),
      ),
    );
    return item;
  }

  function badges(row) {
    const id = element("code", {}, row.id);
    const copy = element("button", { type: "button", className: "copy" }, "copy id");
    copy.addEventListener("click", () => copyText(id, copy));
    const outcome = `badge ${row.outcome.split(" ")[0]}`;
    const parts = [
      element("span", { className: outcome }, row.outcome),
      element("span", {}, `F1 ${(100 * row.f1).toFixed(1)}`),
      element("span", {}, row.type),
      element("span", { dir: "auto" }, row.title.replaceAll("_", " ")),
    ];
    if (row.nullOdds !== null) parts.push(element("span", {}, `null odds ${row.nullOdds}`));
    return [...parts, element("span", { className: "id" }, id, " ", copy)];
  }

  function answers(row) {
    return element(
      "dl",
      { className: "answers" },
      ...named("true", row.answers),
      ...named("predicted", row.predicted ? [row.predicted] : []),
    );
  }

  function named(name, texts) {
    const none = element("dd", { className: "none" }, "no answer");
    const shown = texts.map((text) => element("dd", { className: name, dir: "auto" }, text));
    return [element("dt", {}, name), ...(shown.length ? shown : [none])];
  }

  // The context in pieces, split where a span starts or ends, so that overlaps are pieces too.
  function highlighted(row) {
    const spans = row.predictedSpan ? [...row.trueSpans, row.predictedSpan] : row.trueSpans;
    const cuts = [...new Set([0, row.context.length, ...spans.flat()])].sort((a, b) => a - b);
    return cuts.slice(1).map((end, index) => {
      const start = cuts[index];
      const covers = ([from, to]) => from <= start && end <= to;
      const names = [];
      if (row.trueSpans.some(covers)) names.push("true");
      if (row.predictedSpan && covers(row.predictedSpan)) names.push("predicted");
      const text = row.context.slice(start, end);
      if (!names.length) return text;
      return element("mark", { className: names.join(" "), title: names.join(" and ") }, text);
    });
  }

  function candidates(row) {
    if (!row.nbest.length) return "";
    const lines = row.nbest.map(([text, probability]) =>
      element(
        "tr",
        {},
        element("td", { dir: "auto", className: text ? "" : "none" }, text || "no answer"),
        element("td", {}, probability === null ? "–" : percent(probability)),
      ),
    );
    const table = (...parts) => element("table", {}, ...parts);
    const body = (rows) => element("tbody", {}, ...rows);
    const caption = element("caption", {}, "Candidates and their probability");
    const others = lines.slice(SHOWN_CANDIDATES);
    const folded = element("details", {}, element("summary", {}, `${others.length} more`));
    folded.append(table(body(others)));
    const shown = table(caption, body(lines.slice(0, SHOWN_CANDIDATES)));
    return element("div", { className: "nbest" }, shown, others.length ? folded : "");
  }

  function percent(probability) {
    if (probability > 0 && probability < 0.001) return "< 0.1 %";
    return `${(100 * probability).toFixed(1)} %`;
  }

  // If the browser denies access to the clipboard, the id stays selected for the user to copy.
  async function copyText(code, button) {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      button.textContent = "selected";
    }
    setTimeout(() => (button.textContent = "copy id"), 1500);
  }

  function changed() {
    page = 1;
    writeUrl();
    show();
  }

  function reset() {
    for (const field of fields) field.value = defaultValue(field);
    changed();
  }

  function turn(pages) {
    page += pages;
    writeUrl();
    show();
    find("examples").scrollIntoView();
  }

  for (const field of fields) field.addEventListener(field.options ? "change" : "input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  find("reset").addEventListener("click", reset);
  find("previous").addEventListener("click", () => turn(-1));
  find("next").addEventListener("click", () => turn(1));
  addEventListener("hashchange", () => {
    readUrl();
    show();
    find("examples").scrollIntoView();
  });

  form.hidden = false;
  find("browser").hidden = false;
  readUrl();
  show();
  if (location.hash.length > 1) find("examples").scrollIntoView();
})();
