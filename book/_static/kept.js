/*
 * What the pages keep on this device for a reader who comes back: her predictions and answers, and the wish to see everything.
 */
(() => {
  const memory = new Map(); // for a browser that keeps nothing
  globalThis.circuitKept = {
    /** The page, as part of a key. */
    page: location.pathname.replace(/.*\/book\//, "").replace(/\.html$/, ""),

    /** Whether the reader wants to see answers at once. */
    ALL: "circuitkit:show-all-outputs",

    read(key) {
      try {
        return localStorage.getItem(key);
      } catch {
        return memory.get(key) ?? null;
      }
    },

    /** Keep a text, or forget it: null. */
    write(key, value) {
      try {
        if (value === null) localStorage.removeItem(key);
        else localStorage.setItem(key, value);
      } catch {
        if (value === null) memory.delete(key);
        else memory.set(key, value);
      }
      dispatchEvent(new CustomEvent("circuitkept", { detail: key }));
    },
  };
})();
