// The race: lanes on one axis, the moment that is shown, and how it is played.

const DURATIONS = [["real", "as measured"], ["4", "slowest in 4 s"], ["8", "slowest in 8 s"], ["16", "slowest in 16 s"], ["40", "slowest in 40 s"]];
const USUAL = "8"; // seconds
const PLAY = "▶ Play";
const PAUSE = "❚❚ Pause";

class Race {
  constructor() {
    this.lanes = []; // shown lanes, including failed ones
    this.racing = []; // shown lanes that did not fail
    this.baseline = null;
    this.unit = "time"; // chosen unit; `axis` is the unit in use
    this.axis = "time";
    this.at = 0;
    this.limit = 1;
    this.playing = false;
    const option = ([value, text]) => el("option", { value }, text);
    this.button = el("button", { type: "button", id: "play", class: "play", onclick: () => this.toggle() }, PLAY);
    this.slider = el("input", { type: "range", id: "at", min: 0, max: 1000, step: 1, ariaLabel: "Moment" });
    this.moment = el("span", { class: "moment" });
    this.speed = el("select", { id: "speed", ariaLabel: "Speed" }, ...DURATIONS.map(option));
    this.speed.value = USUAL;
    this.units = el("select", { id: "unit", ariaLabel: "Race by" }, ...[["time", "race by time"], ["calls", "race by target calls"]].map(option));
    this.pace = el("span", { class: "soft pace" });
    this.board = el("div", { class: "race" });
    this.cards = el("div", { class: "cards" });
    this.listen();
  }

  listen() {
    this.speed.addEventListener("change", () => this.showPace());
    this.units.addEventListener("change", () => this.race(this.units.value));
    this.slider.addEventListener("input", () => this.seek((this.slider.value / 1000) * this.limit));
    for (const name of ["pointerdown", "pointermove"]) {
      this.board.addEventListener(name, (event) => event.buttons === 1 && this.scrub(event));
    }
    for (const area of [this.cards, this.board]) {
      area.addEventListener("pointerover", (event) => this.point(event.target));
      area.addEventListener("pointerleave", () => this.point(null));
    }
    this.cards.addEventListener("click", (event) => {
      const place = this.stepAt(event.target);
      if (place && !String(getSelection())) this.seek(place.lane.ends[place.number]);
    });
  }

  // ------------------------------------------------------------ lanes on an axis

  /** Race by time or by target calls. */
  race(unit) {
    this.unit = unit;
    this.arrange(this.lanes, this.baseline, true);
  }

  /** Lay lanes out on one axis; `ended` shows their end, otherwise the moment stays. */
  arrange(lanes, baseline, ended) {
    this.pause();
    this.lanes = lanes;
    this.baseline = baseline;
    this.racing = lanes.filter((lane) => !lane.answer.error);
    const timed = this.racing.every((lane) => lane.answer.ended);
    this.axis = timed ? this.unit : "calls";
    this.units.value = this.axis;
    this.units.disabled = !timed;
    const most = Math.max(1, ...this.racing.flatMap((lane) => lane.answer.emitted));
    for (const lane of this.racing) placeOnAxis(lane, this.axis, most);
    if (baseline) placeOnAxis(baseline, this.axis, most);
    this.limit = Math.max(1, ...this.racing.map((lane) => lane.total));
    this.lay();
    this.showPace();
    this.seek(ended ? this.limit : this.at);
    if (ended) for (const lane of lanes) lane.text.scrollTop = 0;
  }

  lay() {
    const drafts = this.racing.some((lane) => lane.answer.draft) ? "draft calls" : "";
    const times = this.baseline ? `× ${this.baseline.decoder.name}` : "";
    const heads = { name: "", track: "", tokens: "tokens", calls: "calls", drafts, ms: "ms", times };
    this.board.classList.toggle("drafting", drafts !== "");
    const rows = [Object.entries(heads).map(([place, text]) => el("span", { class: `head ${place}` }, text))];
    for (const lane of this.lanes) {
      lane.shown = -1;
      lane.note.textContent = lane.answer.error ? "" : comparison(lane, this.baseline);
      if (lane.answer.error) lane.track.replaceChildren(el("span", { class: "bad" }, "failed"));
      else drawTrack(lane, this.limit);
      rows.push([lane.name, lane.track, ...Object.values(lane.cells)]);
    }
    rows.forEach((row, i) => row.forEach((cell) => cell.style.setProperty("--row", i + 1)));
    this.board.replaceChildren(...rows.flat());
    this.cards.replaceChildren(...this.lanes.map((lane) => lane.card));
  }

  // ------------------------------------------------------------ the moment

  seek(at) {
    this.at = Math.min(Math.max(at, 0), this.limit);
    this.slider.value = Math.round((1000 * this.at) / this.limit);
    const text = this.axis === "time" ? milliseconds : (calls) => plural(Math.floor(calls), "call");
    this.moment.textContent = `${text(this.at)} of ${text(this.limit)}`;
    for (const lane of this.racing) showAt(lane, this.at, this.limit, this.axis, this.baseline);
  }

  /** Go to the previous or next end of a step, of any decoder. */
  jump(by) {
    this.pause();
    const ends = this.racing.flatMap((lane) => lane.ends);
    const beyond = ends.filter((end) => (by > 0 ? end > this.at : end < this.at));
    if (beyond.length) this.seek(by > 0 ? Math.min(...beyond) : Math.max(...beyond));
    else this.seek(by > 0 ? this.limit : 0);
  }

  scrub(event) {
    const track = event.target.closest(".track:not(.head)");
    if (!track) return;
    const { left, width } = track.getBoundingClientRect();
    this.pause();
    this.seek(((event.clientX - left) / width) * this.limit);
  }

  // ------------------------------------------------------------ playing

  /** Units of the axis per second of playing. */
  get rate() {
    if (this.speed.value === "real" && this.axis === "time") return 1e6;
    return this.limit / Number(this.speed.value === "real" ? USUAL : this.speed.value);
  }

  showPace() {
    const slower = 1e6 / this.rate;
    let text = "at the measured speed";
    if (slower > 1.05) text = `${slower.toFixed(slower < 10 ? 1 : 0)} times slower than measured`;
    if (slower < 0.95) text = `${(1 / slower).toFixed(1)} times faster than measured`;
    this.pace.textContent = this.axis === "time" ? text : "";
  }

  faster(by) {
    const last = DURATIONS.length - 1;
    this.speed.selectedIndex = Math.min(Math.max(this.speed.selectedIndex - by, 0), last);
    this.showPace();
  }

  toggle() {
    if (this.playing) {
      this.pause();
      return;
    }
    if (!this.racing.length) return;
    if (this.at >= this.limit) this.seek(0);
    this.playing = true;
    this.button.textContent = PAUSE;
    let before = null;
    const frame = (now) => {
      if (!this.playing) return;
      this.seek(this.at + (before === null ? 0 : (now - before) / 1000) * this.rate);
      before = now;
      if (this.at >= this.limit) this.pause();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  pause() {
    this.playing = false;
    this.button.textContent = PLAY;
  }

  // ------------------------------------------------------------ pointing

  stepAt(target) {
    const node = target?.closest?.("[data-step]");
    const lane = node && this.racing.find((each) => each.card.contains(node) || each.track.contains(node));
    return lane ? { lane, number: Number(node.dataset.step) } : null;
  }

  point(target) {
    const place = this.stepAt(target);
    for (const lane of this.racing) light(lane, place?.lane === lane ? place.number : null);
  }
}
