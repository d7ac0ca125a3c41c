// Tables: headings sort, and buttons copy the table as CSV, LaTeX or Markdown.

const UNKNOWN = "-";
const INTERVAL = /^(.*?) \[(.*), (.*)\]$/;
const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };

/** The text of a cell in one line. */
function cellText(cell) {
  return cell.textContent.replace(/\s+/g, " ").trim();
}

/** The number at the start of a text, NaN if there is none. */
function leading(text) {
  const number = text.replaceAll(",", "").match(/^[-+−]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?/i);
  return number ? Number(number[0].replace("−", "-")) : NaN;
}

/** Compare two texts; unknown values are last in both directions. */
function compareCells(a, b, numeric, down) {
  if (a === UNKNOWN || b === UNKNOWN) return (a === UNKNOWN) - (b === UNKNOWN);
  const order = numeric ? leading(a) - leading(b) : a.localeCompare(b, "en", { numeric: true });
  return down ? -order : order;
}

/** Sort by a column: numbers descending, then ascending, then unsorted; texts ascending first. */
function sortBy(table, column, original) {
  const heading = table.tHead.rows[0].cells[column];
  const texts = new Map(original.map((row) => [row, cellText(row.cells[column])]));
  const known = [...texts.values()].filter((text) => text !== UNKNOWN);
  const numeric = known.length > 0 && known.every((text) => !Number.isNaN(leading(text)));
  const turns = numeric ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
  const next = turns[(turns.indexOf(heading.getAttribute("aria-sort") ?? "none") + 1) % 3];
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  const rows = [...original];
  if (next !== "none") {
    heading.setAttribute("aria-sort", next);
    rows.sort((a, b) => compareCells(texts.get(a), texts.get(b), numeric, next === "descending"));
  }
  table.tBodies[0].append(...rows);
}

/** Headings and rows as {text, bold, words}, in the current order. */
function contents(table) {
  const cells = (row) => [...row.cells].map((cell) => ({ text: cellText(cell), bold: cell.classList.contains("strong"), words: cell.classList.contains("words") }));
  return { headings: cells(table.tHead.rows[0]), rows: [...table.tBodies[0].rows].map(cells) };
}

function markdownOf(table) {
  const { headings, rows } = contents(table);
  const escape = (text) => text.replaceAll("|", "\\|").replaceAll("<", "&lt;").replaceAll("](", "]\\(").replaceAll("`", "\\`");
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const row = (cells) => line(cells.map(({ text, bold }) => (bold ? `**${escape(text)}**` : escape(text))));
  const rule = line(headings.map(({ words }) => (words ? "---" : "---:")));
  return [row(headings), rule, ...rows.map(row)].join("\n") + "\n";
}

function latexOf(table) {
  const { headings, rows } = contents(table);
  const escape = (text) => text.replace(/[\\~^&%$#_{}]/g, (c) => LATEX[c] ?? `\\${c}`);
  const row = (cells) => cells.map(({ text, bold }) => (bold ? `\\textbf{${escape(text)}}` : escape(text))).join(" & ") + " \\\\";
  return [
    `\\begin{tabular}{${headings.map(({ words }) => (words ? "l" : "r")).join("")}}`,
    "\\toprule", row(headings), "\\midrule", ...rows.map(row), "\\bottomrule", "\\end{tabular}",
  ].join("\n") + "\n";
}

/** CSV for a spreadsheet: plain numbers, an interval in columns of its own, unknown empty. */
function csvOf(table) {
  const { headings, rows } = contents(table);
  const columns = headings.map(({ text }, i) => {
    const cells = rows.map((row) => row[i].text);
    const split = cells.map((cell) => cell.match(INTERVAL));
    if (!split.some(Boolean)) return [[text, ...cells.map(plain)]];
    const name = text.replace(/ \[.*\]$/, "");
    const part = (which) => split.map((parts, j) => plain(parts ? parts[which] : which === 1 ? cells[j] : ""));
    return [[name, ...part(1)], [`${name} low`, ...part(2)], [`${name} high`, ...part(3)]];
  }).flat();
  const safe = (text) => (/^[=+\-@＝＋－＠\s]/.test(text) && !/^[-+]?\d+(\.\d+)?$/.test(text) ? `'${text}` : text);
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const quote = (text) => quoted(safe(text));  // no cell is a formula
  return columns[0].map((_, line) => columns.map((column) => quote(column[line])).join(",")).join("\n") + "\n";
}

/** A number without unit and separators, for a spreadsheet. */
function plain(text) {
  if (text === UNKNOWN) return "";
  return /^[-+]?[\d,]*\.?\d+x?$/.test(text) ? text.replace(/[x,]/g, "") : text;
}

/** Copy text to the clipboard, in the old way if the new one is not allowed. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { value: text, style: { position: "fixed", opacity: "0" } });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser does not let this page copy");
  }
}

const FORMATS = { CSV: csvOf, LaTeX: latexOf, Markdown: markdownOf };

function copyButton(table, format) {
  const button = el("button", { type: "button" }, format);
  button.addEventListener("click", async () => {
    try {
      await copyText(FORMATS[format](table));
      button.textContent = "copied";
    } catch {
      button.textContent = "refused";
    }
    setTimeout(() => { button.textContent = format; }, 1200);
  });
  return button;
}

/** Add a table's buttons; code adds them so that a page without JavaScript has no dead buttons. */
function setUpTable(figure) {
  const table = figure.querySelector("table");
  const original = [...table.tBodies[0].rows];
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = el("button", { type: "button", class: "sort", title: "Sort by this column" });
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortBy(table, column, original));
    heading.append(button);
  });
  const buttons = Object.keys(FORMATS).map((format) => copyButton(table, format));
  figure.prepend(el("div", { class: "copy" }, "copy as", ...buttons));
}
