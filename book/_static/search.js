/* The search page: asks the index that the build wrote (`search-index.js`), section by section, the best page first. */
const bookSearch = (() => {
  const EVERYDAY = new Set(
    "a an and are as at be by can do does for from how i in into is it its me my of on or that the then there this to up was we what when where which who why will with you your does mean work works use get make made".split(" "),
  );
  const words = (text) => text.toLowerCase().normalize("NFKD").replace(/[\u0300-\u036f’']/g, "").match(/[\p{L}\p{N}]+/gu) ?? [];
  const SAME = { license: "licence", behavior: "behaviour", color: "colour", neighbor: "neighbour", polysemantic: "superposition", mistake: "error" };
  // Plurals and endings of verbs come to one stem: errors, error; composing, composed, composition stay apart.
  const stem = (word) => {
    if (word.length < 4) return word;
    const short = (SAME[word] ?? word).replace(/ies$/, "y").replace(/(sses|shes|ches|xes)$/, (end) => end.slice(0, -2)).replace(/([^s])s$/, "$1");
    return short.length > 5 ? short.replace(/(?:ing|ed|ation)$/, "").replace(/(.)\1$/, "$1") : short;
  };
  const stems = (text) => words(text).map(stem);
  const count = (list) => list.reduce((found, one) => found.set(one, (found.get(one) ?? 0) + 1), new Map());

  let places;
  const prepare = () =>
    (places ??= searchIndex.flatMap(([address, page, sections]) =>
      sections.map(([anchor, title, text, kind], i) => {
        const heads = stems(title);
        return {
          address, page, anchor, title, text, kind, heads, first: i === 0 && kind === 0,
          // A number before the title of an exercise is no word of it.
          name: heads.filter((word) => !/^\d+$/.test(word)).join(" "), above: new Set(stems(page)), found: count(stems(text)),
        };
      }),
    ));

  const score = (place, terms, rare, code) => {
    const length = place.text.length / 6 + 20;
    let total = 0, met = 0;
    for (const term of terms) {
      const times = place.found.get(term) ?? 0;
      const inTitle = place.heads.includes(term);
      const begins = term.length > 2 && !inTitle && place.heads.some((word) => word.startsWith(term));
      if (!times && !inTitle && !begins && !place.above.has(term)) continue;
      met += 1;
      const often = times / (times + 0.5 + length / 150);
      total += rare.get(term) * (often + (inTitle ? 2.5 / Math.sqrt(place.heads.length) + 1 : begins ? 0.7 : 0) + (place.above.has(term) ? 0.6 : 0));
    }
    if (!met || (met < terms.length && terms.length < 3)) return 0;
    const asked = terms.join(" ");
    if (place.name === asked || place.name.split(" ").slice(1).join(" ") === asked) total *= 1.6;
    else if (terms.length > 1 && ` ${place.name} `.includes(` ${asked} `)) total *= 1.3;
    const kind = place.kind === 1 ? (place.name === asked ? 1 : 0.75) : place.kind === 2 ? 0.7 : place.first ? 1.3 : 1;
    const page = /book\/(claims|house)\.html$/.test(place.address) ? 0.6 : /exercises\//.test(place.address) ? 0.7 : /api/.test(place.address) ? (code ? 2 : 0.5) : 1;
    return total * kind * page * (met / terms.length) ** 2;
  };

  /** The pages that answer, best first, each with its best places. */
  const search = (question) => {
    const all = [...new Set(stems(question))];
    const chosen = [...new Set(words(question).filter((word) => !EVERYDAY.has(word)).map(stem))];
    const terms = chosen.length ? chosen : all;
    if (!terms.length) return [];
    const known = prepare();
    const rare = new Map(
      terms.map((term) => [term, Math.log(1 + known.length / (1 + known.filter((p) => p.found.has(term) || p.heads.includes(term)).length))]),
    );
    const pages = new Map();
    for (const place of known) {
      const value = score(place, terms, rare, /[_.(]/.test(question));
      if (!value) continue;
      if (!pages.has(place.address)) pages.set(place.address, { address: place.address, title: place.page, value: 0, places: [] });
      pages.get(place.address).places.push({ ...place, value, get snippet() { return snippet(place.text, terms); } }); // asked for where it is shown
    }
    for (const page of pages.values()) {
      page.places.sort((a, b) => b.value - a.value);
      // A page that treats it in many places answers more than one that names it.
      page.value = page.places.slice(0, 6).reduce((sum, place, i) => sum + place.value / (i ? 6 : 1), 0);
    }
    return [...pages.values()].sort((a, b) => b.value - a.value);
  };

  /** The sentence that holds most of the words; the first one where only the title does. */
  const snippet = (text, terms) => {
    const sentences = text.split(/\n|(?<=[.?!][”’)]?)\s+(?=[\p{Lu}“])/u).filter((line) => line.includes(" "));
    let best = sentences[0] ?? "", most = 0;
    for (const sentence of sentences) {
      const held = new Set(stems(sentence)), met = terms.filter((term) => held.has(term)).length;
      if (met > most) [best, most] = [sentence, met];
    }
    return best.length > 320 ? `${best.slice(0, 300).replace(/\s\S*$/, "")} …` : best;
  };

  const element = (tag, text, more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
  const marked = (text, terms) => {
    const line = element("p", "", { className: "context" });
    for (const piece of text.split(/([\p{L}\p{N}]+)/u)) line.append(terms.has(stem(piece.toLowerCase())) ? element("mark", piece) : piece);
    return line;
  };

  const show = (box, question) => {
    const found = search(question), terms = new Set(words(question).filter((word) => !EVERYDAY.has(word)).map(stem));
    const said = found.length ? `${found.length} ${found.length === 1 ? "page" : "pages"} found for “${question}”.` : `Nothing was found for “${question}”. Try one word of it, or look into the glossary.`;
    const list = element("ol", "", { className: "search" });
    for (const page of found.slice(0, 15)) {
      const item = element("li", "");
      item.append(element("a", page.title, { href: `${page.address}#${page.places[0].anchor}` }));
      page.places.slice(0, 3).forEach((place, i) => {
        if (place.title !== page.title && !(i === 0 && place.first)) {
          const line = element("p", "", { className: "ck-place" });
          line.append(element("a", place.title, { href: `${place.address}#${place.anchor}` }));
          item.append(line);
        }
        if (place.snippet && i < 2) item.append(marked(place.snippet, terms));
      });
      list.append(item);
    }
    box.replaceChildren(element("p", said, { className: "search-summary", role: "status" }), list);
  };

  const box = globalThis.document?.getElementById("search-results");
  const question = box && new URLSearchParams(location.search).get("q")?.trim();
  if (question) {
    document.querySelectorAll("input[name=q]").forEach((field) => (field.value = question));
    show(box, question);
  }
  return { search, show };
})();
