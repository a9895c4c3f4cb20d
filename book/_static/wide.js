/* A formula, a signature or a printed block that is wider than the page says so: a shadow at the end that hides more. */
(() => {
  const boxes = document.querySelectorAll("article div.math, article pre");
  const look = (box) => {
    const more = box.scrollWidth - box.clientWidth;
    box.classList.toggle("ck-more", more > 1 && box.scrollLeft < more - 1);
    box.classList.toggle("ck-less", more > 1 && box.scrollLeft > 1);
    if (more > 1 && !box.hasAttribute("tabindex")) box.tabIndex = 0; // the arrow keys scroll it
  };
  const watcher = new ResizeObserver((entries) => entries.forEach((entry) => look(entry.target.closest("pre, div.math"))));
  boxes.forEach((box) => {
    [box, ...box.children].forEach((element) => watcher.observe(element));
    box.addEventListener("scroll", () => look(box), { passive: true });
  });
  // The child of a formula is there when it is typeset.
  const typeset = new MutationObserver((changes) => changes.forEach(({ target }) => {
    if (target.matches("div.math")) look(target);
  }));
  boxes.forEach((box) => box.matches("div.math") && typeset.observe(box, { childList: true }));
})();
