// The list of runs: hide rows that lack one of the typed words.

function search(rows, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    const content = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => content.includes(word));
  }
  return rows.filter((row) => !row.hidden).length;
}

const field = document.getElementById("search");
const rowsOfRuns = [...document.querySelectorAll("#all tbody tr")];
const showMatches = () => {
  const num = search(rowsOfRuns, field.value);
  document.getElementById("shown").textContent = field.value ? `${num} of ${rowsOfRuns.length} runs` : "";
};
field.addEventListener("input", showMatches);
showMatches();
