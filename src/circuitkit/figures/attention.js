window.circuitkitAttention ??= function (id, version) {
  const root = document.documentElement.dataset.content_root;
  const source =
    root === undefined
      ? `https://unpkg.com/circuitsvis@${version}/dist/cdn/iife.js`
      : `${root}_static/circuitsvis.js`;
  const load = () =>
    (window.circuitkitScript ??= new Promise((resolve, reject) => {
      const script = Object.assign(document.createElement("script"), { src: source, onload: resolve, onerror: reject });
      document.head.append(script);
    }));
  // The page comes first: the script is 1.3 MB, and the still picture is there already.
  const quiet = () =>
    new Promise((done) => {
      const rest = () => (window.requestIdleCallback ?? setTimeout)(done);
      document.readyState === "complete" ? rest() : addEventListener("load", rest, { once: true });
    });
  const start = async (figure) => {
    try {
      await quiet();
      await load();
    } catch {
      return; // the still pictures and the table remain
    }
    const props = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const zoom = figure.querySelector(".ck-zoom");
    const heads = [...figure.querySelectorAll(".ck-head")];
    const choose = (chosen) => {
      heads.forEach((head, number) => head.setAttribute("aria-pressed", number === chosen));
      const view = Object.assign(document.createElement("div"), { id: `${id}-view`, className: "ck-view" });
      const title = Object.assign(document.createElement("div"), { className: "ck-title" });
      title.textContent = props.names[chosen];
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
    choose(props.first);
    figure.dataset.live = "ready";
  };
  for (const figure of document.querySelectorAll(`[id="${id}"]:not([data-live])`)) {
    figure.dataset.live = "waiting";
    // Fetched when a reader comes near the first view, not before.
    new IntersectionObserver(
      (entries, watcher) => {
        if (entries.some((entry) => entry.isIntersecting)) {
          watcher.disconnect();
          start(figure);
        }
      },
      { rootMargin: "400px" },
    ).observe(figure);
  }
};
