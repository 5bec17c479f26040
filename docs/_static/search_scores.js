// The order of search results: a flag whose whole name is sought first, then pages, then flags that only contain
// the words. Sphinx adds this to the data of its search program (html_search_scorer).
var Scorer = {
  score: ([page, name, , , score, , kind]) => {
    if (kind === "object") {
      const sought = new URLSearchParams(location.search).get("q") || "";
      return name.split("--").pop() === sought.trim().replace(/^--/, "") ? 20 : 1;
    }
    return score + (/^(start|howto)\//.test(page) ? 1 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
