// The graph: a lane per kind of variable, in it a card per variable. On wide screens the cards of a variable, its
// cotangent, its tangent and the tangent of its cotangent stand in one column, with arrows between the cards; on narrow
// ones they follow each other, and as on paper the cards say where the arrows would come from and go to.

const MIN_PICTURE = 60;
const MAX_PICTURE = 168;

function lanesShown() {
  return MAPS.find((map) => map.id === state.map).lanes;
}

function isShown(name) {
  return laneOf(name) !== undefined;
}

// The lane that a variable is in; undefined: none that is shown.
function laneOf(name) {
  const shown = lanesShown();
  return table[name] && table[name].lanes.find((lane) => shown.includes(lane));
}

function shownVariables() {
  const shown = [...variables.values()].filter((v) => isShown(v.name));
  return shown.sort((a, b) => table[a.name].order - table[b.name].order);
}

function usedColumns() {
  const columns = [...variables.keys()].filter((name) => table[name]).map((name) => table[name].column);
  return [...new Set(columns)].sort((a, b) => a - b);
}

function renderGraph() {
  const columns = usedColumns();
  const lanes = document.getElementById("lanes");
  lanes.style.setProperty("--columns", columns.length);
  const shown = LANES.filter((lane) => lanesShown().includes(lane.id));
  const edges = allEdges();
  lanes.innerHTML = shown.map((lane) => laneHtml(lane, columns, edges)).join("");
  writeRanges();
  drawCards();
}

function laneHtml(lane, columns, edges) {
  const cards = shownVariables().filter((v) => laneOf(v.name) === lane.id);
  const order = [...new Set(cards.map((v) => table[v.name].column))];
  const stacks = order.map((column) => {
    const own = cards.filter((v) => table[v.name].column === column);
    const place = `--column: ${columns.indexOf(column) + 1}`;
    const html = own.map((v) => cardHtml(v, edges)).join("");
    return `<div class="stack" role="presentation" style="${place}">${html}</div>`;
  });
  const direction = lane.id === "vjp" || lane.id === "vjp_jvp" ? "back" : "on";
  return `<section class="lane ${direction}"><h2 id="lane-${lane.id}">${lane.title}</h2><p>${lane.note}</p>
<div class="cards" role="listbox" aria-labelledby="lane-${lane.id}" aria-orientation="horizontal">
${stacks.join("")}</div></section>`;
}

function cardHtml(variable, edges) {
  const { stats, name } = variable;
  const [min, max] = [stats.min, stats.max].map((x) => formatNumber(x, 3));
  const norm = normText(stats, 4);
  const shape = escapeText(shapeText(variable));
  const odd = oddText(stats);
  const flows = flowsOf(name, edges);
  const flowWords = flows.map(([word, names]) => `${word} ${names.join(" ")}`);
  const facts = [name, table[name].about, shape, `range ${min} to ${max}`, `norm ${norm}`, odd, ...flowWords];
  const label = escapeText(facts.filter(Boolean).join(", "));
  const flowLines = flows.map(([word, names]) => {
    return `<span class="card-facts flow">${word} ${names.map(nameHtml).join(", ")}</span>`;
  });
  return `<div class="card" role="option" id="card-${name}" data-variable="${name}" tabindex="-1" aria-selected="false"
aria-label="${label}"><span class="card-name">${nameHtml(name)}</span><span class="card-role"></span><canvas></canvas>
<span class="card-facts">${shape}</span><span class="card-facts range"></span>
<span class="card-facts">‖·‖ ${norm}</span>${odd ? `<span class="card-facts odd">${odd}</span>` : ""}
${flowLines.join("")}</div>`;
}

const CARD_PADDING = 16; // on both sides together, as page.css has it
const RANGE_DIGITS = [3, 2, 1];

// Writes the ranges of all cards with as many digits as fit into a line.
function writeRanges() {
  const places = [...document.querySelectorAll("#lanes .range")];
  const widths = places.map((place) => place.closest(".card").clientWidth - CARD_PADDING);
  const pen = document.createElement("canvas").getContext("2d");
  const { fontSize, fontFamily, letterSpacing } = getComputedStyle(places[0]);
  pen.font = `${fontSize} ${fontFamily}`;
  pen.letterSpacing = letterSpacing;
  places.forEach((place, n) => {
    const { record, stats } = variables.get(place.closest(".card").dataset.variable);
    const texts = RANGE_DIGITS.map((digits) => rangeText(record, stats, digits));
    place.textContent = texts.find((text) => pen.measureText(text).width <= widths[n]) || texts.at(-1);
  });
}

