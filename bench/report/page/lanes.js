// A lane of the race: one decoder's answer, its steps as blocks along the axis and as text.

const NUM_COLOURS = 6; // of steps, in turn; see viewer.css
const TRACK = { width: 1000, height: 34 };
const SVG = "http://www.w3.org/2000/svg";

function plural(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

/** Format microseconds as milliseconds. */
function milliseconds(us) {
  const ms = us / 1000;
  return `${ms.toFixed(ms < 100 ? 1 : 0)} ms`;
}

/** Cumulative sums of numbers. */
function running(numbers) {
  let sum = 0;
  return numbers.map((number) => (sum += number));
}

/** The steps of an answer, each with its tokens' positions and the calls and time spent until its end. */
function stepsOf(answer) {
  const tokens = running(answer.emitted);
  const calls = running(answer.calls);
  const drafts = answer.draft ? running(answer.draft) : null;
  const ends = answer.ended ? running(answer.ended) : null;
  return answer.emitted.map((emitted, i) => ({
    number: i,
    emitted,
    from: tokens[i] - emitted,
    tokens: tokens[i],
    calls: calls[i],
    ownCalls: answer.calls[i],
    draftCalls: drafts ? drafts[i] : 0,
    ownDraftCalls: answer.draft ? answer.draft[i] : 0,
    end: ends ? ends[i] : null,
    drafted: answer.drafted ? answer.drafted[i] : 0,
    accepted: answer.accepted ? answer.accepted[i] : 0,
    depth: answer.depth ? answer.depth[i] : 0,
    by: answer.by ? answer.by[i] : "",
    undrafted: answer.undrafted ? answer.undrafted[i] : 0,
    rejected: answer.rejected ? answer.rejected[i] : [],
    decided: answer.decided ? answer.decided[i] : [],
  }));
}

/** Describe a step in words. */
function describe(lane, step) {
  const parts = [step.number ? `step ${step.number} of ${lane.steps.length - 1}` : "prefill", plural(step.emitted, "token")];
  if (step.drafted) {
    const fell = step.drafted - step.accepted;
    parts.push(`${step.accepted} of ${plural(step.drafted, "draft")} accepted${step.by ? ` (${step.by})` : ""}`);
    // of a tree, only the rejected drafts of the branch where verification stopped are recorded
    const untold = step.depth && step.depth < step.drafted ? 0 : fell - step.rejected.length;
    const isLast = step.number === lane.steps.length - 1;
    if (untold > 0) parts.push(isLast && lane.answer.rejected ? `${untold} past the answer's end` : `${untold} rejected drafts not recorded`);
  }
  const passes = Math.max(0, ...step.decided);
  if (passes > 1) parts.push(`decided in up to ${passes} passes`);
  parts.push(plural(step.ownCalls, "call"));
  if (step.ownDraftCalls) parts.push(plural(step.ownDraftCalls, "draft call"));
  if (step.end !== null) parts.push(milliseconds(step.end));
  return parts.join(" · ");
}

function colourClass(step) {
  return step.number ? `c${step.number % NUM_COLOURS}` : "prefill";
}

/** The tokens of a step: undrafted ones, accepted drafts, rejected drafts, the target's own token. */
function stepNode(lane, step, pieces) {
  const piece = (id) => pieces[id] || `⟨${id}⟩`;
  const node = el("span", { class: `step ${colourClass(step)}` });
  node.dataset.step = step.number;
  const firstDraft = step.undrafted;
  const lastDraft = firstDraft + step.accepted;
  const fallen = step.rejected.map((id) => el("del", {}, piece(id).replaceAll("\n", "↵")));
  lane.answer.tokens.slice(step.from, step.tokens).forEach((id, i) => {
    if (i === lastDraft) node.append(...fallen);
    const token = el("span", { class: i >= firstDraft && i < lastDraft ? "token drafted" : "token" }, piece(id));
    if (step.decided[i] > 1) {
      token.classList.add("refined");
      token.dataset.pass = step.decided[i];
    }
    node.append(token);
  });
  if (lastDraft >= step.emitted) node.append(...fallen);
  return node;
}

/** Index of a lane's first token that differs from the baseline's; -1 if none differs. */
function divergence(tokens, baseline) {
  const longest = Math.max(tokens.length, baseline.length);
  for (let i = 0; i < longest; i++) if (tokens[i] !== baseline[i]) return i;
  return -1;
}

function comparison(lane, baseline) {
  if (!baseline || baseline === lane) return "";
  const place = divergence(lane.answer.tokens, baseline.answer.tokens);
  const name = baseline.decoder.name;
  return place < 0 ? `identical to ${name}` : `first differs from ${name} at token ${place + 1}`;
}

/** A lane with its nodes, not yet in the page: a row of the race and a card of text. */
function makeLane(answer, decoder, pieces) {
  const lane = { answer, decoder, steps: answer.error ? [] : stepsOf(answer), shown: -1 };
  lane.name = el("span", { class: "name" }, el("i", { class: "dot", style: { background: decoder.colour } }), decoder.name);
  lane.cells = Object.fromEntries(["tokens", "calls", "drafts", "ms", "times"].map((name) => [name, el("span", { class: `cell ${name}` })]));
  lane.veil = el("div", { class: "veil" });
  lane.track = el("div", { class: "track" }, lane.veil);
  lane.note = el("span", { class: "soft note" });
  lane.info = el("p", { class: "info soft" });
  lane.text = el("div", { class: "text", tabIndex: -1 });
  const promise = decoder.guarantee ?? "guarantee unknown";
  const tag = promise === "none" ? "lossy" : promise;
  lane.card = el(
    "article",
    { class: "card" },
    el("h3", {}, lane.name.cloneNode(true), el("span", { class: `tag${promise === "WRONG" ? " bad" : ""}`, title: `guarantee: ${promise}` }, tag), lane.note),
    lane.text,
    lane.info,
  );
  if (answer.error) {
    lane.text.append(el("span", { class: "bad" }, answer.error));
  } else {
    lane.nodes = lane.steps.map((step) => stepNode(lane, step, pieces));
    lane.text.append(...lane.nodes);
  }
  return lane;
}

/** Place a lane on an axis: `unit` is `time` or `calls`; a step of `most` tokens has the highest block. */
function placeOnAxis(lane, unit, most) {
  lane.ends = lane.steps.map((step) => (unit === "time" ? step.end : step.calls));
  lane.total = unit === "time" ? lane.answer.total : lane.ends.at(-1);
  lane.most = most;
}

/** Draw a lane's blocks: wider for longer steps, higher for more tokens. */
function drawTrack(lane, limit) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", `0 0 ${TRACK.width} ${TRACK.height}`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  lane.blocks = lane.steps.map((step, i) => {
    const block = document.createElementNS(SVG, "rect");
    const x = (TRACK.width * (i ? lane.ends[i - 1] : 0)) / limit;
    const height = step.emitted ? Math.max(4, TRACK.height * Math.sqrt(step.emitted / lane.most)) : 2;
    const size = { x, y: TRACK.height - height, width: (TRACK.width * lane.ends[i]) / limit - x, height };
    for (const [name, value] of Object.entries(size)) block.setAttribute(name, value.toFixed(2));
    block.setAttribute("class", colourClass(step));
    block.dataset.step = step.number;
    drawing.append(block);
    return block;
  });
  const finish = el("div", { class: "finish", style: { left: `${(100 * lane.total) / limit}%` } });
  lane.track.replaceChildren(drawing, finish, lane.veil);
}

