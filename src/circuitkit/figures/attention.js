// Makes the attention views of a page or of a notebook live: circuitsvis draws the head that the reader chooses.
(() => {
  // Every output of a notebook has this script, and the first one that runs finds the views of all others.
  if (window.ckAttention) return;
  window.ckAttention = true;
  // A page of the book has circuitsvis in a file.
  const fromFile = () =>
    new Promise((resolve, reject) => {
      const src = `${document.documentElement.dataset.content_root}_static/circuitsvis.js`;
      document.head.append(Object.assign(document.createElement("script"), { src, onload: resolve, onerror: reject }));
    });
  // An output of a notebook carries it, compressed, so that no host is asked and the output works alone.
  const fromOutput = async (packed) => {
    const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const text = await new Response(stream).text();
    // A page may have a loader of modules; without these names, circuitsvis does not register itself there.
    const script = `{ const define = undefined, module = undefined, exports = undefined;\n${text}\n}`;
    document.head.append(Object.assign(document.createElement("script"), { textContent: script }));
    if (!window.CircuitsVis) throw new Error("the page runs no scripts");
  };
  // Loaded once; it leaves window.CircuitsVis.
  const bring = (figure) => {
    const packed = figure.querySelector(".ck-packed");
    return packed ? fromOutput(packed) : fromFile();
  };
  let brought;
  let views = 0;
  // The page comes first: the script is 1.3 MB, and the still picture is there already.
  const quiet = () =>
    new Promise((done) => {
      const rest = () => (window.requestIdleCallback ?? setTimeout)(done);
      document.readyState === "complete" ? rest() : addEventListener("load", rest, { once: true });
    });
  const start = async (figure) => {
    try {
      await quiet();
      await (brought ??= bring(figure));
    } catch {
      return; // the still pictures and the table remain
    }
    const props = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const zoom = figure.querySelector(".ck-zoom");
    const heads = [...figure.querySelectorAll(".ck-head")];
    const choose = (chosen) => {
      heads.forEach((head, number) => head.setAttribute("aria-pressed", number === chosen));
      const view = Object.assign(document.createElement("div"), { id: `ck-view-${views++}`, className: "ck-view" });
      const title = Object.assign(document.createElement("div"), { className: "ck-title" });
      title.textContent = props.names[chosen];
      // Room for the name of every token; past forty, half of the names and the table have to do.
      const many = props.tokens.length;
      if (many <= 40) view.style.minWidth = `${20 * many + 110}px`;
      zoom.replaceChildren(title, view);
      new MutationObserver(() =>
        view.querySelector("canvas")?.setAttribute("aria-label", `Pattern of ${props.names[chosen]}, as in the table below`),
      ).observe(view, { childList: true, subtree: true });
      CircuitsVis.render(view.id, CircuitsVis.AttentionPattern, {
        attention: props.patterns[chosen],
        tokens: props.tokens,
        maxValue: props.largest,
        minValue: -props.largest,
        positiveColor: props.positive,
        negativeColor: props.negative,
        upperTriColor: "#ededed",
        maskUpperTri: props.causal,
        zoomed: true,
      });
    };
    heads.forEach((head, number) => {
      head.setAttribute("role", "button");
      head.tabIndex = 0;
      head.addEventListener("click", () => choose(number));
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          choose(number);
        }
      });
    });
    Object.assign(zoom, { tabIndex: 0, ariaLabel: "The pattern large; it scrolls where the page is narrow" });
    zoom.setAttribute("role", "group");
    choose(props.first);
    figure.dataset.live = "ready";
  };
  // Fetched when a reader comes near the first view, not before.
  const near = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries)
        if (isIntersecting) {
          near.unobserve(target);
          start(target);
        }
    },
    { rootMargin: "400px" },
  );
  const find = () => {
    for (const numbers of document.querySelectorAll('.ck-attention:not([data-live]) > script[type="application/json"]')) {
      numbers.parentElement.dataset.live = "waiting";
      near.observe(numbers.parentElement);
    }
  };
  find();
  new MutationObserver(find).observe(document.body, { childList: true, subtree: true });
})();