function rangeText({ shape }, stats, digits) {
  const [min, max] = [stats.min, stats.max].map((x) => formatNumber(x, digits));
  return shape[0] * shape[1] === 1 ? min : `${min}…${max}`;
}

// Where the arrows of a card come from and go to: [["from", names], ["to", names]] without an empty list.
function flowsOf(name, edges) {
  const from = edges.filter(([, to]) => to === name).map(([other]) => other);
  const to = edges.filter(([other]) => other === name).map(([, other]) => other);
  return [["from", from], ["to", to]].filter(([, names]) => names.length > 0);
}

// "2 NaN, 1 infinite"; "" if all numbers are finite.
function oddText({ nan, infinite }) {
  return [nan && `${nan} NaN`, infinite && `${infinite} infinite`].filter(Boolean).join(", ");
}

function drawCards() {
  const marks = relations();
  for (const variable of shownVariables()) {
    const card = document.getElementById(`card-${variable.name}`);
    const grid = gridOf(variable);
    drawMap(card.querySelector("canvas"), grid, cellSize(grid, pictureBox(card)), {
      inputs: marks.inputs.filter((c) => c.name === variable.name).map((c) => toGrid(variable, c)),
      outputs: marks.outputs.filter((c) => c.name === variable.name).map((c) => toGrid(variable, c)),
      chosen: state.name === variable.name ? toGrid(variable, { row: state.row, column: state.column }) : null,
    });
    markCard(card, variable.name, marks);
  }
  drawEdges(marks);
}

// The room for a picture in a card: as wide as the card allows.
function pictureBox(card) {
  const width = Math.min(MAX_PICTURE, Math.max(MIN_PICTURE, card.clientWidth - 18));
  return { width, height: 0.72 * width, cell: 0.21 * width };
}

function markCard(card, name, marks) {
  const isChosen = name === state.name;
  const isInput = marks.inputs.some((c) => c.name === name);
  const isOutput = marks.outputs.some((c) => c.name === name);
  card.setAttribute("aria-selected", isChosen);
  card.classList.toggle("is-input", isInput);
  card.classList.toggle("is-output", isOutput);
  card.querySelector(".card-role").textContent = isInput ? "used" : isOutput ? "uses it" : "";
  const first = card.closest("[role=listbox]").querySelector("[role=option]");
  const hasChosen = card.closest("[role=listbox]").querySelector(`[data-variable="${CSS.escape(state.name)}"]`);
  card.tabIndex = isChosen || (!hasChosen && card === first) ? 0 : -1;
}

// The cells that the chosen one depends on, and those that depend on it.
function relations() {
  const variable = variables.get(state.name);
  if (!variable) return { inputs: [], outputs: [] };
  const pooled = variable.level === "pooled";
  const formula = table[state.name].formula;
  return {
    inputs: (formula ? dependenciesOf(variable, formula, state.row, state.column) : []).map((c) => blur(c, pooled)),
    outputs: dependentsOf(variable, table, state.row, state.column).map((c) => blur(c, pooled)),
  };
}

// A pooled cell stands for many: whole variables light up.
function blur(cell, pooled) {
  return pooled ? { name: cell.name, row: null, column: null } : cell;
}

function toGrid(variable, cell) {
  const place = (value, first, step, count) => {
    if (value === null) return null;
    const n = Math.floor((value - first) / step);
    return n >= 0 && n < count ? n : null;
  };
  return {
    row: place(cell.row, variable.row0, variable.step[0], variable.rows),
    column: place(cell.column, variable.column0, variable.step[1], variable.columns),
  };
}

