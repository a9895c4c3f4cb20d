/*
 * Short answers on the page: a field below the cell of a check, with the replies of the check in Python
 * (`circuitkit_book/exercises/short_answers.py`). The text after an exercise waits for a right answer, which is kept on this device.
 */
(() => {
  const bytes = (text) => new TextEncoder().encode(text);

  /** A 64-bit FNV-1a hash in two halves, as `mark` in `on_the_page.py`. */
  const mark = (title, text) =>
    [0x811c9dc5, 0x9747b28c]
      .map((start) => {
        let half = start;
        for (const byte of bytes(`${title}\n${text}`)) half = Math.imul(half ^ byte, 0x01000193) >>> 0;
        return half.toString(16).padStart(8, "0");
      })
      .join("");

  /** What `sealed` has closed. */
  const opened = (text, key) => {
    const lock = bytes(key);
    return new TextDecoder().decode(Uint8Array.from(atob(text), (letter, at) => letter.charCodeAt(0) ^ lock[at % lock.length]));
  };

  /** A list of numbers: 0.5, 2/3, -1, 30%, separated by commas or spaces; null if one cannot be read. */
  const numbers = (text) => {
    const read = text
      .replace(/[[\]()]/g, " ")
      .replaceAll("−", "-")
      .trim()
      .split(/\s*,\s*|\s+/)
      .map((word) => {
        const found = /^([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?:\/(\d+\.?\d*))?(%?)$/i.exec(word);
        return found ? (Number(found[1]) / Number(found[2] ?? 1)) * (found[3] ? 0.01 : 1) : NaN;
      });
    return read.some(Number.isNaN) ? null : read;
  };

  /** Whole numbers exactly, others within 1%, or within 0.005 near zero. */
  const agrees = (given, expected) =>
    given.length === expected.length &&
    given.every((number, at) => {
      const other = expected[at];
      if (Number.isInteger(number) && Number.isInteger(other)) return number === other;
      return Math.abs(number - other) <= 0.005 + 0.01 * Math.abs(other);
    });

  const kinds = {
    numbers({ right, hints }, text) {
      const given = numbers(text);
      if (!given) return [false, "Give a number or a list of numbers."];
      if (given.length !== right.length) return [false, `The answer has ${right.length} numbers, and yours has ${given.length}.`];
      if (agrees(given, right)) return [true, ""];
      return [false, hints.filter(([, wrong]) => agrees(given, wrong)).map(([hint]) => hint).join("\n")];
    },
    name({ title, right, hints, unknown }, text) {
      const given = text
        .split("->")
        .map((piece) => piece.trim())
        .join("->");
      const is = mark(title, given);
      return is === right ? [true, ""] : [false, hints[is] ?? unknown.replace("{}", given)];
    },
    word({ title, right, folded, hints, why, almost }, text) {
      const key = text.trim().toLowerCase();
      if (mark(title, text) === right) return [true, opened(why, key)];
      if (mark(title, key) === folded) return [false, opened(almost, key)];
      return [false, hints[mark(title, text.trim())] ?? ""];
    },
  };
  /** Whether an answer is right, and what the reader is told. */
  const judge = (field, text) => kinds[field.kind](field, text);

  if (typeof document === "undefined") {
    globalThis.judgeAnswer = judge;
    return;
  }
  const { page, ALL, read, write } = globalThis.circuitKept;
  document.querySelectorAll(".ck-answer").forEach((box, index) => {
    const data = JSON.parse(box.dataset.field);
    const key = `circuitkit:answer:${page}:${data.title}`;
    const form = document.createElement("form");
    const label = document.createElement("label");
    label.textContent = "Your answer ";
    const input = document.createElement("input");
    input.id = label.htmlFor = `ck-answer-${index + 1}`;
    input.autocomplete = "off";
    input.spellcheck = false;
    const send = document.createElement("button");
    send.textContent = "Check";
    const reply = document.createElement("p");
    reply.className = "ck-reply";
    reply.setAttribute("role", "status");
    // A word may begin with a space, which nobody types into a field without being told.
    const given = () => (data.kind === "word" ? input.value.replace(/^(['"])(.*)\1$/, "$2") : input.value.replace(/["']/g, ""));
    const check = () => {
      const [isRight, text] = judge(data, given());
      reply.textContent = `${isRight ? "✓ Right." : "✗ Not yet."} ${text}`;
      return isRight;
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!input.value.trim()) reply.textContent = "No answer yet.";
      else if (check()) {
        show(true);
        write(key, input.value);
      }
    });
    form.append(label, input, " ", send);
    box.append(form, reply);
    box.previousElementSibling?.querySelector(".cell_output")?.classList.add("ck-stored"); // "No answer yet."
    // The text after the exercise gives the answer, so it waits for it.
    const text = [];
    for (let next = box.nextElementSibling; next && !next.matches("section, .ck-predict"); next = next.nextElementSibling)
      if (!next.matches(".tag_solution, details")) text.push(next); // nor questions of their own
    const waiting = document.createElement("button");
    waiting.type = "button";
    waiting.className = "ck-link";
    waiting.textContent = "Show the text about the answer";
    const show = (shown) => {
      text.forEach((element) => element.classList.toggle("ck-waits", !shown));
      waiting.hidden = shown;
    };
    waiting.addEventListener("click", () => show(true));
    if (text.length) box.append(waiting);
    const follow = () => {
      const target = location.hash && document.getElementById(location.hash.slice(1));
      if (target && text.some((element) => element.contains(target))) show(true);
    };
    addEventListener("hashchange", follow);
    const before = read(key);
    if (before !== null) {
      input.value = before;
      check();
    }
    show(before !== null || Boolean(read(ALL)));
    follow();
  });
})();