/** Number of steps of a lane that have ended at a moment. */
function endedBy(lane, at) {
  let low = 0;
  let high = lane.ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.ends[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Show a lane at a moment: its text, its counts, and the veil over later steps. */
function showAt(lane, at, limit, unit, baseline) {
  if (lane.answer.error) return;
  const num = endedBy(lane, at);
  const done = at >= lane.total;
  if (num !== lane.shown) {
    lane.nodes.forEach((node, i) => node.classList.toggle("todo", i >= num));
    const step = lane.steps[num - 1];
    lane.cells.tokens.textContent = `${step ? step.tokens : 0}/${lane.answer.tokens.length}`;
    lane.cells.calls.textContent = step ? step.calls : 0;
    lane.cells.drafts.textContent = lane.answer.draft ? (step ? step.draftCalls : 0) : "";
    lane.shown = num;
    lane.info.textContent = step ? describe(lane, step) : "not started";
    if (step) follow(lane, lane.nodes[num - 1]);
  }
  lane.cells.ms.textContent = spentBy(lane, at, num, unit);
  lane.cells.times.textContent = done ? timesAsFast(lane, baseline) : "";
  lane.card.classList.toggle("done", done);
  lane.veil.style.left = `${(100 * Math.min(at, limit)) / limit}%`;
}

/** Milliseconds that a lane has spent, without the unit; on an axis of calls, until its last ended step. */
function spentBy(lane, at, num, unit) {
  if (!lane.answer.ended) return "-";
  const us = unit === "time" ? Math.min(at, lane.total) : num ? lane.steps[num - 1].end : 0;
  return milliseconds(us).replace(" ms", "");
}

/** Speed-up per token over the baseline, on the current axis. */
function timesAsFast(lane, baseline) {
  if (!baseline) return "";
  const each = (one) => one.total / one.answer.tokens.length;
  return `${(each(baseline) / each(lane)).toFixed(2)}×`;
}

/** Keep the newest text in sight, within its own card. */
function follow(lane, node) {
  const bottom = node.offsetTop + node.offsetHeight;
  const { scrollTop, clientHeight } = lane.text;
  if (bottom > scrollTop + clientHeight || bottom < scrollTop) lane.text.scrollTop = bottom - clientHeight;
}

/** Highlight one step, in the text and on the track. */
function light(lane, number) {
  for (const lit of lane.card.querySelectorAll(".lit")) lit.classList.remove("lit");
  for (const lit of lane.track.querySelectorAll(".lit")) lit.classList.remove("lit");
  const step = lane.steps[number ?? lane.shown - 1];
  lane.info.textContent = step ? describe(lane, step) : "not started";
  if (number === null) return;
  lane.nodes[number].classList.add("lit");
  lane.blocks[number].classList.add("lit");
}
