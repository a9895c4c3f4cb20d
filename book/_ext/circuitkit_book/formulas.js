/* Typeset the formulas near the window at once and the rest in idle moments, so that the page answers meanwhile. */
window.MathJax = window.MathJax || {};
MathJax.startup = {
  typeset: false,
  pageReady: async () => {
    await MathJax.startup.defaultPageReady();
    const waiting = new Set(document.querySelectorAll(".math"));
    let last = Promise.resolve();
    const typeset = (formulas) => {
      const chosen = formulas.filter((formula) => waiting.delete(formula));
      return chosen.length ? (last = last.then(() => MathJax.typesetPromise(chosen))) : last;
    };
    const watcher = new IntersectionObserver(
      (entries) => typeset(entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target)),
      { rootMargin: "600px" },
    );
    waiting.forEach((formula) => watcher.observe(formula));
    addEventListener("beforeprint", () => MathJax.typeset([...waiting].filter((formula) => waiting.delete(formula))));
    const idle = () =>
      new Promise((done) => (window.requestIdleCallback ? requestIdleCallback(done, { timeout: 500 }) : setTimeout(done, 50)));
    await idle();
    while (waiting.size) {
      await idle();
      await typeset([...waiting].slice(0, 2));
    }
    await last;
    watcher.disconnect();
  },
};
