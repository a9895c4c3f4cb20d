/* Paper is light. */
(() => {
  const { dataset } = document.documentElement;
  let theme;
  addEventListener("beforeprint", () => {
    theme = dataset.theme;
    dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    if (theme) dataset.theme = theme;
  });
})();

/* What a link led to stays in view while formulas and pictures above it take their room, until the reader moves. */
(() => {
  let leave = () => {};
  const stand = (hash) => {
    leave();
    let name = hash.slice(1);
    try {
      name = decodeURIComponent(name);
    } catch {
      /* an address that somebody has cut off */
    }
    const target = document.getElementById(name);
    if (!target) return;
    for (let fold; (fold = target.closest("details:not([open])")); ) fold.open = true;
    const block = target.matches(".ck-claim") ? "center" : "start";
    const place = () => target.scrollIntoView({ block, behavior: "instant" });
    const watcher = new ResizeObserver(place);
    const moved = ["wheel", "touchmove", "pointerdown", "keydown"];
    leave = () => {
      watcher.disconnect();
      moved.forEach((kind) => removeEventListener(kind, leave, true));
    };
    moved.forEach((kind) => addEventListener(kind, leave, true));
    watcher.observe(document.querySelector("article") ?? document.body);
    place();
    requestAnimationFrame(() => requestAnimationFrame(place)); // what was far is laid out now that it is near
  };
  // After a click the browser changes the address first; going back is left to the browser, which knows where she was.
  addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href*='#']");
    if (link?.hash && link.pathname === location.pathname && !event.defaultPrevented) setTimeout(() => stand(link.hash));
  });
  if (performance.getEntriesByType("navigation")[0]?.type !== "back_forward") stand(location.hash);
})();
