// Set up the page when it is opened.

async function openViewer() {
  const stage = document.getElementById("stage");
  if (!stage) return null;
  try {
    const [index, pieces] = await Promise.all([unpack("index"), unpack("pieces")]);
    const viewer = new Viewer(stage, index, pieces);
    await viewer.filter();
    return viewer;
  } catch (error) {
    stage.replaceChildren(el("p", { class: "bad" }, `The step viewer cannot be shown: ${error.message}`));
    throw error;
  }
}

document.querySelectorAll("figure.table").forEach(setUpTable);
const tools = document.querySelector(".tools");
setUpFolding(tools);
setUpTheme(tools);
setUpFigures();
tools.hidden = false;
openViewer().finally(() => {
  document.documentElement.dataset.ready = "";
  performance.mark("ready");
});