// Curves along the computation of each lane, from what the chosen cell uses, and on to what uses it.
function drawEdges(marks) {
  const svg = document.getElementById("edges");
  const { left, top, width, height } = document.getElementById("graph").getBoundingClientRect();
  const frame = { left, top };
  frame.columns = columnsOfCards(frame);
  const card = (name) => document.getElementById(`card-${name}`);
  const curve = (from, to, kind, shift = 0) => curveHtml(card(from), card(to), frame, kind, shift);
  const related = (cells) => [...new Set(cells.map((c) => c.name))].filter((name) => name !== state.name && card(name));
  const curves = laneEdges().map(([from, to]) => curve(from, to, "plain"));
  if (card(state.name)) {
    const inputs = related(marks.inputs).map((name) => [name, state.name, "inputs"]);
    const outputs = related(marks.outputs).map((name) => [state.name, name, "outputs"]);
    const groups = groupsOf([...inputs, ...outputs]);
    curves.push(...groups.flatMap((lines) => lines.map((line, n) => curve(...line, shiftOf(n, lines.length)))));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.innerHTML = `<defs>${["plain", "inputs", "outputs"].map(arrowHtml).join("")}</defs>${curves.join("")}`;
}

const ARROW = 5; // length of an arrowhead
const GAP = 15; // between columns, as page.css has it
const MAX_SHIFT = 4;
const SHIFT = 3;

// Lines [from, to, kind] at the chosen card, those together that pass through the same gap: to other lanes, on its left
// or on its right.
function groupsOf(lines) {
  const groups = new Map();
  for (const line of lines) {
    const other = line[0] === state.name ? line[1] : line[0];
    const isNear = laneOf(other) === laneOf(state.name);
    const key = isNear ? other : table[other].column < table[state.name].column;
    groups.set(key, [...(groups.get(key) || []), line]);
  }
  return [...groups.values()];
}

// How far from the middle of a gap between columns the nth of several lines passes, so that they are told apart.
function shiftOf(n, count) {
  const step = Math.min(SHIFT, (2 * MAX_SHIFT) / Math.max(1, count - 1));
  return step * (n - (count - 1) / 2);
}

function arrowHtml(kind) {
  return `<marker id="arrow-${kind}" class="${kind}" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6"
markerHeight="6" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L6 3 L0 6 Z"/></marker>`;
}

// From side to side if the cards are in different columns, between the cards of the columns on the way; in one column
// from edge to edge, or past the cards between them.
function curveHtml(from, to, frame, kind, shift) {
  const [a, b] = [from, to].map((card) => boxOf(card, frame));
  const right = b.left >= a.right - 4;
  const left = b.right <= a.left + 4;
  const path =
    right || left ? acrossPath(a, b, right, frame, shift) : alongPath(a, b, frame, kind === "plain" ? null : shift);
  return `<path class="${kind}" marker-end="url(#arrow-${kind})" d="${path}"/>`;
}

function boxOf(element, frame) {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  const [x, y] = [frame.left, frame.top];
  return { left: left - x, right: right - x, top: top - y, bottom: bottom - y, middle: (top + bottom) / 2 - y };
}

// All cards of the page, a list per column.
function columnsOfCards(frame) {
  const columns = new Map();
  for (const card of document.querySelectorAll("#lanes .card")) {
    const box = boxOf(card, frame);
    const key = Math.round(box.left);
    columns.set(key, [...(columns.get(key) || []), box]);
  }
  return [...columns.values()].map((boxes) => boxes.sort((p, q) => p.top - q.top));
}

function acrossPath(a, b, right, frame, shift) {
  const [x1, x2] = right ? [a.right, b.left - ARROW] : [a.left, b.right + ARROW];
  const [low, high] = [Math.min(x1, x2) - 2, Math.max(x1, x2) + 2];
  const between = frame.columns.filter(([box]) => box.left > low && box.right < high);
  between.sort(([p], [q]) => (right ? p.left - q.left : q.left - p.left));
  let [x, y] = [x1, a.middle];
  let path = `M${x} ${y}`;
  const bendTo = (toX, toY, edge = toX) => {
    const middle = (x + edge) / 2 + shift;
    const round = Math.sign(toY - y) * Math.min(8, Math.abs(toY - y) / 2);
    path += ` Q${middle} ${y} ${middle} ${y + round} V${toY - round} Q${middle} ${toY} ${toX} ${toY}`;
    [x, y] = [toX, toY];
  };
  between.forEach((boxes, n) => {
    const share = (n + 1) / (between.length + 1);
    const free = freePlace(boxes, a.middle + share * (b.middle - a.middle));
    const [near, far] = right ? [boxes[0].left, boxes[0].right] : [boxes[0].right, boxes[0].left];
    bendTo(near, free);
    path += ` H${far}`;
    x = far;
  });
  bendTo(x2, b.middle, right ? b.left : b.right);
  return `${path} H${right ? b.left - 1 : b.right + 1}`;
}

// The place between, above or below the cards of a column that is nearest to y.
function freePlace(boxes, y) {
  const places = boxes.map((box, n) => (n ? (boxes[n - 1].bottom + box.top) / 2 : box.top - 5));
  places.push(boxes[boxes.length - 1].bottom + 5);
  return places.reduce((best, place) => (Math.abs(place - y) < Math.abs(best - y) ? place : best));
}

// shift: null to pass the cards between them on the left, where there is always a gap; else on the right, if there is
// one there.
function alongPath(a, b, frame, shift) {
  const down = a.top < b.top;
  const [y1, y2] = down ? [a.bottom, b.top] : [a.top, b.bottom];
  const column = frame.columns.find(([box]) => Math.abs(box.left - a.left) < 2) || [];
  const isFree = !column.some((box) => box.middle > Math.min(y1, y2) && box.middle < Math.max(y1, y2));
  if (isFree) return `M${(a.left + a.right) / 2} ${y1} V${down ? y2 - 1 : y2 + 1}`;
  if (shift !== null && frame.columns.some(([box]) => box.left > a.right)) {
    return `M${a.right} ${a.middle} H${a.right + GAP / 2 + shift} V${b.middle} H${b.right + 1}`;
  }
  const x = a.left - 6;
  return `M${a.left} ${a.middle} H${x} V${b.middle} H${b.left - 1}`;
}

// From each variable that is shown to those that are computed from it: [from, to].
function allEdges() {
  return shownVariables().flatMap(({ name }) => {
    const { formula } = table[name];
    const references = formula ? referencesOf(formula.tree) : [];
    const inputs = references.map((r) => (variables.has(r.name) ? r.name : sideBySide(r.name)));
    return [...new Set(inputs)].filter((from) => from && isShown(from)).map((from) => [from, name]);
  });
}

// The same inside a lane: between lanes there would be too many to follow.
function laneEdges() {
  return allEdges().filter(([from, to]) => laneOf(from) === laneOf(to));
}

// ---- Keyboard: left and right inside a lane, as on the screen; up and down to the same variable in the next lane ----

// The cards of a lane from left to right; on narrow screens in their order of computation.
function cardsOf(list) {
  const cards = [...list.querySelectorAll("[role=option]")];
  const isBack = list.closest(".lane").matches(".back") && matchMedia("(min-width: 700px)").matches;
  return isBack ? cards.reverse() : cards;
}

function baseName(name) {
  return name === "D" || name === "tD" ? "L" : name === "mu" ? "L" : name.replace(/^(td|d|t)(?=.)/, "");
}

function moveInGraph(event) {
  const card = event.target.closest("[role=option]");
  if (!card) return;
  const cards = cardsOf(card.closest("[role=listbox]"));
  const at = cards.indexOf(card);
  const target = {
    ArrowRight: () => cards[at + 1],
    ArrowLeft: () => cards[at - 1],
    Home: () => cards[0],
    End: () => cards[cards.length - 1],
    ArrowDown: () => counterpart(card, 1),
    ArrowUp: () => counterpart(card, -1),
    Enter: () => card,
    " ": () => card,
  }[event.key];
  if (!target) return;
  event.preventDefault();
  const next = target();
  if (!next) return;
  choose(next.dataset.variable);
  document.getElementById(next.id).focus();
  if (event.key === "Enter" || event.key === " ") document.getElementById("map").focus();
}

function counterpart(card, direction) {
  const lists = [...document.querySelectorAll("#lanes [role=listbox]")];
  const list = lists[lists.indexOf(card.closest("[role=listbox]")) + direction];
  if (!list) return null;
  const cards = [...list.querySelectorAll("[role=option]")];
  const { variable } = card.dataset;
  const near = cards.filter((c) => table[c.dataset.variable].column === table[variable].column);
  return cards.find((c) => baseName(c.dataset.variable) === baseName(variable)) || near[0] || cards[0];
}
