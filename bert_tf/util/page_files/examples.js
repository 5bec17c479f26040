"use strict";

// The browser of examples. Its state is the form and a page number; both are kept in the URL after
// "#", so that a view can be shared as a link.
(() => {
  const PAGE_SIZE = 20;
  const SHOWN_CANDIDATES = 3;
  const find = (id) => document.getElementById(id);
  const rows = readRows(JSON.parse(find("data").textContent));
  const form = find("filters");
  form.prepend(...Object.keys(rows[0].filters).map(filter).filter(Boolean));
  const fields = [...form.elements].filter((element) => element.name);
  // Multiples of the golden ratio are spread evenly, so that every page has questions from the
  // whole file, with right and wrong ones in proportion.
  const spread = (row) => Math.imul(row.place, 2654435769) >>> 0;
  let page = 1;

  function readRows(data) {
    const searchable = data.texts.map((text) => text.toLowerCase());
    return data.rows.map((row, place) => {
      const texts = [row.id, row.heading, ...Object.values(row.answers).flat()];
      const words = [texts.join("\n").toLowerCase(), searchable[row.text]];
      return { ...row, place, searchable: words, text: data.texts[row.text] };
    });
  }

  // A select element for a filter; nothing if all examples have the same value.
  function filter(name) {
    const counts = new Map();
    for (const row of rows) counts.set(row.filters[name], (counts.get(row.filters[name]) ?? 0) + 1);
    if (counts.size < 2) return null;
    const options = [...counts].sort((a, b) => b[1] - a[1]).map(([value, count]) =>
      element("option", { value }, `${value} (${number(count)})`),
    );
    const all = element("option", { value: "" }, "all");
    return element("label", {}, name, element("select", { name }, all, ...options));
  }

  function chosenRows() {
    const values = Object.fromEntries(fields.map((field) => [field.name, field.value]));
    const { order, text, ...filters } = values;
    const query = text.trim().toLowerCase();
    const active = Object.entries(filters).filter(([, value]) => value);
    const key = order === "mixed" ? spread : (row) => row.orders[order] ?? row.place;
    return rows
      .filter((row) => active.every(([name, value]) => row.filters[name] === value))
      .filter((row) => row.searchable.some((part) => part.includes(query)))
      .sort((a, b) => key(a) - key(b) || a.place - b.place);
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
      `showing ${range} of ${number(chosen.length)} (${number(rows.length)} in total)`;
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
      element("h3", { dir: "auto" }, row.heading),
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
    const facts = row.facts.map((fact) => element("span", { dir: "auto" }, fact));
    return [...facts, element("span", { className: "id" }, id, " ", copy)];
  }

  function answers(row) {
    const parts = Object.entries(row.answers).map(([name, texts]) => named(name, texts));
    return element("dl", { className: "answers" }, ...parts.flat());
  }

  function named(name, texts) {
    const none = element("dd", { className: "none" }, "no answer");
    const shown = texts.map((text) => element("dd", { className: name, dir: "auto" }, text));
    return [element("dt", {}, name), ...(shown.length ? shown : [none])];
  }

  // The text in pieces, split where a mark starts or ends, so that overlaps are pieces too. Marks
  // count characters, of which JavaScript's strings hold some as two.
  function highlighted(row) {
    const characters = [...row.text];
    const spans = Object.values(row.marks).flat();
    const cuts = [...new Set([0, characters.length, ...spans.flat()])].sort((a, b) => a - b);
    return cuts.slice(1).map((end, index) => {
      const start = cuts[index];
      const covers = ([from, to]) => from <= start && end <= to;
      const names = Object.keys(row.marks).filter((name) => row.marks[name].some(covers));
      const text = characters.slice(start, end).join("");
      if (!names.length) return text;
      return element("mark", { className: names.join(" "), title: names.join(" and ") }, text);
    });
  }

  function candidates(row) {
    if (!row.candidates.length) return "";
    const lines = row.candidates.map(([text, probability]) =>
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
