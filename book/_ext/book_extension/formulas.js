/*
 * Formulas are typeset when a reader comes near them: MathJax arrives with the first of them that is in the window, or with
 * the reader's first move; those near the window come at once and the rest in idle moments, so that the page answers meanwhile.
 * Until then a formula is hidden: it is typeset before it comes into the window, so nothing moves that a reader sees.
 */
(() => {
  const formulas = [...document.querySelectorAll(".math")];
  if (!formulas.length) return;
  const here = document.currentScript?.src ?? "";
  const signs = ["scroll", "wheel", "touchstart", "pointermove", "pointerdown", "keydown", "beforeprint"];
  const parts = ["startup", "core", "input/tex", "output/chtml", "output/chtml/fonts/tex", "a11y/assistive-mml"];
  const patience = 15_000; // of a reader who does nothing
  let arrived = () => {};
  const all = new Promise((done) => (arrived = done));
  const show = (some) => some.forEach((formula) => formula.classList.add("ck-set"));
  const idle = () =>
    new Promise((done) => (window.requestIdleCallback ? requestIdleCallback(done, { timeout: 500 }) : setTimeout(done, 50)));

  async function pageReady() {
    await MathJax.startup.defaultPageReady();
    const waiting = new Set(formulas);
    let last = Promise.resolve();
    const typeset = (some) => {
      const chosen = some.filter((formula) => waiting.delete(formula));
      if (!chosen.length) return last;
      return (last = last.then(() => MathJax.typesetPromise(chosen)).finally(() => show(chosen)));
    };
    const watcher = new IntersectionObserver(
      (entries) => typeset(entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target)),
      { rootMargin: "600px" },
    );
    waiting.forEach((formula) => watcher.observe(formula));
    addEventListener("beforeprint", () => {
      const chosen = [...waiting].filter((formula) => waiting.delete(formula));
      MathJax.typeset(chosen);
      show(chosen);
    });
    await idle();
    while (waiting.size) {
      await idle();
      await typeset([...waiting].slice(0, 2));
    }
    await last;
    watcher.disconnect();
    arrived();
  }

  // What waits for the formulas waits for this, and asking for it brings them.
  const startup = { typeset: false, pageReady };
  const loader = { ready() {} }; // not when its first part is there but when the last is
  Object.defineProperty(startup, "promise", { configurable: true, get: () => (begin(), all), set: () => {} });
  window.MathJax = { ...window.MathJax, startup, loader };

  let begun = false;
  let missing = false;
  /** @param {Event} [sign]  a list of contents that scrolls to its place is no reader */
  function begin(sign) {
    if (begun || (sign?.type === "scroll" && sign.target !== document)) return;
    begun = true;
    watcher.disconnect();
    signs.forEach((kind) => removeEventListener(kind, begin, true));
    // Each part is a script of its own, so that a slow processor answers the reader between two of them.
    for (const part of parts)
      document.head.append(Object.assign(document.createElement("script"), {
        src: here.replace("tex-chtml", part),
        async: false, // in their order
        onload: () => part === parts.at(-1) && !missing && start(),
        onerror: () => ((missing = true), show(formulas)), // TeX is better than nothing
      }));
  }
  function start() {
    MathJax.loader.preLoad("loader", ...parts.map((part) => (part.includes("fonts") ? `${part}.js` : part)));
    MathJax.loader.defaultReady();
  }
  const watcher = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && begin());
  formulas.forEach((formula) => watcher.observe(formula));
  signs.forEach((kind) => addEventListener(kind, begin, { capture: true, passive: true }));
  addEventListener("load", () => setTimeout(() => begin(), patience));
  if (location.hash) begin();
})();
