/* What is wider than its box fades at the end that hides more, and takes the arrow keys. */
(() => {
  const boxes = document.querySelectorAll(
    "article div.math, article pre, .cell_output > .output, .pst-scrollable-table-container, .ck-pan, .ck-scroll, .ck-zoom, .ck-table",
  );
  const look = (box) => {
    const more = box.scrollWidth - box.clientWidth;
    box.classList.toggle("ck-more", more > 1 && box.scrollLeft < more - 1);
    box.classList.toggle("ck-less", more > 1 && box.scrollLeft > 1);
    if (more > 1 && !box.hasAttribute("tabindex")) box.tabIndex = 0;
  };
  // What is far from the window is not laid out and not asked; it is when a reader comes near.
  const watcher = new ResizeObserver((entries) => entries.forEach(({ target }) => look(target.matches("mjx-container") ? target.parentElement : target)));
  // The child of a formula is there when it is typeset.
  const typeset = new MutationObserver((changes) => changes.forEach(({ target }) => {
    if (!target.matches("div.math")) return;
    [...target.children].forEach((child) => watcher.observe(child));
    look(target);
  }));
  boxes.forEach((box) => {
    watcher.observe(box);
    box.addEventListener("scroll", () => look(box), { passive: true });
    if (box.matches("div.math")) typeset.observe(box, { childList: true });
  });
})();
