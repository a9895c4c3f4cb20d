/* Escape hides the definition that is shown, until the pointer or the focus goes elsewhere. */
(() => {
  const hidden = "ck-hidden";
  const show = (event) => event.target.closest?.(".ck-gloss")?.classList.remove(hidden);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    document.querySelectorAll(".ck-gloss:hover, .ck-gloss:focus-within").forEach((term) => term.classList.add(hidden));
  });
  document.addEventListener("focusout", show);
  document.addEventListener("mouseout", (event) => {
    const term = event.target.closest?.(".ck-gloss");
    if (term && !term.contains(event.relatedTarget)) term.classList.remove(hidden);
  });
})();
