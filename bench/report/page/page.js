// The whole page: colour scheme, folding, and the function that makes nodes.

/** Make a node with properties, attributes and children; strings become text, never markup. */
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

/** A stored setting, if any: browsers may forbid pages from a disk to store anything. */
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
    // the next visit then starts with the default
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

/** A click on a drawing shows it in the whole window; another click, or Escape, puts it back. */
function setUpFigures() {
  const drawings = document.querySelectorAll(".drawing");
  if (!drawings.length) return;
  const dialog = el("dialog", { class: "large", onclick: () => dialog.close() });
  document.body.append(dialog);
  for (const drawing of drawings) {
    const enlarge = () => {
      const svg = drawing.firstElementChild;
      drawing.style.height = `${drawing.offsetHeight}px`; // the page stays as it is
      dialog.ariaLabel = drawing.dataset.shows;
      dialog.replaceChildren(svg);
      dialog.onclose = () => {
        drawing.replaceChildren(svg);
        drawing.style.height = "";
      };
      dialog.showModal();
    };
    drawing.dataset.shows = drawing.ariaLabel;
    Object.assign(drawing, { role: "button", ariaLabel: `Enlarge: ${drawing.ariaLabel}`, title: "Enlarge", tabIndex: 0, onclick: enlarge });
    drawing.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      enlarge();
    });
  }
}

/** Add buttons that fold and unfold all sections; unfold them for printing. */
function setUpFolding(tools) {
  const sections = [...document.querySelectorAll("details.section, details.reading")];
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
