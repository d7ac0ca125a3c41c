// The page as a whole: colour scheme, folding, and the one way in which nodes are made.

/** A node with properties, attributes and children; strings become text and never markup. */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const THEMES = ["auto", "light", "dark"];

/** What was kept under a name: pages from a disk may not be allowed to keep anything. */
function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // then it is chosen again next time
  }
}

function setUpTheme(tools) {
  const button = el("button", { type: "button", id: "theme" });
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Colours: ${theme}`;
    button.value = theme;
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(button.value) + 1) % THEMES.length];
    keep("bench-theme", next);
    show(next);
  });
  const before = kept("bench-theme");
  show(THEMES.includes(before) ? before : "auto");
  tools.append(button);
}

/** Buttons that fold and unfold everything; what is printed is unfolded. */
function setUpFolding(tools) {
  const sections = [...document.querySelectorAll("details.section")];
  const setAll = (open) => sections.forEach((section) => { section.open = open; });
  tools.append(
    el("button", { type: "button", id: "unfold", onclick: () => setAll(true) }, "Unfold all"),
    el("button", { type: "button", id: "fold", onclick: () => setAll(false) }, "Fold all"),
  );
  let before = [];
  addEventListener("beforeprint", () => {
    before = sections.map((section) => section.open);
    setAll(true);
  });
  addEventListener("afterprint", () => sections.forEach((section, i) => { section.open = before[i]; }));
}
