// Puts the page together and reacts to what the reader does.

const table = variableTable(PAGE.features);

function choose(name) {
  [state.row, state.column] = cellToShow(name);
  state.name = name;
  renderDetail();
  drawCards();
}

// A cell with a large number at which something moves: the weight of a pair does not if it is 1.
function liveliestCell(variable) {
  const hidden = hiddenFlags(variable);
  const P = hidden && variables.get("P").values;
  const interest = (x, n) => (hidden && hidden[n] === 1 ? -1 : Math.abs(x) * (P ? 1 - P[n] : 1));
  let [best, at] = [-1, 0];
  variable.values.forEach((x, n) => {
    const own = interest(x, n);
    if (own > best && own < Infinity) [best, at] = [own, n];
  });
  return [
    variable.row0 + Math.floor(at / variable.columns) * variable.step[0],
    variable.column0 + (at % variable.columns) * variable.step[1],
  ];
}

// The cell of a variable that the chosen one uses or that uses it; on an axis that it does not say, the same query, key
// or channel, if there is one.
function cellToShow(name) {
  const variable = variables.get(name);
  const before = variables.get(state.name);
  if (!before) return liveliestCell(variable);
  const marks = relations();
  const related = [...marks.inputs, ...marks.outputs].find((cell) => cell.name === name) || {};
  const env = environment(before, state.row, state.column);
  const place = (n, value, first, end) => {
    const wanted = value ?? env[variable.axes[n]] ?? first;
    return wanted >= first && wanted < end ? wanted - ((wanted - first) % variable.step[n]) : first;
  };
  return [
    place(0, related.row, variable.row0, variable.endRow),
    place(1, related.column, variable.column0, variable.endColumn),
  ];
}

function chooseCell(row, column) {
  state.row = row;
  state.column = column;
  renderCell();
  drawCards();
}

function chooseMap(map) {
  state.map = map;
  renderGraph();
  const shown = shownVariables();
  const output = { forward: "P", vjp: "dS", jvp: "tP", vjp_jvp: "tdS" }[map];
  const keeps = state.name && isShown(state.name) && variables.has(state.name);
  choose(keeps ? state.name : variables.has(output) ? output : shown[0].name);
}

function reload() {
  loadHead();
  renderGraph();
  const variable = variables.get(state.name);
  const isIn = (value, first, end) => value >= first && value < end;
  if (!isIn(state.row, variable.row0, variable.endRow) || !isIn(state.column, variable.column0, variable.endColumn)) {
    [state.row, state.column] = liveliestCell(variable);
  }
  state.row -= (state.row - variable.row0) % variable.step[0];
  state.column -= (state.column - variable.column0) % variable.step[1];
  renderDetail();
  drawCards();
}

function redraw() {
  renderLegend(variables.get(state.name));
  drawDetail(relations());
  writeRanges();
  drawCards();
  renderKey();
}

// ---- The head of the page ----

function renderHead() {
  document.getElementById("title").textContent = PAGE.title;
  document.getElementById("facts").textContent = PAGE.facts.join(" · ");
  document.getElementById("made").textContent = `attngrad ${PAGE.version}`;
  document.getElementById("notes").innerHTML = PAGE.notes.map((note) => `<li>${escapeText(note)}</li>`).join("");
  document.getElementById("views").insertAdjacentHTML(
    "beforeend",
    MAPS.map(({ id }) => {
      const has = PAGE.maps.includes(id);
      const more = `${has ? "" : " disabled"}${id === state.map ? " checked" : ""}`;
      const input = `<input type="radio" name="map" value="${id}"${more}>`;
      return `<label${has ? "" : ' class="absent"'}>${input}<span>${id}</span></label>`;
    }).join(""),
  );
  fillChoices();
}

function options(select, entries, chosen) {
  const one = ([value, text]) =>
    `<option value="${value}"${value === chosen ? " selected" : ""}>${escapeText(text)}</option>`;
  select.innerHTML = entries.map(one).join("");
  select.parentElement.hidden = entries.length < 2;
}

