// The step viewer: choice of prompt and decoders, and the keys.

const MOST_AT_FIRST = 6; // decoders shown at first
const KEYS = [
  [["Space"], "play or pause"],
  [["←", "→"], "to the previous or next end of a step, of any decoder"],
  [["Home", "End"], "to the start, to the end"],
  [["↑", "↓"], "previous or next prompt"],
  [["+", "-"], "faster or slower"],
  [["1", "…", "9"], "show or hide a decoder"],
  [["C"], "race by time or by target calls"],
  [["R"], "show or hide rejected drafts"],
  [["/"], "search; Enter goes back"],
];

class Viewer {
  constructor(stage, index, pieces) {
    this.stage = stage;
    this.index = index;
    this.pieces = pieces;
    this.hidden = new Set([...index.decoders.keys()].filter((i) => i >= MOST_AT_FIRST));
    this.race = new Race();
    this.lanes = [];
    this.matches = [];
    this.chosen = -1; // the last requested prompt; answers that arrive late for an earlier one are dropped
    this.build();
    this.stage.addEventListener("keydown", (event) => this.key(event));
  }

  // ------------------------------------------------------------ nodes of the page

  build() {
    const { index, race, stage } = this;
    const families = [...new Set(index.prompts.map((prompt) => prompt.family))];
    const options = [["", "all families"], ...families.map((family) => [family, family.replaceAll("_", " ")])];
    this.family = el("select", { id: "family", ariaLabel: "Family", onchange: () => this.filter() }, ...options.map(([value, text]) => el("option", { value }, text)));
    this.search = el("input", { id: "search", type: "search", placeholder: "search prompts", ariaLabel: "Search prompts", autocomplete: "off", oninput: () => this.filter() });
    this.prompt = el("select", { id: "prompt", ariaLabel: "Prompt", onchange: () => this.open(Number(this.prompt.value)) });
    this.count = el("span", { class: "soft count", role: "status" });
    this.chips = index.decoders.map((decoder, i) => this.chip(decoder, i));
    this.unshown = el("span", { class: "soft count", role: "status" });
    this.nothing = el("p", { class: "nothing", role: "status" });
    this.asked = el("div", { class: "asked" });
    this.rejected = el("input", { type: "checkbox", id: "rejected", checked: true, onchange: () => this.strike() });
    this.body = el(
      "div",
      {},
      el("details", { class: "prompt" }, el("summary", {}, "Prompt"), this.asked),
      el("div", { class: "controls" }, race.button, race.slider, race.moment, race.speed, race.units, race.pace),
      race.board,
      legend(),
      race.cards,
    );
    const turn = (text, label, by) => el("button", { type: "button", ariaLabel: label, title: label, onclick: () => this.turn(by) }, text);
    stage.tabIndex = 0;
    stage.setAttribute("role", "group");
    stage.setAttribute("aria-label", "Step viewer");
    stage.append(
      el("div", { class: "controls" }, this.family, this.search, el("div", { class: "turn" }, turn("‹", "previous prompt", -1), this.prompt, turn("›", "next prompt", 1)), this.count),
      el("div", { class: "controls" }, ...this.chips, el("label", { class: "chip plain" }, this.rejected, "rejected drafts"), this.unshown),
      this.nothing,
      this.body,
      keys(),
    );
  }

  chip(decoder, i) {
    const box = el("input", { type: "checkbox", checked: !this.hidden.has(i), onchange: () => this.choose(i, box.checked) });
    return el("label", { class: "chip" }, box, el("i", { class: "dot", style: { background: decoder.colour } }), decoder.name);
  }

  // ------------------------------------------------------------ which prompt

