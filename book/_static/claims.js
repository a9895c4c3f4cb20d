/* Filters of the claims register: words, text and verdict. Without this script the page shows every row. */
(() => {
  const form = document.getElementById("ck-filter");
  if (!form) return;
  const rows = [...document.querySelectorAll(".ck-claim")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const boxes = [...form.querySelectorAll("[name=verdict]")];
  const { words, source } = form.elements;
  const said = form.querySelector("output");

  const show = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdicts = boxes.filter((box) => box.checked).map((box) => box.value);
    let shown = 0;
    rows.forEach((row, i) => {
      const fits =
        wanted.every((word) => texts[i].includes(word)) &&
        (!source.value || row.dataset.source === source.value) &&
        verdicts.includes(row.dataset.verdict);
      row.hidden = !fits;
      shown += fits;
    });
    // A text without a row to show leaves the page with its heading.
    document.querySelectorAll(".ck-claims").forEach((table) => {
      table.closest("section").hidden = !table.querySelector(".ck-claim:not([hidden])");
    });
    said.textContent = shown === rows.length ? `${shown} claims` : `${shown} of ${rows.length} claims`;
    const query = new URLSearchParams();
    if (words.value) query.set("words", words.value);
    if (source.value) query.set("source", source.value);
    if (verdicts.length < boxes.length) query.set("verdict", verdicts.join(" "));
    try {
      history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}${location.hash}`);
    } catch {
      /* a page opened from a file may not change its address */
    }
  };

  // A link to a row wins over a filter that hides it.
  const reveal = () => {
    const row = rows.find((one) => `#${one.id}` === location.hash);
    if (!row) return;
    if (row.hidden) {
      form.reset();
      show();
    }
    row.scrollIntoView({ block: "center" });
  };

  const asked = new URLSearchParams(location.search);
  words.value = asked.get("words") ?? "";
  source.value = [...source.options].some((one) => one.value === asked.get("source")) ? asked.get("source") : "";
  const verdicts = asked.get("verdict")?.split(" ");
  boxes.forEach((box) => (box.checked = verdicts?.includes(box.value) ?? true));
  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("reset", () => setTimeout(show));
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", reveal);
  show();
  reveal();
})();
