/* Filters of the claims register: words, text and verdict. Without this script the page shows every row. */
(() => {
  const here = document.currentScript.src;
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

  /* "See it in the lab" opens the state of a row over the page. Its scripts load with the first one. */
  const load = () =>
    new Promise((resolve, reject) => {
      const script = tag("script", { src: new URL("lab/start.js", here).href });
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => reject(new Error("start.js did not load")));
      document.head.append(script);
    });
  const tag = (name, properties, ...inside) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...inside);
    return made;
  };
  let lab;
  const dialog = tag("dialog", { className: "ck-lab", ariaLabel: "A claim in the lab" });
  const told = tag("p", {});
  const close = tag("button", { type: "button", className: "ck-close", textContent: "Close" });
  close.addEventListener("click", () => dialog.close());
  dialog.append(tag("div", { className: "ck-lab-head" }, told, close));
  const see = async (link) => {
    const row = link.closest(".ck-claim");
    told.replaceChildren(tag("strong", { textContent: `${row.id.toUpperCase()}. ` }), row.querySelector(".ck-what p").textContent);
    document.querySelector(".bd-article").append(dialog);
    dialog.showModal();
    if (!lab) {
      await load();
      const note = tag("p", { className: "cl-note", role: "status" });
      lab = tag("circuit-lab", {}, note);
      Object.assign(lab.dataset, { given: "", preset: "dursley", page: link.getAttribute("href").split("#")[0] });
      dialog.append(lab);
    }
    await lab.start(`#lab:${link.dataset.state}`);
  };
  document.querySelectorAll(".ck-see").forEach((link) => {
    // The address for a new tab.
    for (const name of ["pointerdown", "focus"]) link.addEventListener(name, () => (link.href = `lab.html#lab:${link.dataset.state}`));
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      see(link).catch((error) => (told.textContent = `This did not work: ${error.message}. Try again.`));
    });
  });
})();
