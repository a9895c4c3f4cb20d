/* The search in the gallery of reports: rows that contain every word. Without this script the page shows every row. */
(() => {
  const form = document.getElementById("ck-find");
  if (!form) return;
  const rows = [...document.querySelectorAll(".ck-found tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const show = () => {
    const wanted = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = texts.map((text) => wanted.every((word) => text.includes(word)));
    rows.forEach((row, i) => (row.hidden = !fits[i]));
    const shown = fits.filter(Boolean).length;
    form.querySelector("output").textContent = `${shown} of ${rows.length} lines`;
  };
  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
