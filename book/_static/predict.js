/*
 * Predictions: a question with choices, or with a field for a number. The output that answers it waits until the reader has chosen,
 * and so does the text that explains the output. Her choices are kept on this device, and so is the wish to see everything.
 */
(() => {
  const boxes = [...document.querySelectorAll(".ck-predict")];
  const { page, ALL, read, write } = globalThis.circuitKept;

  const button = (words, name, click) => {
    const made = document.createElement("button");
    made.type = "button";
    made.className = name;
    made.append(...words);
    made.addEventListener("click", click);
    return made;
  };
  /** A number as readers write it: 0.3, .3, 30 %, 1,024. */
  const written = (text) => {
    const found = /^([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(%?)$/i.exec(text.trim().replaceAll(",", "").replace("−", "-"));
    return found ? Number(found[1]) / (found[2] ? 100 : 1) : NaN;
  };
  const short = (number) => String(Number(number.toPrecision(3)));
  /** A guess is right if it is off by a tenth at most, and a share also if what is missing to 1 is. */
  const same = (said, number) => {
    const close = (one, other) => Math.abs(one - other) <= 0.1 * Math.abs(other);
    return close(said, number) && (number < 0.9 || number > 1 || close(1 - said, 1 - number) || Math.abs(said - number) <= 0.01);
  };

  /** What waits for a prediction: the folded output after it, and the text from there to the next heading or prediction. */
  const answerOf = (box) => {
    let fold = null;
    const text = [];
    for (let next = box.nextElementSibling; next && !next.matches("section, .ck-predict"); next = next.nextElementSibling) {
      if (fold) text.push(next);
      else if (next.matches(".tag_hide-output")) fold = next.querySelector("details.below-input");
    }
    return { fold, text };
  };

  class Prediction {
    constructor(box, index) {
      this.box = box;
      this.key = `circuitkit:prediction:${page}:${index + 1}`;
      Object.assign(this, JSON.parse(box.querySelector("[data-answer]").dataset.answer), answerOf(box));
      box.querySelector("p").id ||= `prediction-${index + 1}`;
      this.reply = document.createElement("p");
      this.reply.className = "ck-reply";
      this.reply.setAttribute("role", "status");
      this.waiting = document.createElement("p");
      this.waiting.className = "ck-waiting";
      const now = button(["Show the answer"], "ck-link", () => this.show());
      const always = button(["Always show answers"], "ck-link", () => {
        write(ALL, "yes");
        predictions.forEach((one) => one.show());
      });
      this.waiting.append("The answer below waits for your prediction. ", now, " ", always);
      this.list = box.querySelector("ul");
      if (this.list) this.makeChoices();
      else if (this.numbers) this.makeFields();
      else this.makeField();
      box.append(this.reply, this.waiting);
      box.classList.add("ck-live");
      this.fold?.addEventListener("toggle", () => this.fold.open && this.show());
    }

    /** Every choice becomes a button. */
    makeChoices() {
      this.list.setAttribute("aria-labelledby", this.box.querySelector("p").id);
      this.items = [...this.list.children].map((item, place) => {
        const words = [...(item.querySelector("p") ?? item).childNodes];
        const made = button(words, "ck-choice", () => this.say(String(place + 1)));
        item.replaceChildren(made);
        return made;
      });
    }

    makeField() {
      const form = document.createElement("form");
      this.field = document.createElement("input");
      this.field.inputMode = "decimal";
      this.field.size = 8;
      this.field.setAttribute("aria-labelledby", this.box.querySelector("p").id);
      const send = document.createElement("button");
      send.className = "ck-choice";
      send.textContent = "Predict";
      form.append(this.field, " ", send);
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.say(this.field.value);
      });
      this.box.append(form);
    }

    /** A field for each of several numbers. */
    makeFields() {
      const form = document.createElement("form");
      form.className = "ck-fields";
      this.fields = Object.keys(this.numbers).map((name) => {
        const label = document.createElement("label");
        const field = document.createElement("input");
        field.inputMode = "decimal";
        field.size = 5;
        label.append(name, " ", field);
        form.append(label);
        return field;
      });
      const send = document.createElement("button");
      send.className = "ck-choice";
      send.textContent = "Predict";
      form.append(send);
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.say(this.fields.map(({ value }) => value.trim()).join(" "));
      });
      this.box.append(form);
      // What the solution predicts is not what the reader predicts.
      for (let next = this.box.nextElementSibling; next && !next.contains(this.fold); next = next.nextElementSibling)
        next.querySelector(".cell_output")?.classList.add("ck-stored");
      this.entries = [...(this.fold?.querySelectorAll("tbody tr td:nth-of-type(1)") ?? [])];
      this.entries.forEach((entry) => (entry.textContent = "–"));
    }

    /** The reader's prediction; what cannot be read is asked for again. */
    say(said) {
      const done = this.list ? this.choose(Number(said)) : this.numbers ? this.compareAll(said) : this.compare(said);
      if (!done) return;
      write(this.key, said);
      this.show();
    }

    choose(place) {
      const chosen = this.items[place - 1];
      if (!chosen) return false;
      this.items.forEach((item, other) => {
        item.setAttribute("aria-pressed", String(item === chosen));
        item.classList.toggle("ck-model", other === this.right - 1);
      });
      const words = (item) => [...item.cloneNode(true).childNodes];
      this.answer(place === this.right, words(chosen), words(this.items[this.right - 1]));
      return true;
    }

    compare(said) {
      const number = written(said);
      if (Number.isNaN(number)) {
        this.reply.textContent = "Write a number, for example 0.3 or 30%.";
        return false;
      }
      this.field.value = said;
      const model = said.includes("%") ? `${short(100 * this.number)}%` : short(this.number);
      this.answer(same(number, this.number), [said.trim()], [model]);
      return true;
    }

    compareAll(all) {
      const said = all.split(" ");
      const given = said.map(written);
      const right = Object.values(this.numbers);
      if (given.length !== right.length || given.some(Number.isNaN)) {
        this.reply.textContent = "Write a number into each field, for example 0.3 or 30%.";
        return false;
      }
      said.forEach((text, place) => {
        this.fields[place].value = text;
        if (this.entries[place]) this.entries[place].textContent = short(given[place]);
      });
      const close = given.filter((number, place) => Math.abs(number - right[place]) <= 0.1 + 1e-9).length;
      this.reply.textContent = `${close === right.length ? "✓" : "✗"} ${close} of your ${right.length} numbers ${close === 1 ? "is" : "are"} within 0.1 of the measured ones. The table below compares them.`;
      this.reply.classList.toggle("ck-right", close === right.length);
      return true;
    }

    answer(isRight, said, model) {
      const [yours, its] = [said, model].map((words) => {
        const made = document.createElement("strong");
        made.append(...words);
        return made;
      });
      if (isRight) this.reply.replaceChildren("✓ You said ", yours, ", which is right.");
      else this.reply.replaceChildren("✗ You said ", yours, ". The answer is ", its, ".");
      this.reply.classList.toggle("ck-right", isRight);
    }

    show() {
      if (this.fold) this.fold.open = true;
      this.text.forEach((element) => element.classList.remove("ck-waits"));
      this.waiting.hidden = true;
    }

    hold() {
      this.text.forEach((element) => element.classList.add("ck-waits"));
      this.waiting.hidden = false;
    }

    /** As the reader left it; otherwise the answer waits. */
    begin() {
      const before = read(this.key);
      if (before !== null) this.say(before);
      else if (read(ALL)) this.show();
      else this.hold();
    }
  }

  const predictions = boxes.map((box, index) => new Prediction(box, index));
  predictions.forEach((one) => one.begin());
  if (read(ALL) && boxes.length) {
    const again = button(["Hold answers back again"], "ck-link", () => {
      write(ALL, null);
      location.reload();
    });
    boxes[0].append(again);
  }
  // A link into the text that waits shows it.
  const follow = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    predictions.forEach((one) => one.text.some((element) => target && element.contains(target)) && one.show());
  };
  addEventListener("hashchange", follow);
  follow();

  /* On paper everything is there. */
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll(".tag_hide-output details.hide:not([open])")];
    closed.forEach((fold) => (fold.open = true));
  });
  addEventListener("afterprint", () => closed.forEach((fold) => (fold.open = false)));
})();