  /** List the prompts of the chosen family that contain every word of the search. */
  async filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = ({ name, family, text }) => {
      if (this.family.value && family !== this.family.value) return false;
      const all = `${name} ${family} ${text ?? ""}`.toLowerCase();
      return words.every((word) => all.includes(word));
    };
    const { prompts } = this.index;
    this.matches = [...prompts.keys()].filter((i) => fits(prompts[i]));
    this.prompt.replaceChildren(...this.matches.map((i) => el("option", { value: i }, label(prompts[i]))));
    this.count.textContent = this.matches.length ? `${this.matches.length} of ${plural(prompts.length, "prompt")}` : "no prompt matches";
    if (this.matches.length) await this.open(this.matches.includes(this.chosen) ? this.chosen : this.matches[0]);
    else this.empty();
  }

  /** Show no answers, because those of the previous prompt do not match the search. */
  empty() {
    this.chosen = -1;
    this.lanes = [];
    this.arrange(true);
  }

  turn(by) {
    const next = this.matches[this.matches.indexOf(this.chosen) + by];
    if (next !== undefined) this.open(next);
  }

  /** Unpack the answers to a prompt and show their end. */
  async open(i) {
    this.prompt.value = i;
    if (this.chosen === i) return;
    this.chosen = i;
    this.race.pause();
    const answers = await unpack(i);
    if (this.chosen !== i) return;
    const { text, repeat } = this.index.prompts[i];
    this.asked.textContent = text ?? "The run did not keep the texts of its prompts.";
    this.asked.title = `repeat ${repeat}`;
    this.lanes = answers.map((answer) => makeLane(answer, this.index.decoders[answer.d], this.pieces));
    this.arrange(true);
  }

  // ------------------------------------------------------------ which decoders

  choose(i, shown) {
    if (shown) this.hidden.delete(i);
    else this.hidden.add(i);
    this.chips[i].querySelector("input").checked = shown;
    this.arrange(this.race.at >= this.race.limit);
  }

  /** Show or hide rejected drafts. */
  strike() {
    this.stage.classList.toggle("unstruck", !this.rejected.checked);
  }

  arrange(ended) {
    const shown = this.lanes.filter((lane) => !this.hidden.has(lane.answer.d));
    const baseline = this.lanes.find((lane) => lane.answer.d === 0 && !lane.answer.error);
    const unshown = this.index.decoders.filter((_, i) => this.hidden.has(i)).map(({ name }) => name);
    this.unshown.textContent = unshown.length ? `not shown: ${unshown.join(", ")}` : "";
    this.nothing.textContent = this.missing(shown);
    this.body.hidden = this.nothing.textContent !== "";
    this.race.arrange(shown, baseline ?? null, ended);
  }

  /** Why nothing is shown, and what to do; empty if something is shown. */
  missing(shown) {
    if (!this.matches.length) return "No prompt matches: clear the search, or choose all families.";
    if (shown.length) return "";
    return this.hidden.size < this.index.decoders.length ? "No chosen decoder answered this prompt: tick another above." : "No decoder is chosen: tick one above.";
  }

  // ------------------------------------------------------------ keys

  key(event) {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target === this.search) {
      if (key === "Enter" || key === "Escape") this.stage.focus();
      return;
    }
    const isPress = key === " " || key === "Enter";
    if (isPress && target.closest("button, summary, input[type=checkbox], select")) return;
    if (target.tagName === "SELECT" && (key.startsWith("Arrow") || key.length === 1)) return;
    const action = this.action(key);
    if (!action) return;
    event.preventDefault();
    action();
  }

  action(key) {
    const { race } = this;
    const number = Number(key) - 1;
    if (key !== " " && this.chips[number]) return () => this.choose(number, this.hidden.has(number));
    return {
      " ": () => race.toggle(),
      ArrowLeft: () => race.jump(-1),
      ArrowRight: () => race.jump(1),
      Home: () => race.seek(0),
      End: () => race.seek(race.limit),
      ArrowUp: () => this.turn(-1),
      ArrowDown: () => this.turn(1),
      "+": () => race.faster(1),
      "-": () => race.faster(-1),
      c: () => race.race(race.unit === "time" ? "calls" : "time"),
      r: () => this.rejected.click(),
      "/": () => this.search.focus(),
    }[key];
  }
}

/** A prompt's label in the list: its name and the start of its text. */
function label({ name, text }) {
  const start = (text ?? "").trim().replace(/\s+/g, " ").slice(0, 80);
  return start ? `${name}: ${start}` : name;
}

function legend() {
  const token = (name, step) => el("span", { class: `step ${step}` }, el("span", { class: `token ${name}` }, "token"));
  const refined = token("refined", "c4");
  refined.firstChild.dataset.pass = 2;
  const samples = [
    [token("", "prefill"), " prefill"],
    [token("", "c1"), token("", "c2"), token("", "c3"), " one step each"],
    [token("drafted", "c1"), " accepted draft"],
    [el("del", {}, "token"), " rejected draft"],
    [refined, " decided in pass 2 of its block"],
    ["bars: wider for longer steps, higher for more tokens"],
  ];
  return el("p", { class: "legend soft" }, ...samples.map((sample) => el("span", {}, ...sample)));
}

function keys() {
  const rows = KEYS.flatMap(([names, what]) => [
    el("dt", {}, ...names.flatMap((name) => [name === "…" ? name : el("kbd", {}, name), " "])),
    el("dd", {}, what),
  ]);
  const where = "Keys work while the viewer has the focus: click into it, or reach it with Tab.";
  return el("details", { class: "keys" }, el("summary", {}, "Keys"), el("p", { class: "soft" }, where), el("dl", {}, ...rows));
}