function fillChoices() {
  const { batch } = currentHead();
  const sequences = [...new Set(PAGE.heads.map((h) => h.batch))];
  const heads = PAGE.heads.map((h, n) => [h, n]).filter(([h]) => h.batch === batch);
  options(document.getElementById("sequence"), sequences.map((b) => [b, String(b)]), batch);
  options(document.getElementById("head"), heads.map(([h, n]) => [n, String(h.head)]), state.head);
  const levels = levelsOf(currentHead());
  if (!levels.some(([value]) => value === state.level)) state.level = levels[0][0];
  options(document.getElementById("level"), levels, state.level);
}

function levelsOf({ window: part }) {
  if (!part) return [["full", "All"]];
  const range = ([from, to]) => `${from} to ${to - 1}`;
  return [
    ["pooled", "All, pooled"],
    ["window", `Window: queries ${range(part.queries)}, keys ${range(part.keys)}`],
  ];
}

// What the colours mean, above the graph.
function renderKey() {
  const colors = palette(currentTheme());
  const stops = [0, 128, 256, 384, 512].map((n) => `rgb(${colors[n].join(",")})`).join(",");
  document.getElementById("key").innerHTML = [
    `<span class="ramp" style="background: linear-gradient(90deg, ${stops})"></span>`,
    "<span>negative, zero, positive; a scale per variable</span>",
    swatch("hatch", "hidden pair"),
    swatch("frame inputs", "used by the cell"),
    swatch("frame outputs", "uses the cell"),
  ].join("");
}

// The theme that is chosen, else the system's; paper is light.
function applyTheme(isPaper = false) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = isPaper ? "light" : document.getElementById("theme").value || system;
}

function chooseLevel(level) {
  state.level = level;
  fillChoices();
  reload();
}

// ---- Events ----

function onChange({ target }) {
  if (target.name === "map") chooseMap(target.value);
  if (target.name === "pooling") {
    state.pooling = target.value;
    redraw();
    refillTable();
  }
  if (target.id === "colours") {
    state.colours = target.value;
    redraw();
  }
  if (target.id === "head") state.head = Number(target.value);
  if (target.id === "sequence") state.head = PAGE.heads.findIndex((h) => h.batch === Number(target.value));
  if (target.id === "level") state.level = target.value;
  if (["head", "sequence", "level"].includes(target.id)) chooseLevel(state.level);
  if (target.id === "theme") {
    applyTheme();
    redraw();
  }
}

function onClick(event) {
  const { level } = event.target.dataset;
  if (level) {
    chooseLevel(level);
    document.getElementById("map").focus({ preventScroll: true });
    return;
  }
  const target = event.target.closest("[data-variable]");
  if (!target) {
    if (event.target.id === "map") clickMap(event);
    return;
  }
  choose(target.dataset.variable);
  if (target.matches(".name-link")) document.getElementById("map").focus({ preventScroll: true });
  else if (matchMedia("(max-width: 1099px)").matches) document.getElementById("detail").scrollIntoView();
}

function onKey(event) {
  if (event.target.id === "map") moveInMap(event);
  else if (event.target.closest("#lanes")) moveInGraph(event);
}

function onInput({ target }) {
  if (target.id !== "step") return;
  state.step = Number(target.value);
  renderAlongCell();
}

function listen() {
  document.addEventListener("change", onChange);
  document.addEventListener("click", onClick);
  document.addEventListener("keydown", onKey);
  document.addEventListener("input", onInput);
  document.addEventListener("toggle", fillTable, true);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme();
    redraw();
  });
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(document.getElementById("graph"));
  for (const [event, isPaper] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => {
      applyTheme(isPaper);
      redraw();
    });
  }
}

function start() {
  applyTheme();
  state.level = currentHead().window ? "pooled" : "full";
  state.map = PAGE.maps.includes("vjp") ? "vjp" : PAGE.maps[PAGE.maps.length - 1];
  if (PAGE.steps) state.step = Math.floor(0.75 * PAGE.steps.length);
  loadHead();
  renderHead();
  renderKey();
  chooseMap(state.map);
  listen();
}

start();
